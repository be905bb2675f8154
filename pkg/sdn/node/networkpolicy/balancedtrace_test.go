package networkpolicy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/balanced"
	"github.com/ovsdn/ovsdn/test/testcluster"
)

// balancedTrace is what traces show of a connection to a service: its outcome, and whether the packet to each endpoint arrives.
type balancedTrace struct {
	outcome   oracle.ServiceOutcome
	endpoints map[netip.AddrPort]bool
	reports   map[netip.AddrPort]string // those of the zero AddrPort are about packets to no endpoint
}

// compare returns the difference from the expected verdict; "": none.
func (b balancedTrace) compare(want oracle.ServiceVerdict) string {
	if b.outcome != want.Outcome {
		return fmt.Sprintf("got %s, want %s\n%s", b.outcome, want.Outcome, b.reports[netip.AddrPort{}])
	}
	for _, e := range want.Endpoints {
		switch allowed, found := b.endpoints[e.Addr]; {
		case !found:
			return fmt.Sprintf("got endpoints %v, want also %s", b.endpoints, e.Addr)
		case allowed != e.Verdict.Allowed:
			return fmt.Sprintf("endpoint %s: got allowed %v, want %v: %s\n%s", e.Addr, allowed, e.Verdict.Allowed, e.Verdict.Why, b.reports[e.Addr])
		}
	}
	if len(b.endpoints) > len(want.Endpoints) {
		return fmt.Sprintf("got endpoints %v, want %v", b.endpoints, want.Endpoints)
	}
	return ""
}

// maxHash is a number of successive hash values that select all endpoints: groups have nearly the same number of slots for each, in turn.
const maxHash = 2 * testcluster.MaxServiceEndpoints

// traceBalanced traces the first packet of a connection on its first node, with all endpoints, and packets to the other node there.
func (n *testNodes) traceBalanced(ctx context.Context, s *testNode, installed *balanced.Installed, conn oracle.ServiceConnection) (balancedTrace, error) {
	b := balancedTrace{endpoints: map[netip.AddrPort]bool{}, reports: map[netip.AddrPort]string{}}
	packet, outcome := s.balancedPacket(installed, conn)
	if outcome != "" {
		b.outcome = outcome
		return b, nil
	}
	packet.Hash = 1
	first, err := s.traces(ctx, packet)
	if err != nil {
		return b, err
	}
	results := first
	if first[0].endpoint.IsValid() {
		packets := make([]ovs.TracePacket, maxHash-1)
		for i := range packets {
			packets[i] = packet
			packets[i].Hash = uint32(i + 2) //nolint:gosec // small
		}
		more, err := s.traces(ctx, packets...)
		if err != nil {
			return b, err
		}
		results = append(results, more...)
	}
	for _, r := range results {
		b.reports[r.endpoint] = r.report
		if !r.endpoint.IsValid() {
			b.outcome = r.outcome(conn.To.Addr(), s.node.ServiceNetwork)
			return b, nil
		}
		b.outcome = oracle.ServiceForwarded
		if _, known := b.endpoints[r.endpoint]; known {
			continue
		}
		if b.endpoints[r.endpoint], err = n.delivered(ctx, s, r); err != nil {
			return b, fmt.Errorf("endpoint %s: %w\n%s", r.endpoint, err, r.report)
		}
	}
	return b, nil
}

// balancedPacket returns the packet of the connection that the switch receives, or the outcome if the host does not send it to the switch.
func (s *testNode) balancedPacket(installed *balanced.Installed, conn oracle.ServiceConnection) (p ovs.TracePacket, outcome oracle.ServiceOutcome) {
	gateway := config.Gateway(s.node.Subnets[0])
	p = ovs.TracePacket{
		InPort: pipeline.PortTun, EthSource: config.MAC(gateway), EthDest: config.MAC(gateway), Source: conn.From.Addr, SourcePort: pipeline.FirstClientPort + 1,
		Dest: conn.To.Addr(), DestPort: conn.To.Port(),
		Protocol: map[corev1.Protocol]uint8{
			corev1.ProtocolTCP: ovs.ProtocolNumberTCP, corev1.ProtocolUDP: ovs.ProtocolNumberUDP, corev1.ProtocolSCTP: ovs.ProtocolNumberSCTP,
		}[conn.Protocol],
	}
	if conn.From.Pod != nil {
		p.InPort, p.EthSource = ofport(conn.From.Addr), config.MAC(conn.From.Addr)
		if slices.ContainsFunc(s.node.ClusterNetworks, func(n netip.Prefix) bool { return n.Contains(p.Dest) }) {
			p.EthDest = config.MAC(p.Dest)
		}
		return p, ""
	}
	fromNode := conn.From.Node != ""
	to := installed.Translate(conn.From.Addr, fromNode, conn.To, conn.Protocol, []netip.Addr{gateway, s.node.VTEP})
	switch {
	case to.Verdict == endpoints.Reject:
		return p, oracle.ServiceRejected
	case to.Verdict == endpoints.Drop:
		return p, oracle.ServiceDropped
	case to.Verdict == endpoints.Forward && fromNode: // masqueraded
		p.Source, p.Dest, p.DestPort = gateway, to.To.Addr(), to.To.Port()
	case to.Verdict == endpoints.Forward:
		p.DSCP, p.Dest, p.DestPort = pipeline.ForwardedDSCP, to.To.Addr(), to.To.Port()
	case !s.node.ServiceNetwork.Contains(p.Dest):
		return p, oracle.ServiceNone
	case !fromNode && s.node.Mode != config.ModeSubnet:
		p.DSCP = pipeline.RoutedDSCP
	}
	return p, ""
}

// traceResult is the result of a trace of one packet.
type traceResult struct {
	report    string
	endpoint  netip.AddrPort // that the switch selects; the zero value: none
	rejected  bool           // the packet has passed the table that sends it to the host to be rejected
	lastTable int
	port      int // to which the switch outputs the packet; 0: none
	end       map[string]string
	vni       uint32
}

// traces traces packets on this node.
func (s *testNode) traces(ctx context.Context, packets ...ovs.TracePacket) ([]traceResult, error) {
	reports, err := s.bridge.Traces(ctx, packets)
	if err != nil {
		return nil, err
	}
	results := make([]traceResult, len(reports))
	for i, report := range reports {
		if report.Err != nil {
			return nil, fmt.Errorf("trace %+v: %w", packets[i], report.Err)
		}
		trace, err := s.parser.Parse(report.Text)
		if err != nil {
			return nil, fmt.Errorf("trace %+v: %w\n%s", packets[i], err, report.Text)
		}
		results[i].report = report.Text
		for j := range trace.Passes {
			if err := results[i].add(&trace.Passes[j]); err != nil {
				return nil, fmt.Errorf("trace %+v: %w\n%s", packets[i], err, report.Text)
			}
		}
	}
	return results, nil
}

// add adds what a pass shows.
func (r *traceResult) add(pass *ovs.TracePass) error {
	r.end = pass.End
	for _, f := range pass.Flows {
		r.lastTable = f.Key.Table
		r.rejected = r.rejected || f.Key.Table == pipeline.RejectTable
		for _, a := range f.Actions {
			if port, ok := a.Output(pass); ok {
				if r.port != 0 {
					return fmt.Errorf("the packet is output to port %d and %d", r.port, port)
				}
				r.port = port
			}
			if _, to, found := strings.Cut(a.Text, "nat(dst="); found && f.Key.Table == pipeline.TranslateTable {
				to, _, _ = strings.Cut(to, ")")
				var err error
				if r.endpoint, err = netip.ParseAddrPort(to); err != nil {
					return err
				}
			}
			for _, note := range a.Notes {
				if text, ok := strings.CutPrefix(note, pipeline.TunnelID()+" is now "); ok {
					id, err := strconv.ParseUint(text, 0, 32)
					if err != nil {
						return err
					}
					r.vni = uint32(id)
				}
			}
		}
	}
	return nil
}

// outcome returns the outcome of a packet for which the switch selects no endpoint. Table 60 drops packets to services; a packet to no service may be denied in
// others, as one to the address itself.
func (r traceResult) outcome(to netip.Addr, services netip.Prefix) oracle.ServiceOutcome {
	switch {
	case r.rejected && r.port == pipeline.PortTun:
		return oracle.ServiceRejected
	case r.port == 0 && (r.lastTable == pipeline.ServiceTable || services.Contains(to)):
		return oracle.ServiceDropped
	}
	return oracle.ServiceNone
}

// delivered reports whether the packet to a selected endpoint arrives. It traces one to the other node there.
func (n *testNodes) delivered(ctx context.Context, s *testNode, r traceResult) (bool, error) {
	switch {
	case r.port == 0:
		return false, nil
	case r.port != s.outputToAddr(r.endpoint.Addr()):
		return false, fmt.Errorf("got output to port %d, want %d", r.port, s.outputToAddr(r.endpoint.Addr()))
	case r.port != pipeline.PortVXLAN:
		return true, nil
	}
	packet, err := s.received(r)
	if err != nil {
		return false, err
	}
	other := n.all[1-s.index]
	results, err := other.traces(ctx, packet)
	if err != nil {
		return false, err
	}
	if port := results[0].port; port != 0 && port != other.outputToAddr(r.endpoint.Addr()) {
		return false, fmt.Errorf("got output to port %d of the other node, want %d:\n%s", port, other.outputToAddr(r.endpoint.Addr()), results[0].report)
	}
	return results[0].port != 0, nil
}

// received returns the packet that the other node receives of one that a trace sends to it.
func (s *testNode) received(r traceResult) (p ovs.TracePacket, err error) {
	p = ovs.TracePacket{InPort: pipeline.PortVXLAN, TunnelSource: s.node.VTEP, TunnelID: r.vni, Hash: 1}
	for field, to := range map[string]*netip.Addr{"tun_dst": &p.TunnelDest, "nw_src": &p.Source, "nw_dst": &p.Dest} {
		if *to, err = netip.ParseAddr(r.end[field]); err != nil {
			return p, fmt.Errorf("%s: %w", field, err)
		}
	}
	for field, to := range map[string]*net.HardwareAddr{"dl_src": &p.EthSource, "dl_dst": &p.EthDest} {
		if *to, err = net.ParseMAC(r.end[field]); err != nil {
			return p, fmt.Errorf("%s: %w", field, err)
		}
	}
	protocol := map[string]uint8{"tcp": ovs.ProtocolNumberTCP, "udp": ovs.ProtocolNumberUDP, "sctp": ovs.ProtocolNumberSCTP}
	for name, number := range protocol {
		if _, ok := r.end[name]; ok {
			p.Protocol = number
		}
	}
	for field, to := range map[string]*uint16{"tp_src": &p.SourcePort, "tp_dst": &p.DestPort} {
		number, err := strconv.ParseUint(r.end[field], 10, 16)
		if err != nil {
			return p, fmt.Errorf("%s: %w", field, err)
		}
		*to = uint16(number)
	}
	if want := testcluster.NodeIP(1 - s.index); p.TunnelDest != want {
		return p, fmt.Errorf("got tunnel destination %s, want %s", p.TunnelDest, want)
	}
	return p, nil
}

// outputToAddr returns the port to which the switch outputs packets to an endpoint's address.
func (s *testNode) outputToAddr(addr netip.Addr) int {
	switch {
	case addr == testcluster.NodeAddr(s.index):
		return pipeline.PortTun
	case subnet(s.index).Contains(addr):
		return ofport(addr)
	case subnet(1 - s.index).Contains(addr):
		return pipeline.PortVXLAN
	}
	return pipeline.PortTun
}

package networkpolicy

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressip"
	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/testcluster"
)

// setEgressIPs sets the egress IPs of the world.
func (n *testNodes) setEgressIPs(t *testing.T, w *testcluster.World) {
	t.Helper()
	for _, s := range n.all {
		s.egressIPs = egressip.New(w.Reserved)
		for i, o := range w.HostSubnets {
			e, err := config.ParseEgressNode(o)
			if err != nil {
				t.Fatal(err)
			}
			s.egressIPs.SetNode(o.Name, egressip.Node{Addr: testcluster.NodeIP(i), IPs: e.IPs, Unreachable: e.Unreachable})
		}
		for _, o := range w.NetNamespaces {
			ips, _, err := config.ParseNamespaceEgressIPs(o)
			if err != nil {
				t.Fatal(err)
			}
			s.egressIPs.SetNamespace(o.NetName, ips)
		}
	}
}

// egressIP returns the egress IP of a pod, as the agent sets it: one that no node hosts if the namespace has none that can be used.
func (s *testNode) egressIP(namespace string, pod netip.Addr) netip.Addr {
	usable, asks := s.egressIPs.Namespace(namespace)
	switch {
	case !asks:
		return netip.Addr{}
	case len(usable) == 0:
		return netip.AddrFrom4([4]byte{255, 255, 255, 255})
	}
	return egressip.Select(pod, usable)
}

// egressFlows returns the flows of all egress IPs that can be used.
func (s *testNode) egressFlows() map[pipeline.Owner]pipeline.State {
	all := map[pipeline.Owner]pipeline.State{}
	for _, ip := range s.egressIPs.IPs() {
		state := s.egressIPs.IP(ip)
		if state.Problem != "" && state.Problem != egressip.NotReachable {
			continue
		}
		e := pipeline.EgressIP{IP: ip, VTEP: state.VTEP}
		if e.VTEP == s.node.VTEP {
			e.VTEP = netip.Addr{}
		}
		all[pipeline.Owner{Kind: pipeline.KindEgressIP, Key: ip.String()}] = s.node.EgressIP(e)
	}
	return all
}

// split separates the connections of pods to hosts outside, which are no nodes, from others.
func split(conns []oracle.Connection) (leaving, others []oracle.Connection) {
	for _, c := range conns {
		if c.From.Pod != nil && c.To.Pod == nil && c.To.Node == "" && c.To.Through == "" {
			leaving = append(leaving, c)
		} else {
			others = append(others, c)
		}
	}
	return leaving, others
}

// compareDepartures traces the connections on the nodes of the pods, and those that go to another node there. It compares their sources with the oracle.
func (n *testNodes) compareDepartures(t *testing.T, when string, w *testcluster.World, conns []oracle.Connection) {
	t.Helper()
	sources, err := n.departures(conns)
	if err != nil {
		t.Fatal(err)
	}
	for i, conn := range conns {
		verdict, want := w.Evaluate(conn), w.Leave(conn)
		switch got := sources[i]; {
		case !verdict.Allowed && got.IsValid():
			t.Fatalf("%s: %s to %s, %s %d: got source %s, want it dropped: %s", when, end(conn.From), end(conn.To), conn.Protocol, conn.Port, got, verdict.Why)
		case !verdict.Allowed:
		case len(want.Sources) == 0 && got.IsValid(), len(want.Sources) > 0 && !slices.Contains(want.Sources, got):
			t.Fatalf("%s: %s to %s, %s %d: got source %s, want one of %v: %s", when, end(conn.From), end(conn.To), conn.Protocol, conn.Port, got, want.Sources, want.Why)
		}
	}
}

// departures returns the sources with which the connections leave; the zero Addr: they are dropped.
func (n *testNodes) departures(conns []oracle.Connection) ([]netip.Addr, error) {
	sources := make([]netip.Addr, len(conns))
	var places [2][]int
	var packets, relayed [2][]string
	for i, conn := range conns {
		at := slices.IndexFunc(n.all[:], func(s *testNode) bool { return s.isLocal(conn.From.Pod) })
		places[at], packets[at] = append(places[at], i), append(packets[at], n.all[at].packet(conn, n.vnids))
	}
	var from [2][]int // the places of relayed packets
	for at, s := range n.all {
		reports, err := s.tracer.Trace(packets[at]...)
		if err != nil {
			return nil, err
		}
		for j, report := range reports {
			i := places[at][j]
			source, err := s.departure(report)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", packets[at][j], err)
			}
			if source == conns[i].From.Addr {
				source = s.node.VTEP // the host masquerades
			}
			if sources[i] = source; sentTo(report) == pipeline.PortVXLAN {
				packet, err := n.relay(s, report, packets[at][j])
				if err != nil {
					return nil, err
				}
				from[1-at], relayed[1-at] = append(from[1-at], i), append(relayed[1-at], packet)
			}
		}
	}
	for at, s := range n.all {
		reports, err := s.tracer.Trace(relayed[at]...)
		if err != nil {
			return nil, err
		}
		for j, report := range reports {
			i := from[at][j]
			if sources[i], err = s.departure(report); err != nil {
				return nil, fmt.Errorf("%s: %w", relayed[at][j], err)
			}
			if sentTo(report) == pipeline.PortVXLAN || sources[i] == conns[i].From.Addr {
				return nil, fmt.Errorf("%s: got source %s, want it dropped or translated:\n%s", relayed[at][j], sources[i], report)
			}
		}
	}
	return sources, nil
}

// departure returns the source of a packet that a trace outputs to the host; the zero Addr if it is dropped or sent to another node.
func (s *testNode) departure(report string) (netip.Addr, error) {
	switch port := sentTo(report); port {
	case 0, pipeline.PortVXLAN:
		return netip.Addr{}, nil
	case pipeline.PortTun:
		return netip.ParseAddr(final(report, "nw_src"))
	default:
		return netip.Addr{}, fmt.Errorf("goes to port %d:\n%s", port, report)
	}
}

// relay returns the packet that the other node receives of one that a trace sends to it.
func (n *testNodes) relay(s *testNode, report, packet string) (string, error) {
	if got, want := final(report, "tun_dst"), n.all[1-s.index].node.VTEP.String(); got != want {
		return "", fmt.Errorf("%s: got tunnel destination %s, want %s:\n%s", packet, got, want, report)
	}
	vni := regexp.MustCompile(`TUN_ID\[0\.\.31\] is now (\S+)`).FindStringSubmatch(report) // no final flow has it
	if vni == nil {
		return "", fmt.Errorf("%s: got a packet in the tunnel without VNI:\n%s", packet, report)
	}
	_, fields, _ := strings.Cut(packet, "dl_src=")
	_, fields, _ = strings.Cut(fields, ",")
	return fmt.Sprintf("in_port=1,tun_src=%s,tun_id=%s,dl_dst=%s,%s", s.node.VTEP, vni[1], final(report, "dl_dst"), fields), nil
}

// final returns the value of a field in the last packet that a report describes.
func final(report, field string) string {
	value := ""
	for line := range strings.Lines(report) {
		if !strings.HasPrefix(strings.TrimSpace(line), "Flow: ") && !strings.HasPrefix(strings.TrimSpace(line), "Final flow: ") {
			continue
		}
		if match := regexp.MustCompile(`\b` + field + `=([^,\s]+)`).FindStringSubmatch(line); match != nil {
			value = match[1]
		}
	}
	return value
}

package datapath_test

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	compiled "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// The rules of exportNode, and its observation domain.
const (
	exportAllowed = 435269352 // UDP 53 to the second pod
	exportDenied  = 78        // UDP 55 to the second pod
	exportDomain  = 0xc0000201
)

// exportedNode is a node with two pods, in the namespaces of two VNIDs if the mode is multitenant. A policy isolates the second one, and an egress firewall denies the
// first one all hosts outside.
type exportedNode struct {
	*cluster
	mode        config.Mode
	probability uint16
	exporter    *ovs.Exporter
}

func (e exportedNode) install(t testing.TB) {
	t.Helper()
	node := e.Nodes[0]
	n := compiled.Node{
		Mode: e.mode, ClusterNetworks: []netip.Prefix{netip.MustParsePrefix(datapath.ClusterNetwork)}, ServiceNetwork: netip.MustParsePrefix(datapath.ServiceNetwork),
		Subnets: []netip.Prefix{node.Subnet}, VXLANPort: 4789, Userspace: e.Type == ovstest.DatapathNetdev,
		FlowExport: compiled.FlowExport{Probability: e.probability, Domain: exportDomain},
	}
	static, err := n.Static()
	if err != nil {
		t.Fatal(err)
	}
	firewall := compiled.EgressFirewall{ID: 7, Export: n.FlowExport, Rules: []compiled.EgressFirewallRule{{To: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, Deny: true}}}
	states := []compiled.State{static, firewall.Compile(compiled.EgressVerdicts{}).State()}
	for i, p := range node.Pods {
		pod := compiled.Pod{OFPort: p.OFPort, MAC: p.MAC, Addrs: []netip.Addr{p.Addr}, VNID: config.VNID(10 + i)} //nolint:gosec // small
		if i == 0 {
			pod.EgressFirewall = firewall.ID
		} else {
			pod.Policies = compiled.PodPolicies{Evaluated: true, Ingress: true}
		}
		states = append(states, n.Pod(pod))
	}
	if e.mode == config.ModeNetworkPolicy {
		const allowLevel, denyLevel = compiled.PolicyIsolation + 1, compiled.PolicyIsolation + 2
		part := func(level uint16, id uint32, k uint8) []compiled.RulePart {
			return []compiled.RulePart{{Level: level, Shares: []compiled.RuleShare{{ID: id, K: k, N: 2}}}}
		}
		target := compiled.Pod{OFPort: node.Pods[1].OFPort, Addrs: []netip.Addr{node.Pods[1].Addr}}
		states = append(states,
			n.PolicyTarget(target, part(allowLevel, exportAllowed, 1)), n.PolicyPort(goovs.ProtocolUDPv4, 53, 0xffff, part(allowLevel, exportAllowed, 2)),
			n.PolicyOutcome(exportAllowed, compiled.RulePart{Level: allowLevel}, compiled.PolicyAllow),
			n.PolicyTarget(target, part(denyLevel, exportDenied, 1)), n.PolicyPort(goovs.ProtocolUDPv4, 55, 0xffff, part(denyLevel, exportDenied, 2)),
			n.PolicyOutcome(exportDenied, compiled.RulePart{Level: denyLevel}, compiled.PolicyDeny))
	}
	var want ovs.State
	for _, s := range states {
		want.Flows = append(want.Flows, unshared(want.Flows, s.Flows)...)
		want.Meters = append(want.Meters, s.Meters...)
	}
	bridge := native.New(ovstest.Bridge, node.Switch.RunDir)
	defer bridge.Close()
	if _, err := bridge.Replace(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if _, err := bridge.EnsureExporter(t.Context(), e.exporter); err != nil {
		t.Fatal(err)
	}
	node.Revalidate(t)
}

// ipfixCollector receives the records of one exporter.
type ipfixCollector struct {
	*datapath.Socket
	reader ipfixReader
	seen   []ipfixRecord
}

func newCollector(t *testing.T, h *datapath.Host) *ipfixCollector {
	t.Helper()
	return &ipfixCollector{Socket: h.UDP(t, 4739), reader: ipfixReader{templates: map[[2]uint32]ipfixTemplate{}}}
}

// await reads until there is a record of a packet to the port with the observation point, and fails if one to the port has another.
func (c *ipfixCollector) await(t *testing.T, point uint64, from, to netip.Addr, port uint16) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(soon)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 65536)
	for {
		for i, r := range c.seen {
			if r.number(elementPort) != uint64(port) || r.addr(elementDestination) != to {
				continue
			}
			if r.number(elementPoint) != point || r.domain != exportDomain || r.addr(elementSource) != from || r.number(elementPackets) == 0 {
				t.Errorf("got a record of %s, want point %d, domain %d, source %s", r, point, uint32(exportDomain), from)
			}
			c.seen = c.seen[i+1:]
			return
		}
		n, _, err := c.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("got records %v, want one of %s to %s:%d with point %d", c.seen, from, to, port, point)
		}
		if err != nil {
			t.Fatal(err)
		}
		records, err := c.reader.read(append([]byte(nil), buf[:n]...))
		if err != nil {
			t.Fatalf("%v: %x", err, buf[:n])
		}
		c.seen = append(c.seen, records...)
	}
}

// Packets of which each is sampled are exported with the number of the rule that allows or denies them, or the number of what denies them, and pass as without samples.
func TestFlowExport(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t, 2)
	node, client, server := c.Nodes[0], c.pod(0, 0), c.pod(0, 1)
	collector := newCollector(t, &node.Host)
	e := exportedNode{
		cluster: c, mode: config.ModeNetworkPolicy, probability: 65535,
		exporter: &ovs.Exporter{CollectorSet: compiled.CollectorSet, Collectors: []netip.AddrPort{collector.Addr()}},
	}
	asking, dns := client.UDP(t, 0), server.UDP(t, 53)
	to := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(server.Addr, port) }
	outside := netip.MustParseAddrPort("198.51.100.7:443")
	e.install(t)

	asking.MustReach(t, dns.Addr(), dns)
	collector.await(t, exportAllowed, client.Addr, server.Addr, 53)
	dns.MustReach(t, asking.Addr(), asking)
	for _, denied := range []struct {
		to    netip.AddrPort
		point uint64
	}{{to(54), compiled.PointIngressIsolated}, {to(55), exportDenied}, {outside, compiled.PointEgressFirewall}} {
		receiver := dns
		if denied.to != outside {
			receiver = server.UDP(t, denied.to.Port())
		}
		asking.MustNotReach(t, denied.to, receiver)
		collector.await(t, denied.point, client.Addr, denied.to.Addr(), denied.to.Port())
	}

	t.Run("multitenant", func(t *testing.T) {
		if testing.Short() {
			t.Skip("complete tier: another mode")
		}
		e.mode = config.ModeMultitenant
		e.install(t)
		asking.MustNotReach(t, to(56), server.UDP(t, 56))
		collector.await(t, compiled.PointIsolation, client.Addr, server.Addr, 56)
	})
}

// BenchmarkFlowExport sends packets of one allowed connection, without samples, with one of 400 packets, and with each.
func BenchmarkFlowExport(b *testing.B) {
	c := &cluster{Network: datapath.New(b, 1)}
	node := c.Nodes[0]
	client, server := node.AddPod(b), node.AddPod(b)
	collector := node.UDP(b, 4739) // its buffer overflows
	asking, dns := client.UDP(b, 0), server.UDP(b, 53)
	for _, bm := range []struct {
		name        string
		probability uint16
	}{{"off", 0}, {"1of400", 163}, {"1of10", 6553}, {"all", 65535}} {
		b.Run(bm.name, func(b *testing.B) {
			exportedNode{cluster: c, mode: config.ModeNetworkPolicy, probability: bm.probability, exporter: &ovs.Exporter{
				CollectorSet: compiled.CollectorSet, Collectors: []netip.AddrPort{collector.Addr()}, ActiveTimeout: time.Minute, MaxFlows: 8192,
			}}.install(b)
			asking.MustReach(b, dns.Addr(), dns)
			buf := make([]byte, 2048)
			for b.Loop() {
				asking.Send(b, dns.Addr(), []byte("ping"))
				if err := dns.SetReadDeadline(time.Now().Add(soon)); err != nil {
					b.Fatal(err)
				}
				if _, _, err := dns.ReadFrom(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

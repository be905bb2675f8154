package egressips

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

// attachUnknown sets the flow of a pod whose Namespace is unknown, as package podflows does.
func (a *agent) attachUnknown(namespace, pod string) {
	a.t.Helper()
	input := inputs.NamespaceEgressIPs(namespace, "sandbox")
	last := pod[len(pod)-1:]
	addr := netip.MustParseAddr("10.128.0." + last)
	a.store.SetAll(flowstore.Change{Owner: owner(pod), Reads: []flowstore.Input{input}, Compile: func(v *flowstore.Values) pipeline.State {
		return a.podState(addr, flowstore.Read[inputs.EgressIPs](v, input))
	}})
}

func addrsOf(texts []string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

func sortedTexts(texts []string) []string {
	all := slices.Clone(texts)
	slices.Sort(all)
	return all
}

// connect opens a connection of a pod that leaves this node with the egress IP.
func (c *cluster) connect(pod, egressIP string, port uint16) {
	src, ip, server := netip.MustParseAddr("10.128.0."+pod), netip.MustParseAddr(egressIP), netip.MustParseAddr("203.0.113.5")
	c.bridge.Connect(ovs.Connections{
		Zone: pipeline.EgressIPZones().First + 0x264, Protocol: 6,
		Original: ovs.Tuple{Src: src, Dst: server, SrcPort: port, DstPort: 443}, Reply: ovs.Tuple{Src: server, Dst: ip, SrcPort: 443, DstPort: port},
	})
}

// wantConnections waits for the source ports of the tracked connections.
func (a *agent) wantConnections(ports ...uint16) {
	a.t.Helper()
	await.OK(a.t, testTimeout, func(context.Context) error {
		var got []uint16
		for _, c := range a.bridge.Tracked() {
			got = append(got, c.Original.SrcPort)
		}
		slices.Sort(got)
		if !slices.Equal(got, ports) {
			return fmt.Errorf("got connections %v, want %v", got, ports)
		}
		return nil
	})
}

// Connections are flushed when their egress IP is no longer that of their namespace, and survive a move of the IP.
func TestEvaluateConnections(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.pods["10.128.0.5"], c.pods["10.128.0.6"] = "shop", "bank"
	c.hostSubnets.Add(hostSubnet("node1", "192.0.2.100", "192.0.2.101"))
	c.netNamespaces.Add(netNamespace("shop@u1", "192.0.2.100"))
	c.netNamespaces.Add(netNamespace("bank@u2", "192.0.2.101"))
	// A previous agent's: of a deleted pod, and of a namespace that had the IP.
	c.connect("9", "192.0.2.100", 1)
	c.connect("6", "192.0.2.100", 2)
	c.connect("5", "192.0.2.100", 3)
	c.connect("6", "192.0.2.101", 4)
	c.connect("6", "192.0.2.109", 5)
	a, _ := c.start(t, "shop@u1/5", "bank@u2/6")
	a.wantConnections(3, 4)

	c.hostSubnets.Modify(hostSubnet("node1", "192.0.2.101"))
	c.hostSubnets.Add(hostSubnet("node2", "192.0.2.100"))
	a.want("192.0.2.100->192.0.2.2", "192.0.2.101->", "5=192.0.2.100", "6=192.0.2.101")
	c.netNamespaces.Modify(netNamespace("bank@u2", "192.0.2.102"))
	a.wantConnections(3) // evaluated since .101 has changed
	// The IP comes back to this node, as another namespace's.
	c.connect("6", "192.0.2.100", 6)
	c.netNamespaces.Modify(netNamespace("shop@u1"))
	a.want("5=node", "6="+unusable)
	c.netNamespaces.Modify(netNamespace("bank@u2", "192.0.2.100"))
	a.want("192.0.2.100->192.0.2.2", "5=node", "6=192.0.2.100")
	c.hostSubnets.Modify(hostSubnet("node2"))
	c.hostSubnets.Modify(hostSubnet("node1", "192.0.2.100"))
	a.wantConnections(6)
}

func (a *agent) setTimeout(d time.Duration) {
	a.addresses.mu.Lock()
	defer a.addresses.mu.Unlock()
	a.addresses.timeout = d
}

// The host gets an egress IP after its flows, and loses it after them; it loses it also if the switch does not change.
func TestAddresses_followFlows(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.hostSubnets.Add(hostSubnet("node1"))
	c.hostSubnets.Add(hostSubnet("node2", "192.0.2.100", "192.0.2.101"))
	c.netNamespaces.Add(netNamespace("shop@u1", "192.0.2.100", "192.0.2.101"))
	a, start, _ := c.boot(t)
	a.setTimeout(testTimeout)
	start()
	a.wantHost("host [] flows []")
	c.hostSubnets.Modify(hostSubnet("node2"))
	c.hostSubnets.Modify(hostSubnet("node1", "192.0.2.100", "192.0.2.101"))
	a.wantHost("host [192.0.2.100 192.0.2.101] flows [192.0.2.100 192.0.2.101]")
	c.hostSubnets.Modify(hostSubnet("node1", "192.0.2.100"))
	a.wantHost("host [192.0.2.100] flows [192.0.2.100]")

	a.setTimeout(testTimeout / 1000)
	c.bridge.SetUnavailable(true)
	c.hostSubnets.Modify(hostSubnet("node1", "192.0.2.101"))
	a.wantHost("host [] flows [192.0.2.100]")
	c.bridge.SetUnavailable(false)
	a.wantHost("host [192.0.2.101] flows [192.0.2.101]")
}

func TestReportPlacement(t *testing.T) {
	c := newCluster(t)
	c.hostSubnets.Add(hostSubnet("node1", "192.0.2.100"))
	c.netNamespaces.Add(netNamespace("shop@u1", "192.0.2.100"))
	a, _ := c.start(t)
	a.wantHost("host [192.0.2.100] flows [192.0.2.100]")
	ip, notHosted := netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("192.0.2.101")
	for range 2 {
		a.ReportPlacement(ip, errors.New("no interface is in its network"))
		a.ReportPlacement(notHosted, errors.New("no interface is in its network"))
	}
	want := "EgressIPNotPlaced: egress IP 192.0.2.100, which this node hosts, is not placed: no interface is in its network"
	if len(c.event) != 1 || c.event[0] != want {
		t.Errorf("got Events %q, want %q", c.event, want)
	}
	if hosted, notPlaced := a.Hosted(); hosted != 1 || notPlaced != 1 {
		t.Errorf("got %d hosted and %d not placed, want 1 and 1", hosted, notPlaced)
	}
	if got, want := a.NotPlaced(), []diagnostics.EgressIPNotPlaced{{IP: "192.0.2.100", Problem: "no interface is in its network"}}; !slices.Equal(got, want) {
		t.Errorf("got %v not placed, want %v", got, want)
	}
	a.ReportPlacement(ip, nil)
	if _, notPlaced := a.Hosted(); notPlaced != 0 {
		t.Errorf("got %d not placed, want 0", notPlaced)
	}
}

// A pod's ADD waits until the egress IPs of its Namespace are known: its packets must not leave with another source.
func TestResolve_beforeTheWatch(t *testing.T) {
	c := newCluster(t)
	c.api["asks"], c.api["free"], c.api["again"] = netNamespace("asks@u1", "192.0.2.100"), netNamespace("free@u2"), netNamespace("again@u4")
	c.netNamespaces.Add(netNamespace("again@u3", "192.0.2.100"))
	a, _ := c.start(t)
	for _, input := range []flowstore.Input{
		inputs.NamespaceEgressIPs("asks", "u1"), inputs.NamespaceEgressIPs("unknown", "u9"), inputs.NamespaceEgressIPs("free", "u8"), inputs.NamespaceEgressIPs("again", "u4"),
	} {
		if err := a.store.Require(t.Context(), input); err == nil {
			t.Errorf("%s is known", input)
		}
	}
	for _, input := range []flowstore.Input{inputs.NamespaceEgressIPs("free", "u2"), inputs.NamespaceEgressIPs("again", "u3"), inputs.NamespaceEgressIPs("again", "")} {
		if err := a.store.Require(t.Context(), input); err != nil {
			t.Errorf("%s: %v", input, err)
		}
	}
	a.attach("free@u2/5")
	a.want("5=node")
	c.hostSubnets.Add(hostSubnet("node1", "192.0.2.101"))
	c.netNamespaces.Add(netNamespace("free@u2", "192.0.2.101"))
	a.want("5=192.0.2.101", "192.0.2.101->")
}

// After an egress IP has moved between two nodes many times, flows and host have the last state.
func TestEgressIPs_flapping(t *testing.T) {
	c := newCluster(t)
	c.hostSubnets.Add(hostSubnet("node1"))
	c.hostSubnets.Add(hostSubnet("node2", "192.0.2.100", "192.0.2.101"))
	c.netNamespaces.Add(netNamespace("shop@u1", "192.0.2.100"))
	a, _ := c.start(t, "shop@u1/5")
	a.want("5=192.0.2.100", "192.0.2.100->192.0.2.2")
	for range 50 {
		c.hostSubnets.Modify(hostSubnet("node2"))
		c.hostSubnets.Modify(hostSubnet("node1", "192.0.2.100"))
		c.netNamespaces.Modify(netNamespace("shop@u1"))
		c.hostSubnets.Modify(hostSubnet("node1"))
		c.hostSubnets.Modify(hostSubnet("node2", "192.0.2.100"))
		c.netNamespaces.Modify(netNamespace("shop@u1", "192.0.2.100"))
	}
	a.want("5=192.0.2.100", "192.0.2.100->192.0.2.2")
	c.hostSubnets.Modify(hostSubnet("node2"))
	c.hostSubnets.Modify(hostSubnet("node1", "192.0.2.100", "192.0.2.101"))
	c.netNamespaces.Modify(netNamespace("shop@u1", "192.0.2.101"))
	a.want("5=192.0.2.101", "192.0.2.101->")
	a.wantHost("host [192.0.2.101] flows [192.0.2.101]")
	if got := len(a.addresses.pending); got > 0 {
		t.Errorf("%d commits remain in memory", got)
	}
}

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/test/attacks"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
	"github.com/ovsdn/ovsdn/test/tier"
)

// attacksPart is the name of the part that only the short tier has.
const attacksPart = "attacks"

// capabilitiesLab is the name of the lab that TestCapabilities brings up.
const capabilitiesLab = "e2e-short"

// The sizes of TestCapabilities.
const (
	capabilityTenants = 3 // with a pod on each node
	capabilityCases   = 5
	capabilityFirsts  = 10
)

// part is a capability of TestCapabilities.
type part struct {
	name string
	see  func(*testing.T, *trio)
}

// sideBySide is of parts that mostly wait, and neither disturb each other nor capture frames: captures of a busy machine lose some.
func sideBySide(name string, parts ...part) part {
	return part{name, func(t *testing.T, x *trio) {
		for _, p := range parts {
			t.Run(p.name, func(t *testing.T) {
				tier.Parallel(t)
				p.see(t, x)
			})
		}
	}}
}

// TestCapabilities sees each capability once with packets, in one lab: from the installation on a cluster without a network, through all modes, to the
// uninstallation. It counts no lost packets and compares no times, which the complete tier does: TCP connections continue, and deadlines are long.
func TestCapabilities(t *testing.T) {
	c := ownCluster(t, capabilitiesLab, lab.Shape{Nodes: 3, Mode: lab.Subnet, ServiceProxy: lab.External, Install: lab.None})
	before := c.allSettings(t)
	t.Run("installed", func(t *testing.T) {
		x := c.install(t)
		parts := slices.Concat(pathParts(), faultParts(), modeParts())
		if !testing.Short() { // TestAttacks tries all of them
			parts = slices.DeleteFunc(parts, func(p part) bool { return p.name == attacksPart })
		}
		for _, p := range parts {
			t.Run(p.name, func(t *testing.T) { p.see(t, x) })
		}
	})
	if t.Failed() {
		return // pods of a failed part would delay the uninstallation
	}
	t.Run("uninstallation", func(t *testing.T) {
		c.uninstall(t)
		c.haveSettings(t, before)
	})
}

// pathParts are about packets while nothing changes.
func pathParts() []part {
	return []part{
		{"connectivity", testConnectivity},
		sideBySide("use",
			part{"host ports", testHostPorts},
			part{"bandwidth", seeBandwidth},
			part{"services", testServices},
			part{"masquerade", testMasquerade},
			part{"DNS", testDNS},
			part{"metrics", testMetrics},
			part{"diagnostics", testDiagnostics}),
		{"macvlan", seeMacvlan},
		{"forged source", testSpoofedSource},
		{"forged ARP", testSpoofedARP},
		{"VXLAN from a pod", testVXLANFromPod},
		{"switch layout", func(t *testing.T, x *trio) { testSwitchLayout(t, x.cluster) }},
		{"bridge", func(t *testing.T, x *trio) { testBridgeFacts(t, x.cluster) }},
		{"host", func(t *testing.T, x *trio) { testHostFacts(t, x.cluster) }},
		{"firewall", func(t *testing.T, x *trio) { testFirewall(t, x, fixture.SyncTime) }},
	}
}

// faultParts are about nodes and programs that come and go.
func faultParts() []part {
	return []part{
		{"a node joins and leaves", testNodeJoinsAndLeaves},
		{"agent killed", seeAgentKilled},
		{"vswitchd restarted", func(t *testing.T, x *trio) { testForwardsNothingWrong(t, x, (*lab.Service).Restart) }},
		{"faults", seeFaults},
		{"Node deleted", seeNodeDeleted},
		{"bridge changed by another program", seeForeignChanges},
		{"sysctl changed by another program", seeForeignSysctl},
		{"leader killed", func(t *testing.T, x *trio) { testControllerKilled(t, x.cluster, func() { x.killLeader(t) }) }},
	}
}

// modeParts change the mode as a user does, from subnet on.
func modeParts() []part {
	return []part{
		{"mode multitenant", func(t *testing.T, x *trio) { seeMode(t, x, config.ModeMultitenant) }},
		{"tenants", seeTenants},
		{attacksPart, func(t *testing.T, x *trio) { attacks.Try(t, x.Cluster) }},
		{"namespace created again", seeNamespaceAgain},
		{"mode networkpolicy", func(t *testing.T, x *trio) { seeMode(t, x, config.ModeNetworkPolicy) }},
		sideBySide("rules",
			part{"revoked connections", seeRevocations},
			part{"policies", seePolicies},
			part{"egress firewall", seeEgressFirewall},
			part{"traces", testTraces},
			part{"newborn pods", func(t *testing.T, x *trio) { tryFirstPackets(t, x.cluster, capabilityFirsts) }}),
		{"verification", testVerification},
		{"egress IPs", seeEgressIPs},
		{"pod replaced", seePodReplaced},
	}
}

// seeAgentKilled kills an agent while TCP connections are in use: they continue, and the agent serves pods again.
func seeAgentKilled(t *testing.T, x *trio) {
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	talks := x.talks(t)
	x.killAgent(t, fixture.Node1)
	x.serves(t, fixture.Node1)
	talks.goOn(t)
	x.returnsTo(t, before)
}

// talks begins conversations of the trio on one node and on two.
func (x *trio) talks(t *testing.T) conversations {
	t.Helper()
	return conversations{talk(t, x.a.End(), x.b.End()), talk(t, x.a.End(), x.c.End())}
}

// goOn returns when all conversations have continued, and ends them.
func (talks conversations) goOn(t *testing.T) {
	t.Helper()
	for _, c := range talks {
		c.goesOn(t)
		c.ends(t)
	}
}

// seeFaults injects some faults of the matrix while the agent runs.
func seeFaults(t *testing.T, x *trio) {
	x.settle(t)
	m := &faultMatrix{
		cluster: x.cluster, namespace: x.namespace, node: x.node1, a: x.a, b: x.b, c: x.c, subnets: map[string]string{}, brief: true,
	}
	names := []string{"br0 deleted", "a port deleted", "CNI configuration deleted", "own HostSubnet invalid"}
	for _, f := range faults() {
		if at := slices.Index(names, f.name); at >= 0 {
			names = slices.Delete(names, at, at+1)
			t.Run(f.name, func(t *testing.T) { m.test(t, f, false) })
		}
	}
	if len(names) > 0 {
		t.Errorf("the matrix has no faults %q", names)
	}
}

// seeNodeDeleted: a Node that is deleted and registers again retains its subnet, and its pods their connections.
func seeNodeDeleted(t *testing.T, x *trio) {
	talks := x.talks(t)
	x.deleteNode(t)
	talks.goOn(t)
}

// seeForeignChanges changes the bridge as an operator might by mistake: everything is repaired.
func seeForeignChanges(t *testing.T, x *trio) {
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	for _, command := range []string{
		"ovs-ofctl -O OpenFlow13 del-flows br0 && ovs-ofctl -O OpenFlow13 del-groups br0",
		"ovs-ofctl -O OpenFlow13 del-meters br0 && ovs-vsctl set-fail-mode br0 standalone", // vswitchd deletes the flows by itself
	} {
		x.Output(t, fixture.Node1, "sh", "-c", command)
		x.returnsTo(t, before)
		fixture.Meet(t, x.a.NetNS, x.b.Addr)
		fixture.Meet(t, x.c.NetNS, x.a.Addr)
	}
	x.warned(t, eventreason.FlowsRestored)
}

// seeForeignSysctl disables forwarding of tun0, as hardening of hosts does: pods reach the world again.
func seeForeignSysctl(t *testing.T, x *trio) {
	const forwarding = "net.ipv4.conf.tun0.forwarding"
	x.Output(t, fixture.Node1, "sysctl", "--write", forwarding+"=0")
	fixture.Eventually(t, fixture.SyncTime, "tun0 forwards", func(ctx context.Context) error {
		value, err := x.TryOutput(ctx, fixture.Node1, "sysctl", "--values", forwarding)
		if err == nil && strings.TrimSpace(value) != "1" {
			err = fmt.Errorf("%s is %q", forwarding, value)
		}
		return err
	})
	fixture.Meet(t, x.a.NetNS, lab.OutsideAddr())
}

// seeMode changes the mode: connections of one namespace continue.
func seeMode(t *testing.T, x *trio, mode config.Mode) {
	talks := x.talks(t)
	x.haveMode(t, mode)
	talks.goOn(t)
}

// seeTenants changes VNIDs, and looks at the edges of tenants' networks.
func seeTenants(t *testing.T, x *trio) {
	m := newMatrix(t, x.cluster, capabilityTenants, len(x.Nodes()))
	t.Run("VNIDs", func(t *testing.T) {
		r := newRecorder(t, m)
		r.check(t)
		r.change(t, 0, "join:"+m.tenants[1].namespace)
		r.change(t, 0, "isolate")
		r.change(t, 2, "global")
	})
	m.edges(t)
}

// seePolicies plays some cases against the oracle.
func seePolicies(t *testing.T, x *trio) {
	g := newGrid(t, x.cluster)
	g.play(t, covering(g.cases())[:capabilityCases])
}

// seeRevocations: a TCP connection ends when its acceptor's policy forbids it, and when its opener's does.
func seeRevocations(t *testing.T, x *trio) {
	a := newAudience(t, x.cluster)
	for _, tc := range a.cuts() {
		if tc.how == overTCP && tc.before != nil {
			t.Run(tc.name, func(t *testing.T) { a.revoke(t, tc, fixture.SyncTime) })
		}
	}
}

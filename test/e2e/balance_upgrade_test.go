package e2e

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// upgradedName is the name of the deployment and its service.
const upgradedName = "upgraded"

// slowRate is how many connections per second the clients beside the first one open.
const slowRate = 50

// upgradeDrain is drainTime while agents are replaced: until the new one has started, for ten seconds on a busy machine, its node has the previous endpoints.
const upgradeDrain = 4 * drainTime

// testBalancedUpgrade: while a deployment is restarted, all agents are upgraded to a version with other tables, and back. No connection to its services fails, of pods or
// of a host outside, with session affinity or without, and connections from before continue.
func testBalancedUpgrade(t *testing.T, x *trio) {
	changed := x.buildWith(t, buildChanged(t, toUnused()))
	addr := x.deployWeb(t, upgradedName, upgradeDrain)
	nodePort := x.openNodePort(t, upgradedName)
	affine := x.CreateService(t, x.namespace, "affine", servicePort{Protocol: "TCP", Port: 80, Target: fixture.HTTPPort}, map[string]string{"app": upgradedName})
	x.patchService(t, "affine", `{"spec":{"sessionAffinity":"ClientIP"}}`)
	talks := x.talkToServices(t)
	type client struct {
		from end
		to   netip.AddrPort
		rate int
	}
	clients := []client{{x.b.End(), netip.AddrPortFrom(addr, 80), offeredRate - 3*slowRate}, {x.c.End(), netip.AddrPortFrom(affine, 80), slowRate}}
	for _, node := range []string{fixture.Node1, fixture.Node2} {
		clients = append(clients, client{x.outsideEnd(), netip.AddrPortFrom(x.Addr(t, node), nodePort), slowRate})
	}
	for _, c := range clients {
		fixture.Eventually(t, fixture.SyncTime, c.to.String()+" answers "+c.from.Name, fixture.AsksHTTP(c.from.NetNS, c.to.Addr(), c.to.Port()))
	}
	for _, to := range []struct {
		build    lab.Build
		hasAdded bool
	}{{changed, true}, {lab.Build{}, false}} {
		x.preload(t, to.build)
		var loads []*load
		for _, c := range clients {
			loads = append(loads, x.startLoad(t, c.from, c.to, c.rate))
		}
		restarts := x.upgradeUnderRestarts(t, upgradedName, to.build, to.hasAdded)
		t.Logf("upgraded during %d restarts of the deployment", restarts)
		for _, l := range loads {
			l.stop(t)
		}
		fastEnough(t, loads...)
	}
	talks.stay(t)
}

// upgradeUnderRestarts restarts a deployment again and again until all agents are of that build, which has the added table or not. It returns the number of
// restarts.
func (x *trio) upgradeUnderRestarts(t *testing.T, name string, b lab.Build, hasAdded bool) int {
	t.Helper()
	return x.whileRestarted(t, name, func() {
		x.reload(t, b)
		for _, node := range []string{fixture.Node1, fixture.Node2} {
			x.hasTable(t, node, addedTable, hasAdded)
		}
	})
}

// talkToServices begins conversations by services: of pods on both nodes, a pod with itself, a node and the host outside, with endpoints on both nodes.
func (x *trio) talkToServices(t *testing.T) conversations {
	t.Helper()
	const each, port = 4, 7001
	p := servicePort{Protocol: "TCP", Port: 80, Target: port}
	toA, toC := netip.AddrPortFrom(x.Expose(t, x.namespace, "lasting-a", p, x.a), 80), netip.AddrPortFrom(x.Expose(t, x.namespace, "lasting-c", p, x.c), 80)
	portA, portC := x.openNodePort(t, "lasting-a"), x.openNodePort(t, "lasting-c")
	node2 := x.Addr(t, fixture.Node2)
	var talks conversations
	for _, tc := range []struct {
		from, to end
		by       netip.AddrPort
	}{
		{x.b.End(), x.a.End(), toA},
		{x.a.End(), x.c.End(), toC},
		{x.c.End(), x.c.End(), toC},
		{x.nodeEnd(t, x.node1), x.c.End(), toC},
		{x.outsideEnd(), x.a.End(), netip.AddrPortFrom(node2, portA)},
		{x.outsideEnd(), x.c.End(), netip.AddrPortFrom(node2, portC)},
		{x.c.End(), x.a.End(), netip.AddrPortFrom(node2, portA)},
	} {
		for range each {
			// Seldom, since the clients that open connections need the processors.
			talks = append(talks, words{512, 500 * time.Millisecond}.talkBy(t, tc.from, tc.to, port, tc.by))
		}
	}
	return talks
}

// outsideEnd is the host outside, with its address towards nodes.
func (x *trio) outsideEnd() end {
	return end{Name: "outside", NetNS: x.outside.NetNS, Addr: fabricOutside()}
}

// openNodePort makes the service one of type NodePort, and returns its port.
func (x *trio) openNodePort(t *testing.T, name string) uint16 {
	t.Helper()
	svc := x.patchService(t, name, `{"spec":{"type":"NodePort"}}`)
	return uint16(svc.Spec.Ports[0].NodePort)
}

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

// testBalancedUpgrade: while a deployment is restarted, all agents are upgraded to a version with other tables, and back. No connection to its services fails, of pods or
// of a host outside, with session affinity or without, and connections from before continue.
func testBalancedUpgrade(t *testing.T, x *trio) {
	changed := x.buildWith(t, buildChanged(t, toUnused()))
	addr := x.deployWeb(t, upgradedName, drainTime)
	nodePort := x.openNodePort(t, upgradedName)
	affine := x.CreateService(t, x.namespace, "affine", servicePort{Protocol: "TCP", Port: 80, Target: fixture.HTTPPort}, map[string]string{"app": upgradedName})
	x.patchService(t, "affine", `{"spec":{"sessionAffinity":"ClientIP"}}`)
	talks := x.talkToServices(t)
	type client struct {
		from end
		to   netip.AddrPort
		rate int
	}
	clients := []client{{x.b.End(), netip.AddrPortFrom(addr, 80), connectionRate}, {x.c.End(), netip.AddrPortFrom(affine, 80), slowRate}}
	for _, node := range []string{fixture.Node1, fixture.Node2} {
		clients = append(clients, client{x.outsideEnd(), netip.AddrPortFrom(x.Addr(t, node), nodePort), slowRate})
	}
	var loads []*load
	for _, c := range clients {
		fixture.Eventually(t, fixture.SyncTime, c.to.String()+" answers "+c.from.Name, fixture.AsksHTTP(c.from.NetNS, c.to.Addr(), c.to.Port()))
		loads = append(loads, x.startLoad(t, c.from, c.to, c.rate))
	}
	x.upgradeUnderRestarts(t, upgradedName, changed, true)
	x.upgradeUnderRestarts(t, upgradedName, lab.Build{}, false)
	for _, l := range loads {
		l.stop(t)
	}
	talks.stay(t)
}

// upgradeUnderRestarts restarts a deployment again and again until all agents are of that build, which has the added table or not. It returns the number of
// restarts.
func (x *trio) upgradeUnderRestarts(t *testing.T, name string, b lab.Build, hasAdded bool) (restarts int) {
	t.Helper()
	began, upgraded := time.Now(), make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		upgraded <- x.tryReload(t, b)
	}()
	defer func() { <-ended }() // also if a restart fails
	for {
		x.restartWeb(t, name)
		restarts++
		select {
		case err := <-upgraded:
			if err != nil {
				t.Fatal(err)
			}
			for _, node := range []string{fixture.Node1, fixture.Node2} {
				x.hasTable(t, node, addedTable, hasAdded)
			}
			t.Logf("upgraded in %.1fs, with %d restarts of the deployment", time.Since(began).Seconds(), restarts)
			return restarts
		default:
		}
	}
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
			talks = append(talks, words{512, 100 * time.Millisecond}.talkBy(t, tc.from, tc.to, port, tc.by))
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

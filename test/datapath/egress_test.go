package datapath_test

import (
	"net/netip"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	sdn "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/tier"
)

// TestEgressFirewall: of two pods with the same VNID, a firewall denies a host outside to the first only. The pod answers that host where connections are tracked.
func TestEgressFirewall(t *testing.T) {
	tier.Parallel(t)
	p := &product{Network: datapath.New(t, 1)}
	node := p.Nodes[0]
	node.AddPod(t)
	node.AddPod(t)
	p.Outside.RouteTo(t, node)
	first, second := node.Pods[0], node.Pods[1]
	apply := func(deny bool) {
		t.Helper()
		n := p.compiler(node)
		f := sdn.EgressFirewall{ID: 1, Rules: []sdn.EgressFirewallRule{{To: []netip.Prefix{netip.PrefixFrom(p.Outside.Addr, 32)}, Deny: deny}}}
		states := []sdn.State{f.Compile(sdn.EgressVerdicts{}).State()}
		for _, pod := range node.Pods {
			compiled := sdn.Pod{OFPort: pod.OFPort, MAC: pod.MAC, Addrs: []netip.Addr{pod.Addr}, VNID: 0x20}
			if pod == first {
				compiled.EgressFirewall = f.ID
			}
			s := n.Pod(compiled)
			for _, other := range states {
				s.Flows = unshared(other.Flows, s.Flows)
			}
			states = append(states, s)
		}
		p.install(t, node, states, nil)
		node.Revalidate(t)
	}
	for _, mode := range []config.Mode{config.ModeSubnet, config.ModeNetworkPolicy, config.ModeMultitenant} {
		t.Run(mode.String(), func(t *testing.T) {
			p.mode = mode
			world := p.Outside.UDP(t, 0)
			limited, free := first.UDP(t, 0), second.UDP(t, 0)
			apply(false)
			limited.MustReach(t, world.Addr(), world)
			world.MustReach(t, limited.Addr(), limited)
			apply(true)
			limited.MustNotReach(t, world.Addr(), world)
			free.MustReach(t, world.Addr(), world)
			limited.MustReach(t, free.Addr(), free)
			if mode == config.ModeNetworkPolicy { // in mode multitenant hosts outside do not reach tenants
				client, server := p.Outside.UDP(t, 0), first.UDP(t, 0)
				client.MustReach(t, server.Addr(), server)
				server.MustReach(t, client.Addr(), client)
				server.MustNotReach(t, world.Addr(), world)
			}
		})
	}
}

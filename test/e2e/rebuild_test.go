package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// The bridge or OVSDB's file is lost while the agent of the node is away. The agent that starts gives the running pods their network
// back, with the same addresses, and an Event on the Node says so.
func TestBridgeLostWhileAgentIsAway(t *testing.T) {
	x := newTrio(t)
	x.settle(t)
	for _, tc := range []struct {
		name string
		lose func(t *testing.T)
	}{
		{"br0 deleted", func(t *testing.T) { x.exec(t, node1, "ovs-vsctl", "--timeout=20", "del-br", "br0") }},
		{"conf.db lost", func(t *testing.T) {
			x.service(t, node1, vswitchdService, (*lab.Service).Stop)
			x.service(t, node1, databaseService, (*lab.Service).Stop)
			x.exec(t, node1, "sh", "-ec", "rm /etc/openvswitch/conf.db; ovsdb-tool create /etc/openvswitch/conf.db /usr/share/openvswitch/vswitch.ovsschema")
			x.service(t, node1, databaseService, (*lab.Service).Start)
			x.exec(t, node1, "ovs-vsctl", "--timeout=20", "--retry", "--no-wait", "init")
			x.service(t, node1, vswitchdService, (*lab.Service).Start)
			x.exec(t, node1, "ovs-vsctl", "--timeout=20", "set", "Open_vSwitch", ".", "external_ids:system-id="+node1, "external_ids:hostname="+node1)
			x.mendUnderlay(t, node1)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := x.footprints(t, node1, node2)
			began := time.Now()
			pings, err := x.a.netns.PingEvery(t.Context(), fineInterval, x.c.addr)
			if err != nil {
				t.Fatal(err)
			}
			x.service(t, node1, agentService, (*lab.Service).Stop)
			t.Cleanup(func() { x.service(t, node1, agentService, (*lab.Service).Start) })
			tc.lose(t)
			x.service(t, node1, agentService, (*lab.Service).Start)
			x.serves(t, node1)
			for _, path := range [][2]end{{x.a.end(), x.b.end()}, {x.a.end(), x.c.end()}, {x.c.end(), x.a.end()}, {x.b.end(), {"the node itself", x.b.netns, x.b.gateway()}}} {
				eventually(t, podTime, path[0].name+" reaches "+path[1].name, func(ctx context.Context) error {
					ctx, cancel := context.WithTimeout(ctx, time.Second)
					defer cancel()
					return path[0].netns.Ping(ctx, path[1].addr, wire.Echo{})
				})
			}
			sent, lost, err := pings.Stop()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("of %d pings %d were lost, the gap was %v", sent, len(lost), longest(lost))
			x.returnsTo(t, before)
			x.warned(t, began, "Node", node1, "had lost the ports of", x.namespace+"/"+x.a.name)
			later := x.run(t, x.namespace, netexec("later", node1))[0]
			meet(t, later.netns, x.c.addr)
			if err := x.deletePod(t.Context(), x.namespace, later.name); err != nil {
				t.Fatal(err)
			}
			x.returnsTo(t, before)
		})
	}
}

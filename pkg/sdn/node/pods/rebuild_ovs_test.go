package pods

import (
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// The bridge or OVSDB's file is lost, while the agent is stopped or while it runs. Running pods regain their network: same interface,
// address, MAC and flows. DEL then removes everything.
func TestRebuild_bridgeLost(t *testing.T) {
	tier.Parallel(t)
	for name, lose := range map[string]func(*testing.T, *ovstest.Switch){
		"bridge deleted": func(t *testing.T, s *ovstest.Switch) { s.VSCtl(t, "del-br", ovstest.Bridge) },
		"database lost":  func(t *testing.T, s *ovstest.Switch) { s.LoseDB(t) },
	} {
		t.Run(name+" while the agent is stopped", func(t *testing.T) { testBridgeLost(t, lose, true) })
		t.Run(name+" while the agent runs", func(t *testing.T) { testBridgeLost(t, lose, false) })
	}
}

func testBridgeLost(t *testing.T, lose func(*testing.T, *ovstest.Switch), stopped bool) {
	n, s := newOVSNode(t)
	agent, stop := n.start(t)
	static, err := n.compiler().Static()
	if err != nil {
		t.Fatal(err)
	}
	node := pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}
	if err := agent.store.Set(node, static).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	empty := n.residue(t)
	a, b := newNetns(t), newNetns(t)
	reqA, reqB := n.addPod("a", a), n.addPod("b", b)
	checkA := check(t, reqA, add(t, agent, reqA))
	add(t, agent, reqB)
	connect(t, a, b, "10.128.2.3")
	const show = "ip -o link; ip -o addr; ip route"
	links, before := run(t, a, show), n.residue(t)

	if stopped {
		stop()
	}
	lose(t, s)
	n.ensureFixture(t)
	if stopped {
		agent, _ = n.boot(t)
		agent.store.Set(node, static)
		err = agent.Recover(t.Context())
	} else {
		agent.store.Resync()
		err = agent.reconcile(t.Context(), allValid)
	}
	if err != nil {
		t.Fatal(err)
	}
	awaitCheck(t, agent, checkA)
	connect(t, a, b, "10.128.2.3")
	connect(t, b, a, "10.128.2.2")
	if after := run(t, a, show); after != links {
		t.Errorf("in the pod's namespace: got\n%s\nwant\n%s", after, links)
	}
	if diff := cmp.Diff(before, n.residue(t), cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("on the node (-before +after):\n%s", diff)
	}
	if stopped {
		agent.events.want(t, "node: PodPortsRebuilt: the bridge of node node1 had lost the ports of 2 running pods")
	}
	for _, req := range []*cniserver.Request{reqA, reqB} {
		del(t, agent, req)
	}
	if diff := cmp.Diff(empty, n.residue(t), cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("left after DEL (-before +after):\n%s", diff)
	}
}

func leasesOf(residue []string) []string {
	return slices.DeleteFunc(residue, func(r string) bool { return !strings.HasPrefix(r, "lease ") })
}

// ensureFixture creates the bridge and its two fixed ports.
func (n *node) ensureFixture(t testing.TB) {
	t.Helper()
	n.ensureBridge(t)
	for _, p := range []ovs.Port{
		{Name: "vxlan0", Type: "vxlan", OFPort: pipeline.PortVXLAN, Options: map[string]string{"remote_ip": "flow", "key": "flow"}},
		{Name: "tun0", Type: "internal", OFPort: pipeline.PortTun},
	} {
		if _, err := n.bridge.AddPort(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
}

// The interface of a running pod is deleted, while the agent runs or while it is stopped, on the node or in the pod: its address is
// released, and an Event on the pod reports it.
func TestReconcile_interfaceDeleted(t *testing.T) {
	tier.Parallel(t)
	for name, tc := range map[string]struct {
		stopped bool
		in      func(n *node, pod ns.NetNS) ns.NetNS
	}{
		"while the agent runs, on the node": {false, func(n *node, _ ns.NetNS) ns.NetNS { return n.host }},
		"while the agent runs, in the pod":  {false, func(_ *node, pod ns.NetNS) ns.NetNS { return pod }},
		"while the agent is stopped":        {true, func(n *node, _ ns.NetNS) ns.NetNS { return n.host }},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			a, stop := n.start(t)
			pod := newNetns(t)
			req, ended := n.addPod("web", pod), n.addPod("ended", newNetns(t))
			add(t, a, req)
			add(t, a, ended)
			n.run("web", "10.128.2.2")
			in := tc.in(n, pod)
			link := "eth0"
			if in == n.host {
				link = sandbox.Attachment{Sandbox: req.ContainerID, IfName: req.IfName}.HostVeth()
			}
			if tc.stopped {
				stop()
			}
			run(t, in, "ip link delete "+link)
			run(t, n.host, "ip link delete "+sandbox.Attachment{Sandbox: ended.ContainerID, IfName: ended.IfName}.HostVeth())
			if tc.stopped {
				a, _ = n.start(t)
			} else if err := a.reconcile(t.Context(), allValid); err != nil {
				t.Fatal(err)
			}
			a.events.want(t, "pod web: NetworkInterfaceDeleted: pod default/web has no network: its interface eth0 was deleted")
			if got := a.events.count("pod ended: "); got != 0 {
				t.Errorf("got %d Events on a pod that does not run, want 0", got)
			}
			if left := leasesOf(n.residue(t)); len(left) > 0 {
				t.Errorf("got leases %v, want none", left)
			}
			del(t, a, req)
			del(t, a, ended)
			n.wantClean(t)
		})
	}
}

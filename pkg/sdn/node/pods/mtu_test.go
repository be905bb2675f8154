package pods

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/test/tier"
)

// Recover sets the agent's MTU on the interfaces and routes of all pods.
func TestRecover_mtu(t *testing.T) {
	tier.Parallel(t)
	n := newNode(t)
	type attached struct {
		req   *cniserver.Request
		netns ns.NetNS
	}
	var pods []attached
	for i, mtu := range []struct{ link, routes int }{{1450, 0}, {1450, 1400}, {1400, 0}, {8950, 1400}, {8950, 8900}, {8950, 0}, {1450, 1450}} {
		n.options.MTU, n.options.RouteMTU = mtu.link, mtu.routes
		a, stop := n.start(t)
		netns := newNetns(t)
		req := n.addPod(fmt.Sprintf("pod%d", i), netns)
		result := add(t, a, req)
		pods = append(pods, attached{req, netns})
		if got := result.Interfaces[1].Mtu; got != mtu.link {
			t.Errorf("%v: got MTU %d in the result", mtu, got)
		}
		for _, r := range result.Routes {
			if r.MTU != mtu.routes {
				t.Errorf("%v: got MTU %d of route %v in the result", mtu, r.MTU, r.Dst)
			}
		}
		for _, p := range pods {
			if err := verify(t, a, p.req, p.netns); err != nil {
				t.Errorf("%v: verify %s: %v", mtu, p.req.ContainerID, err)
			}
			wantLinkMTU(t, n.host, sandbox.Attachment{Sandbox: p.req.ContainerID, IfName: p.req.IfName}.HostVeth(), mtu.link)
			wantLinkMTU(t, p.netns, "eth0", mtu.link)
			lines := strings.Split(strings.TrimSpace(run(t, p.netns, "ip route show dev eth0")), "\n")
			if len(lines) != 4 {
				t.Errorf("%v: got routes %q, want 4", mtu, lines)
			}
			for _, line := range lines {
				has := strings.Contains(line+" ", fmt.Sprintf(" mtu %d ", mtu.routes))
				if has != (mtu.routes != 0) || !has && strings.Contains(line, "mtu") {
					t.Errorf("%v: got route %q", mtu, line)
				}
			}
		}
		stop()
	}
	a, _ := n.start(t)
	for _, p := range pods {
		del(t, a, p.req)
	}
	n.wantClean(t)
}

// A pod whose netns path is missing, or is that of another pod, retains its MTU. Other pods are updated.
func TestRecover_mtuOfUnreachablePods(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	hidden, moved, fine := newNetns(t), newNetns(t), newNetns(t)
	requests := []*cniserver.Request{n.addPod("hidden", hidden), n.addPod("moved", moved), n.addPod("fine", fine)}
	for _, r := range requests {
		add(t, first, r)
	}
	stop()
	move := func(r *cniserver.Request, netns string) {
		t.Helper()
		ports, err := n.bridge.ListPorts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		name := sandbox.Attachment{Sandbox: r.ContainerID, IfName: r.IfName}.HostVeth()
		at := slices.IndexFunc(ports, func(p ovs.Port) bool { return p.Name == name })
		ports[at].ExternalIDs[sandbox.IDNetns] = netns
		if _, err := n.bridge.AddPort(t.Context(), ports[at]); err != nil {
			t.Fatal(err)
		}
	}
	move(requests[0], "/run/netns/no-such-pod")
	move(requests[1], path(fine))

	n.options.MTU = 1400
	second, _ := n.start(t)
	for _, p := range []struct {
		netns ns.NetNS
		want  int
	}{{hidden, 1450}, {moved, 1450}, {fine, 1400}} {
		wantLinkMTU(t, p.netns, "eth0", p.want)
	}
	if got := len(second.Pods()); got != 3 {
		t.Errorf("got %d pods, want 3", got)
	}
	for i, netns := range []ns.NetNS{hidden, moved} {
		if err := verify(t, second, requests[i], netns); err == nil || err.Error() != "eth0 has MTU 1450, want 1400" {
			t.Errorf("verify %s: got %v, want the wrong MTU", requests[i].ContainerID, err)
		}
	}
	for _, r := range requests {
		del(t, second, r)
	}
	n.wantClean(t)
}

func TestVerifyMTU(t *testing.T) {
	n := newNode(t)
	n.options.RouteMTU = 1400
	a, _ := n.start(t)
	pod := newNetns(t)
	req := n.addPod("web", pod)
	add(t, a, req)
	defer del(t, a, req)
	run(t, pod, "ip route replace default via 10.128.2.1 dev eth0 mtu 1450; ip link set eth0 mtu 1440")
	err := verify(t, a, req, pod)
	for _, text := range []string{"eth0 has MTU 1440, want 1450", "eth0 has MTU 1450 on its route to 0.0.0.0/0, want 1400"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want error with %q", err, text)
		}
	}
}

// verify compares the pod's end with its configuration, as CHECK does.
func verify(t *testing.T, a *agent, req *cniserver.Request, netns ns.NetNS) error {
	t.Helper()
	pod, ok := a.get(sandbox.Attachment{Sandbox: req.ContainerID, IfName: req.IfName})
	if !ok {
		t.Fatalf("%s is not attached", req.ContainerID)
	}
	return a.links.Verify(t.Context(), netns, a.InterfaceConfig(pod))
}

func wantLinkMTU(t *testing.T, netns ns.NetNS, link string, want int) {
	t.Helper()
	if got := run(t, netns, "ip link show dev "+link); !strings.Contains(got, fmt.Sprintf("mtu %d ", want)) {
		t.Errorf("got %s, want MTU %d", got, want)
	}
}

// run runs a command in a network namespace and returns what it prints.
func run(t *testing.T, netns ns.NetNS, command string) string {
	t.Helper()
	var out []byte
	err := netns.Do(func(ns.NetNS) (err error) {
		out, err = exec.Command("sh", "-ec", command).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

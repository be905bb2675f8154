package pods

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

// loseBridge deletes the ports that the switch has.
func (n *node) loseBridge(t *testing.T) {
	t.Helper()
	ports, err := n.bridge.ListPorts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ports {
		if err := n.bridge.DeletePort(t.Context(), p.Name); err != nil {
			t.Fatal(err)
		}
	}
}

// loseAlias removes the alias of the sandbox's host veth, as if a version without aliases had created it.
func (n *node) loseAlias(t *testing.T, req *cniserver.Request) {
	t.Helper()
	if err := (hostLinks{n.host, veth.Links{}}).SetAlias(t.Context(), sandbox.Attachment{Sandbox: req.ContainerID, IfName: req.IfName}.HostVeth(), ""); err != nil {
		t.Fatal(err)
	}
}

// awaitCheck waits until CHECK succeeds: Recover does not wait for flows.
func awaitCheck(t *testing.T, a *agent, req *cniserver.Request) {
	t.Helper()
	await.OK(t, patience, func(ctx context.Context) error { return a.Check(ctx, req) })
}

// wantAlive checks that the sandbox has its lease and interface, and its port if port is set.
func (n *node) wantAlive(t *testing.T, req *cniserver.Request, addr string, port bool) {
	t.Helper()
	veth := sandbox.Attachment{Sandbox: req.ContainerID, IfName: req.IfName}.HostVeth()
	residue := n.residue(t)
	if !slices.Contains(residue, "lease "+addr) || !slices.Contains(residue, "device "+veth) || slices.Contains(residue, "port "+veth) != port {
		t.Errorf("sandbox %s: want lease %s, device and port %s (port: %t), got %v", req.ContainerID, addr, veth, port, residue)
	}
}

// Pods that an earlier version attached have no alias: the Kubernetes API has one running pod with the address of the lease, or the sandbox
// has no port and an Event reports it.
func TestRebuild_podsWithoutAlias(t *testing.T) {
	tier.Parallel(t)
	for name, tc := range map[string]struct {
		api     func(n *node) // the API of the pod "web" with 10.128.2.2
		rebuilt bool
		event   string
	}{
		"running":               {func(n *node) { n.run("web", "10.128.2.2") }, true, "node: PodPortsRebuilt: "},
		"before its containers": {func(n *node) { n.run("web", "10.128.2.2").Status.Phase = corev1.PodPending }, true, "node: PodPortsRebuilt: "},
		"ended":                 {func(n *node) { n.run("web", "10.128.2.2").Status.Phase = corev1.PodSucceeded }, false, "node: NetworkRebuildFailed: "},
		"failed":                {func(n *node) { n.run("web", "10.128.2.2").Status.Phase = corev1.PodFailed }, false, "node: NetworkRebuildFailed: "},
		"on another node":       {func(n *node) { n.run("web", "10.128.2.2").Spec.NodeName = "node2" }, false, "node: NetworkRebuildFailed: "},
		"in the host's network": {func(n *node) { n.run("web", "10.128.2.2").Spec.HostNetwork = true }, false, "node: NetworkRebuildFailed: "},
		"with another address":  {func(n *node) { n.run("web", "10.128.2.20") }, false, "node: NetworkRebuildFailed: "},
		"deleted":               {func(n *node) { delete(n.api, "default/web") }, false, "node: NetworkRebuildFailed: sandbox sandbox-of-web with address 10.128.2.2 "},
		"two with the address": {func(n *node) {
			n.run("web", "10.128.2.2")
			n.run("other", "10.128.2.2")
		}, false, "pod web: NetworkRebuildFailed: "},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			first, stop := n.start(t)
			req := n.addPod("web", newNetns(t))
			checkReq := check(t, req, add(t, first, req))
			n.addPod("other", newNetns(t))
			stop()
			n.loseBridge(t)
			n.loseAlias(t, req)
			tc.api(n)

			second, _ := n.start(t)
			n.wantAlive(t, req, "10.128.2.2", tc.rebuilt)
			second.events.want(t, tc.event)
			if err := second.reconcile(t.Context(), allValid); err != nil {
				t.Error(err)
			}
			second.events.want(t, tc.event) // once
			n.wantAlive(t, req, "10.128.2.2", tc.rebuilt)
			if tc.rebuilt {
				awaitCheck(t, second, checkReq)
			} else if err := second.Check(t.Context(), checkReq); code(err) != ErrAttachmentChanged {
				t.Errorf("CHECK: %v", err)
			}
			if _, err := second.Add(t.Context(), n.addPod("late", newNetns(t))); err != nil {
				t.Errorf("ADD of another pod: %v", err)
			}
			for _, p := range second.Pods() {
				if p.Name == "late" && p.Addrs[0].String() == "10.128.2.2" {
					t.Error("the address of a running sandbox was allocated again")
				}
			}
			del(t, second, &cniserver.Request{ContainerID: "sandbox-of-late", IfName: "eth0"})
			del(t, second, req)
			n.wantClean(t)
		})
	}
}

// The pod appears in the API while the agent runs: the next reconciliation rebuilds the port.
func TestRebuild_whileTheAgentRuns(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	req := n.addPod("web", newNetns(t))
	checkReq := check(t, req, add(t, first, req))
	stop()
	n.loseBridge(t)
	n.loseAlias(t, req)

	second, _ := n.start(t)
	if pods := second.Pods(); len(pods) > 0 {
		t.Fatalf("got attached pods %v, want none", pods)
	}
	n.run("web", "10.128.2.2")
	second.faults.at("before add port", false)
	if err := second.reconcile(t.Context(), allValid); err == nil {
		t.Error("reconcile: got no error, want the injected one")
	}
	second.events.want(t, "pod web: NetworkRebuildFailed: ")
	n.wantAlive(t, req, "10.128.2.2", false)
	if err := second.reconcile(t.Context(), allValid); err != nil {
		t.Fatal(err)
	}
	second.events.want(t, "pod web: NetworkRebuildFailed: ", "node: PodPortsRebuilt: ")
	awaitCheck(t, second, checkReq)
	del(t, second, req)
	n.wantClean(t)
}

// TestReconcile_foreignExternalIDs: another program writes an external_id of its own. The port is not rebuilt: that would interrupt the pod.
func TestReconcile_foreignExternalIDs(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	add(t, a, req)
	port := func() ovs.Port {
		t.Helper()
		ports, err := n.bridge.ListPorts(t.Context())
		if err != nil || len(ports) != 1 {
			t.Fatalf("got ports %v, error %v; want one port", ports, err)
		}
		return ports[0]
	}
	want := port()
	want.ExternalIDs["monitoring"] = "yes"
	if _, err := n.bridge.AddPort(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if err := a.reconcile(t.Context(), allValid); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, port()); diff != "" {
		t.Errorf("port after reconciliation (-want +got):\n%s", diff)
	}
	del(t, a, req)
	n.wantClean(t)
}

// One port can't be rebuilt when the agent starts: the other ports are, an Event reports it, and the next reconciliation tries again.
func TestRebuild_portFails(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	var checks, requests []*cniserver.Request
	for _, name := range []string{"a", "b", "c"} {
		req := n.addPod(name, newNetns(t))
		requests = append(requests, req)
		checks = append(checks, check(t, req, add(t, first, req)))
	}
	stop()
	n.loseBridge(t)
	second, _ := n.boot(t)
	second.faults.at("before add port", false)
	if err := second.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := second.events.count("pod "); got != 1 {
		t.Errorf("got %d Events on pods, want 1:\n%s", got, second.events)
	}
	second.events.want(t, "node: PodPortsRebuilt: the bridge of node node1 had lost the ports of 2 running pods")
	if err := second.reconcile(t.Context(), allValid); err != nil {
		t.Error(err)
	}
	for i, req := range requests {
		awaitCheck(t, second, checks[i])
		del(t, second, req)
	}
	n.wantClean(t)
}

// Bridge and leases are lost: the alias of the host veth has the addresses too.
func TestRebuild_leasesLostToo(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	req := n.addPod("web", newNetns(t))
	checkReq := check(t, req, add(t, first, req))
	if err := first.ipam.Release(t.Context(), req.ContainerID, req.IfName); err != nil {
		t.Fatal(err)
	}
	stop()
	n.loseBridge(t)
	second, _ := n.start(t)
	awaitCheck(t, second, checkReq)
	n.wantAlive(t, req, "10.128.2.2", true)
	del(t, second, req)
	n.wantClean(t)
}

// An alias without the pod's name, which did not fit, has its UID: the name is read from the API.
func TestRebuild_nameDoesNotFit(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	long := strings.Repeat("a", 253)
	req := n.addPod("web", newNetns(t))
	n.api["default/"+long] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: long, UID: apitypes.UID(strings.Repeat("u", 36))}}
	req.Args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + long
	checkReq := check(t, req, add(t, first, req))
	stop()
	n.loseBridge(t)
	second, _ := n.start(t)
	if pods := second.Pods(); len(pods) != 1 || pods[0].Name != long || pods[0].Namespace != "default" {
		t.Errorf("got %+v", pods)
	}
	awaitCheck(t, second, checkReq)
	del(t, second, req)
	n.wantClean(t)
}

// GC removes sandboxes that the runtime's list of valid attachments does not contain, rebuilt or not.
func TestRebuild_GC(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	known, unknown := n.addPod("known", newNetns(t)), n.addPod("unknown", newNetns(t))
	add(t, first, known)
	add(t, first, unknown)
	stop()
	n.loseBridge(t)
	n.loseAlias(t, unknown)
	second, _ := n.start(t)
	if err := second.GC(t.Context(), gc("")); err != nil {
		t.Error(err)
	}
	n.wantAlive(t, known, "10.128.2.2", true)
	n.wantAlive(t, unknown, "10.128.2.3", false)
	if err := second.GC(t.Context(), gc(`,"cni.dev/valid-attachments":[]`)); err != nil {
		t.Error(err)
	}
	n.wantClean(t)
}

// A pod that an agent without aliases attached gets one when the agent recovers it.
func TestRecover_updatesAlias(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	req := n.addPod("web", newNetns(t))
	add(t, first, req)
	stop()
	n.loseAlias(t, req)
	_, stop = n.start(t)
	stop()
	n.loseBridge(t)
	third, _ := n.start(t)
	n.wantAlive(t, req, "10.128.2.2", true)
	del(t, third, req)
	n.wantClean(t)
}

// The agent was killed during ADD or DEL, and the sandbox ended later without another DEL: the reconciliation removes its remains.
func TestReconcile_partlyAttachedSandbox(t *testing.T) {
	tier.Parallel(t)
	for _, point := range []string{"after create", "before configure", "before add port", "after add port"} {
		t.Run(point, func(t *testing.T) {
			n := newNode(t)
			first, stop := n.start(t)
			pod := newNetns(t)
			req := n.addPod("web", pod)
			first.faults.at(point, true)
			if _, err := first.Add(t.Context(), req); err == nil {
				t.Fatal("ADD: got no error, want the injected one")
			}
			stop()
			second, _ := n.start(t)
			n.closeNetns(t, pod, req)
			if err := second.reconcile(t.Context(), allValid); err != nil {
				t.Error(err)
			}
			if got := second.events.count("pod web: NetworkInterfaceDeleted"); got > 0 {
				t.Error("got an Event on a pod whose sandbox ended")
			}
			n.wantClean(t)
		})
	}
}

// ADD for a sandbox of which an earlier ADD left an interface replaces that interface.
func TestRebuild_addAgain(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	req := n.addPod("web", newNetns(t))
	add(t, first, req)
	stop()
	n.loseBridge(t)
	second, _ := n.start(t)
	if _, err := second.Add(t.Context(), req); code(err) != types.ErrInvalidEnvironmentVariables {
		t.Errorf("ADD of an attached sandbox: %v", err)
	}
	del(t, second, req)
	add(t, second, req)
	del(t, second, req)
	n.wantClean(t)
}

package networkpolicy

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/test/tier"
)

// The pod's policies are installed when ADD returns, also if the watch has not delivered the pod.
func TestAttach_installsPolicies(t *testing.T) {
	f := newFixture(t, addPolicyWithPeer)
	f.attachPod(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	flows := f.policyFlows()
	for _, part := range []string{
		"table=81,priority=26026,ip,reg2=0x3,", // the target
		"nw_src=10.129.0.9,",                   // the peer
		"tp_dst=8080,",                         // the port
		"conj_id=",                             // the outcome
		isolated,                               // the pod's own flows
	} {
		if n := count(flows, part); n != 1 {
			t.Errorf("got %d flows with %s, want 1:\n%s", n, part, strings.Join(flows, "\n"))
		}
	}
	f.detachPod("s1")
	if flows := f.policyFlows(); len(flows) > 0 {
		t.Errorf("flows of the deleted pod remain:\n%s", strings.Join(flows, "\n"))
	}
	if got := f.podPolicies(policy.PodKey{Namespace: "a", Name: "web", UID: "2"}); got.Evaluated {
		t.Errorf("got %+v after Detach, want no input", got)
	}
}

// The labels are those of the attached pod, not those of a previous pod with the same name in the cache.
func TestAttach_previousPodInCache(t *testing.T) {
	tier.Parallel(t)
	f := newFixture(t, func(f *fixture) {
		addPolicyWithPeer(f)
		f.pods.Add(podObject("a", "x", "old", "", labels("other")))
	})
	f.attachPod(podObject("a", "x", "new", "", labels("web")), "s1", 3, "10.128.0.5")
	if err := has(1, isolated)(f.policyFlows()); err != nil {
		t.Fatal(err)
	}
	// The watch delivers the deletion of the previous pod, and another pod.
	f.pods.Delete(podObject("a", "x", "old", "", nil))
	f.pods.Add(podObject("b", "peer2", "4", "10.129.0.10", labels("peer")))
	f.eventually(has(1, "nw_src=10.129.0.10,"))
	if err := has(1, isolated)(f.policyFlows()); err != nil {
		t.Error(err)
	}
	// The watch delivers the attached pod, whose labels have changed in the meantime.
	f.pods.Add(podObject("a", "x", "new", "10.128.0.5", labels("none")))
	f.eventually(has(0, ""))
}

// The labels are those of the attached pod also if the cache already has the next pod with the same name.
func TestAttach_nextPodInCache(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		addPolicyWithPeer(f)
		f.pods.Add(podObject("a", "x", "new", "", labels("web")))
	})
	f.attachPod(podObject("a", "x", "old", "", labels("other")), "s1", 3, "10.128.0.5")
	if err := has(0, isolated)(f.policyFlows()); err != nil {
		t.Fatal(err)
	}
	f.attachPod(podObject("a", "x", "new", "", labels("web")), "s2", 4, "10.128.0.6")
	f.detachPod("s1")
	if err := has(1, isolated)(f.policyFlows()); err != nil {
		t.Fatal(err)
	}
	f.pods.Modify(podObject("a", "x", "new", "10.128.0.6", labels("none")))
	f.eventually(has(0, ""))
}

// A pod has two sandboxes while the runtime replaces one.
func TestAttach_twoSandboxes(t *testing.T) {
	f := newFixture(t, addPolicyWithPeer)
	pod := podObject("a", "web", "2", "", labels("web"))
	f.attachPod(pod, "s1", 3, "10.128.0.5")
	f.attachPod(pod, "s2", 4, "10.128.0.6")
	if n := count(f.policyFlows(), "table=81,priority=26026,ip,reg2="); n != 2 {
		t.Errorf("got %d ports as targets, want 2", n)
	}
	f.detachPod("s1")
	if err := errors.Join(has(0, "reg2=0x3,")(f.policyFlows()), has(1, "reg2=0x4,")(f.policyFlows())); err != nil {
		t.Error(err)
	}
	f.detachPod("s1") // a repeated DEL
	f.detachPod("s2")
	f.eventually(has(0, ""))
}

// The target flow follows the ofport of the pod.
func TestAttach_otherOFPort(t *testing.T) {
	f := newFixture(t, addPolicyWithPeer)
	pod := podObject("a", "web", "2", "", labels("web"))
	f.attachPod(pod, "s1", 3, "10.128.0.5")
	f.attachPod(pod, "s1", 9, "10.128.0.5")
	if err := errors.Join(has(0, "reg2=0x3,")(f.policyFlows()), has(1, "reg2=0x9,")(f.policyFlows())); err != nil {
		t.Error(err)
	}
}

// A sandbox whose pod was replaced by another of the same name retains the labels of its own pod: as a target, and as a peer.
func TestReplacedPod_retainsItsLabels(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		addPolicyWithPeer(f)
		f.networkPolicies.Add(allow("b", "server", "a", 9000))
	})
	server := podObject("b", "server", "1", "", labels("web"))
	f.attachPod(server, "s0", 2, "10.128.0.2")
	old := podObject("a", "x", "old", "10.128.0.5", labels("web"))
	f.pods.Add(old)
	f.attachPod(old, "s1", 3, "10.128.0.5")
	replaced := podObject("a", "x", "new", "10.129.0.7", labels("peer"))
	replaced.Spec.NodeName = "node2"
	f.pods.Modify(replaced) // as after a watch that missed the deletion
	f.eventually(has(1, "nw_src=10.129.0.7,"))
	if err := errors.Join(has(1, "reg2=0x3,")(f.policyFlows()), has(0, "nw_src=10.128.0.5,", "conjunction")(f.policyFlows())); err != nil {
		t.Errorf("a target of its policies, and no peer: %v", err)
	}
	for key, want := range map[policy.PodKey]bool{policy.KeyOf(old): true, policy.KeyOf(replaced): false} {
		if got := f.podPolicies(key).Ingress; got != want {
			t.Errorf("%v is isolated: got %t, want %t", key, got, want)
		}
	}
	f.detachPod("s1")
	f.eventually(has(0, "reg2=0x3,"))
}

// A static pod retains its policies when kubelet re-creates its mirror, which has another UID. Sandboxes that an earlier version attached have the mirror's UID.
func TestStaticPod_mirrorIsRecreated(t *testing.T) {
	f := newFixture(t, addPolicyWithPeer)
	mirror := func(uid string) *corev1.Pod {
		p := podObject("a", "x", uid, "10.128.0.5", labels("web"))
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "static"}
		return p
	}
	f.pods.Add(mirror("m1"))
	f.attachPod(mirror("m1"), "s1", 3, "10.128.0.5")
	f.pods.Delete(mirror("m1"))
	f.pods.Add(mirror("m2"))
	f.networkPolicies.Add(allow("a", "more", "b", 9000))
	f.eventually(has(1, "tp_dst=9000,"))
	if err := has(1, "reg2=0x3,")(f.policyFlows()); err != nil {
		t.Error(err)
	}
}

// Attach applies changes that the watch has delivered, also while an earlier change waits for the switch.
func TestAttach_appliesQueuedChanges(t *testing.T) {
	tier.Parallel(t)
	f := newFixture(t, addPolicyWithPeer)
	f.attachPod(podObject("a", "other", "9", "", labels("web")), "s9", 9, "10.128.0.9")
	f.bridge.SetUnavailable(true)
	f.networkPolicies.Add(allow("a", "busy", "b", 9000))
	f.eventually(func([]string) error {
		f.Policies.mu.Lock() // update holds it from the engine's change until the store has the flows; then it waits for the switch
		defer f.Policies.mu.Unlock()
		busy := policy.Packet{Peer: netip.MustParseAddr("10.129.0.9"), Protocol: corev1.ProtocolTCP, Port: 9000, FromPod: true}
		if !f.compiler.engine.Allows(policy.Ingress, policy.PodKey{Namespace: "a", Name: "other", UID: "9"}, busy) {
			return errors.New("no change waits for the switch")
		}
		return nil
	})
	web := podObject("a", "late", "2", "10.128.0.5", labels("late"))
	isolate := allow("a", "late", "b", 8080)
	isolate.Spec.PodSelector.MatchLabels = labels("late")
	f.pods.Add(web)
	f.networkPolicies.Add(isolate)
	f.eventually(func([]string) error {
		f.changes.mu.Lock()
		defer f.changes.mu.Unlock()
		_, ofPod := f.changes.objects[objectRef{kindPod, "a/late", web.UID}]
		_, ofPolicy := f.changes.policies["a"][objectRef{kindNetworkPolicy, "a/late", ""}]
		if !ofPod || !ofPolicy {
			return errors.New("the watches have not delivered all objects")
		}
		return nil
	})
	f.Attach(t.Context(), owner("s1"), policy.KeyOf(web), pod(3, "10.128.0.5"), web)
	if got := f.podPolicies(policy.KeyOf(web)); !got.Ingress {
		t.Errorf("got %+v, want isolation of ingress", got)
	}
	f.bridge.SetUnavailable(false)
	f.eventually(has(1, "reg2=0x3,"))
}

// Processes may run after their pod has ended or was deleted in the API: the pod stays a target, but is no longer a peer.
func TestEndedPodIsTargetButNoPeer(t *testing.T) {
	tier.Parallel(t)
	f := newFixture(t, func(f *fixture) {
		addPolicyWithPeer(f)
		f.networkPolicies.Add(allow("b", "peers", "a", 80))
	})
	web := podObject("a", "web", "2", "10.128.0.5", labels("web"))
	f.pods.Add(web)
	f.attachPod(web, "s1", 3, "10.128.0.5")
	peer := podObject("b", "local", "3", "10.128.0.6", labels("peer"))
	f.pods.Add(peer)
	f.attachPod(peer, "s2", 4, "10.128.0.6")
	f.eventually(has(1, "nw_src=10.128.0.6,", "conjunction"))

	ended := peer.DeepCopy()
	ended.Status.Phase = corev1.PodFailed
	f.pods.Modify(ended)
	f.eventually(has(0, "nw_src=10.128.0.6,", "conjunction"))
	f.pods.Delete(web)
	f.pods.Delete(ended)
	f.networkPolicies.Modify(allow("a", "web", "b", 8081))
	f.eventually(has(1, "tp_dst=8081,"))
	if err := errors.Join(has(1, "reg2=0x3,")(f.policyFlows()), has(1, isolated)(f.policyFlows())); err != nil {
		t.Error(err)
	}
	f.detachPod("s1")
	f.detachPod("s2")
	f.eventually(has(0, ""))
}

// A sandbox whose pod no longer exists in the API is isolated, since its labels are unknown.
func TestAttach_deletedPodIsIsolated(t *testing.T) {
	f := newFixture(t, addPolicyWithPeer)
	key := policy.PodKey{Namespace: "a", Name: "deleted"}
	f.must(f.Attach(t.Context(), owner("s1"), key, pod(3, "10.128.0.5"), nil)(t.Context()))
	if got := f.podPolicies(key); !got.Ingress || !got.Egress {
		t.Errorf("got %+v, want isolation both ways", got)
	}
}

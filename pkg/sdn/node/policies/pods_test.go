package policies

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
)

// When ADD returns, the pod's policies are there, though no watch has told of the pod.
func TestPodComesWithItsPolicies(t *testing.T) {
	f := newFixture(t, two)
	f.come(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	flows := f.judged()
	for _, part := range []string{
		"table=81,priority=26026,ip,reg2=0x3,", // the target
		"nw_src=10.129.0.9,",                   // the peer
		"tp_dst=8080,",                         // the port
		"conj_id=",                             // the outcome
		isolated,                               // the pod's own flows say so
	} {
		if count(flows, part) != 1 {
			t.Errorf("there is not one flow with %s in\n%s", part, strings.Join(flows, "\n"))
		}
	}
	f.goes("s1")
	if flows := f.judged(); len(flows) > 0 {
		t.Errorf("the pod is gone, and left\n%s", strings.Join(flows, "\n"))
	}
	if known := f.Of(policy.PodKey{Namespace: "a", Name: "web"}); known.Judged {
		t.Error("what policies make of the pod is still known")
	}
}

// The labels are those of the pod that comes, not of one before that had its name.
func TestPodOfAnEarlierName(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		two(f)
		f.pods.Add(podObject("a", "x", "old", "", labels("other")))
	})
	f.come(podObject("a", "x", "new", "", labels("web")), "s1", 3, "10.128.0.5")
	if err := has(1, isolated)(f.judged()); err != nil {
		t.Fatal(err)
	}
	// The watch tells that the old one is gone, and of somebody else.
	f.pods.Delete(podObject("a", "x", "old", "", nil))
	f.pods.Add(podObject("b", "peer2", "4", "10.129.0.10", labels("peer")))
	f.eventually(has(1, "nw_src=10.129.0.10,"))
	if err := has(1, isolated)(f.judged()); err != nil {
		t.Error(err)
	}
	// At last of the new one, whose labels have changed meanwhile.
	f.pods.Add(podObject("a", "x", "new", "10.128.0.5", labels("none")))
	f.eventually(has(0, ""))
}

// Nor are they when the watch was ahead of the one before.
func TestPodOfALaterName(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		two(f)
		f.pods.Add(podObject("a", "x", "new", "", labels("web")))
	})
	f.come(podObject("a", "x", "old", "", labels("other")), "s1", 3, "10.128.0.5")
	if err := has(0, isolated)(f.judged()); err != nil {
		t.Fatal(err)
	}
	f.come(podObject("a", "x", "new", "", labels("web")), "s2", 4, "10.128.0.6")
	f.goes("s1")
	if err := has(1, isolated)(f.judged()); err != nil {
		t.Fatal(err)
	}
	f.pods.Modify(podObject("a", "x", "new", "10.128.0.6", labels("none")))
	f.eventually(has(0, ""))
}

// For a while, a pod that gets a new sandbox has two.
func TestTwoSandboxes(t *testing.T) {
	f := newFixture(t, two)
	pod := podObject("a", "web", "2", "", labels("web"))
	f.come(pod, "s1", 3, "10.128.0.5")
	f.come(pod, "s2", 4, "10.128.0.6")
	if n := count(f.judged(), "table=81,priority=26026,ip,reg2="); n != 2 {
		t.Errorf("%d of 2 ports are targets", n)
	}
	f.goes("s1")
	if err := errors.Join(has(0, "reg2=0x3,")(f.judged()), has(1, "reg2=0x4,")(f.judged())); err != nil {
		t.Error(err)
	}
	f.goes("s1") // DEL is repeated
	f.goes("s2")
	f.eventually(has(0, ""))
}

// A pod whose port gets another number is another target.
func TestOtherPort(t *testing.T) {
	f := newFixture(t, two)
	pod := podObject("a", "web", "2", "", labels("web"))
	f.come(pod, "s1", 3, "10.128.0.5")
	f.come(pod, "s1", 9, "10.128.0.5")
	if err := errors.Join(has(0, "reg2=0x3,")(f.judged()), has(1, "reg2=0x9,")(f.judged())); err != nil {
		t.Error(err)
	}
}

// What the watches have told of counts for a pod that comes, also while the switch is still busy with what came before.
func TestPodComesWhileTheSwitchIsBehind(t *testing.T) {
	f := newFixture(t, two)
	f.come(podObject("a", "other", "9", "", labels("web")), "s9", 9, "10.128.0.9")
	f.bridge.SetUnavailable(true)
	f.networkPolicies.Add(allow("a", "busy", "b", 9000))
	f.eventually(func([]string) error {
		f.Policies.mu.Lock() // who has learned of it under the lock has sent it too, and waits for the switch until there is one
		defer f.Policies.mu.Unlock()
		busy := policy.Packet{Peer: netip.MustParseAddr("10.129.0.9"), Protocol: corev1.ProtocolTCP, Port: 9000, FromPod: true}
		if !f.compiler.engine.Allows(policy.Ingress, policy.PodKey{Namespace: "a", Name: "other"}, busy) {
			return errors.New("nobody waits for the switch")
		}
		return nil
	})
	web := podObject("a", "late", "2", "10.128.0.5", labels("late"))
	isolate := allow("a", "late", "b", 8080)
	isolate.Spec.PodSelector.MatchLabels = labels("late")
	f.pods.Add(web)
	f.networkPolicies.Add(isolate)
	f.eventually(func([]string) error {
		f.news.mu.Lock()
		defer f.news.mu.Unlock()
		_, ofPod := f.news.objects[object{kindPod, "a/late"}]
		_, ofPolicy := f.news.policies["a"][object{kindNetworkPolicy, "a/late"}]
		if !ofPod || !ofPolicy {
			return errors.New("the watches have not told of all")
		}
		return nil
	})
	f.Attach(t.Context(), owner("s1"), policy.PodKey{Namespace: "a", Name: "late"}, pod(3, "10.128.0.5"), web)
	if known := f.Of(policy.PodKey{Namespace: "a", Name: "late"}); !known.Ingress {
		t.Errorf("the pod that came has %+v, want it isolated", known)
	}
	f.bridge.SetUnavailable(false)
	f.eventually(has(1, "reg2=0x3,"))
}

// A pod's processes may run on when the API says that it has ended, or has forgotten it: it stays a target, but is nobody's peer.
func TestPodThatHasEndedButIsHere(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		two(f)
		f.networkPolicies.Add(allow("b", "peers", "a", 80))
	})
	web := podObject("a", "web", "2", "10.128.0.5", labels("web"))
	f.pods.Add(web)
	f.come(web, "s1", 3, "10.128.0.5")
	peer := podObject("b", "here", "3", "10.128.0.6", labels("peer"))
	f.pods.Add(peer)
	f.come(peer, "s2", 4, "10.128.0.6")
	f.eventually(has(1, "nw_src=10.128.0.6,", "conjunction"))

	ended := peer.DeepCopy()
	ended.Status.Phase = corev1.PodFailed
	f.pods.Modify(ended)
	f.eventually(has(0, "nw_src=10.128.0.6,", "conjunction"))
	f.pods.Delete(web)
	f.pods.Delete(ended)
	f.networkPolicies.Modify(allow("a", "web", "b", 8081))
	f.eventually(has(1, "tp_dst=8081,"))
	if err := errors.Join(has(1, "reg2=0x3,")(f.judged()), has(1, isolated)(f.judged())); err != nil {
		t.Error(err)
	}
	f.goes("s1")
	f.goes("s2")
	f.eventually(has(0, ""))
}

// Of a pod that the agent finds, and the API knows no more, nobody can say which rules are about it.
func TestPodThatNobodyKnows(t *testing.T) {
	f := newFixture(t, two)
	key := policy.PodKey{Namespace: "a", Name: "forgotten"}
	f.must(f.Attach(t.Context(), owner("s1"), key, pod(3, "10.128.0.5"), nil)(t.Context()))
	if known := f.Of(key); !known.Ingress || !known.Egress {
		t.Errorf("it has %+v, want it isolated both ways", known)
	}
}

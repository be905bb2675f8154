package policy

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// question is one about a pod of this node.
type question struct {
	direction Direction
	target    PodKey
	packet    Packet
}

// allowed are the connections that the node's pods may have.
func (h *history) allowed() map[question]bool {
	all := map[question]bool{}
	for key := range h.attached {
		for i := range 7 {
			for _, p := range []Packet{
				{Peer: addr(i)},
				{Peer: addr(i), Protocol: corev1.ProtocolTCP, Port: 80}, {Peer: addr(i), Protocol: corev1.ProtocolTCP, Port: 81},
				{Peer: addr(i), Protocol: corev1.ProtocolTCP, Port: 82}, {Peer: addr(i), Protocol: corev1.ProtocolTCP, Port: 83},
			} {
				for _, d := range []Direction{Ingress, Egress} {
					all[question{d, key, p}] = h.engine.Allows(d, key, p)
				}
			}
		}
	}
	return all
}

// held are the addresses that somebody has.
func (h *history) held() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, p := range h.pods {
		for _, a := range p.Addrs {
			all[a] = true
		}
	}
	for _, a := range h.attached {
		all[a] = true
	}
	return all
}

// Whenever a connection that was allowed is forbidden the engine says so, and of each address that is nobody's any more. Of a pod that has
// just come to this node nothing is kept.
func TestLossesAreTold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory()
		events := h.events()
		for name, do := range events {
			events[name] = func(t *rapid.T) {
				allowed, held := h.allowed(), h.held()
				h.came = nil
				do(t)
				lost, now := h.engine.Lost(), h.held()
				for a := range held {
					if !now[a] && !slices.Contains(lost.Addrs, a) {
						t.Fatalf("%s is nobody's any more, and lost are %v", a, lost.Addrs)
					}
				}
				for q, is := range h.allowed() {
					if allowed[q] && !is && !lost.Permission && !slices.Contains(h.came, q.packet.Peer) && !slices.Contains(lost.Addrs, q.packet.Peer) {
						t.Fatalf("%s: %+v was allowed, and is not", name, q)
					}
				}
			}
		}
		t.Repeat(events)
	})
}

// What costs nobody anything is not told, so that what the switch tracks is not gone through for each pod that comes anywhere.
func TestOnlyLossesAreTold(t *testing.T) {
	isolating := allowFrom("ns", "isolating", 81)
	isolating.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	peer := Pod{PodKey: PodKey{"ns", "new"}, Labels: map[string]string{"app": "peer"}, Addrs: []netip.Addr{addr(9)}}
	unlabelled := peer
	unlabelled.Labels = nil
	e := small(t).engine
	if err := e.SetNetworkPolicy(allowFrom("ns", "np", 80, "peer")); err != nil {
		t.Fatal(err)
	}
	e.Lost()
	for _, tc := range []struct {
		name       string
		do         func(e *Engine)
		permission bool
		addrs      []netip.Addr
	}{
		{"a peer comes", func(e *Engine) { e.SetPod(peer) }, false, nil},
		{"it says what it said before", func(e *Engine) { e.SetPod(peer) }, false, nil},
		{"it comes to be no peer", func(e *Engine) { e.SetPod(unlabelled) }, true, nil},
		{"who is no peer goes", func(e *Engine) { e.DeletePod(peer.PodKey) }, false, peer.Addrs},
		{"a peer comes again", func(e *Engine) { e.SetPod(peer) }, false, nil},
		{"it goes", func(e *Engine) { e.DeletePod(peer.PodKey) }, true, peer.Addrs},
		{"an isolated pod comes to this node", func(e *Engine) {
			e.SetPod(unlabelled)
			e.Attach(unlabelled.PodKey, addr(9))
		}, false, nil},
		{"a policy that allows more", func(e *Engine) { _ = e.SetNetworkPolicy(allowFrom("ns", "more", 81, "peer")) }, false, nil},
		{"it allows something else", func(e *Engine) { _ = e.SetNetworkPolicy(allowFrom("ns", "more", 82, "peer")) }, true, nil},
		{"it goes", func(e *Engine) { e.DeleteNetworkPolicy("ns", "more") }, true, nil},
		{"a policy that isolates", func(e *Engine) { _ = e.SetNetworkPolicy(isolating) }, true, nil},
		{"a policy without a pod here", func(e *Engine) { _ = e.SetNetworkPolicy(allowFrom("other", "np", 80, "peer")) }, false, nil},
		{"a node", func(e *Engine) { e.SetNode("n", nil, addr(20)) }, false, nil},
		{"a node's network", func(e *Engine) { e.SetNodeNetwork("n", addr(21), addr(20)) }, false, nil},
		{"the same again", func(e *Engine) { e.SetNodeNetwork("n", addr(21), addr(20)) }, false, nil},
		{"a namespace of host networks", func(e *Engine) { e.SetNamespace("default", nil) }, false, nil},
		{"a policy that admits nodes", func(e *Engine) {
			p := allowFrom("ns", "nodes", 80)
			p.Spec.Ingress[0].From = []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}
			_ = e.SetNetworkPolicy(p)
		}, false, nil},
		{"no namespace of host networks", func(e *Engine) { e.DeleteNamespace("default") }, true, nil},
		{"a node with another address", func(e *Engine) { e.SetNodeNetwork("n", addr(22), addr(20)) }, false, []netip.Addr{addr(20), addr(21)}},
		{"a VNID", func(e *Engine) { e.SetVNID("ns", 7) }, false, nil},
	} {
		tc.do(e)
		got := e.Lost()
		slices.SortFunc(got.Addrs, netip.Addr.Compare)
		if got.Permission != tc.permission || !slices.Equal(got.Addrs, tc.addrs) {
			t.Errorf("%s: lost %+v, want permission %v and addresses %v", tc.name, got, tc.permission, tc.addrs)
		}
	}
}

package policy

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/test/seed"
)

// packetOf is a packet from or to a pod of this node.
type packetOf struct {
	direction Direction
	target    PodKey
	packet    Packet
}

// allowed returns the verdicts on packets of all of the node's pods.
func (h *history) allowed() map[packetOf]bool {
	all := map[packetOf]bool{}
	for key := range h.attached {
		for i := range 7 {
			for _, p := range []Packet{
				{Peer: addr(i)},
				{Peer: addr(i), Protocol: corev1.ProtocolTCP, Port: 80}, {Peer: addr(i), Protocol: corev1.ProtocolTCP, Port: 81},
				{Peer: addr(i), Protocol: corev1.ProtocolTCP, Port: 82}, {Peer: addr(i), Protocol: corev1.ProtocolTCP, Port: 83},
			} {
				for _, d := range []Direction{Ingress, Egress} {
					all[packetOf{d, key, p}] = h.engine.Allows(d, key, p)
				}
			}
		}
	}
	return all
}

// assigned are the addresses of all pods.
func (h *history) assigned() map[netip.Addr]bool {
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

// The engine reports every revocation: of permissions, and of addresses that no pod has any longer. A pod that was just attached to the node has no
// connections to revoke.
func TestRevocationsAreReported(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory()
		events := h.events()
		for name, do := range events {
			events[name] = func(t *rapid.T) {
				allowed, assigned := h.allowed(), h.assigned()
				h.added = nil
				do(t)
				revoked, now := h.engine.Revoked(), h.assigned()
				for a := range assigned {
					if !now[a] && !slices.Contains(revoked.Addrs, a) {
						t.Fatalf("%s: revoked addresses: got %v, want %s, which no pod has any longer", name, revoked.Addrs, a)
					}
				}
				for q, is := range h.allowed() {
					if allowed[q] && !is && !revoked.Permission && !slices.Contains(h.added, q.packet.Peer) && !slices.Contains(revoked.Addrs, q.packet.Peer) {
						t.Fatalf("%s: got no revocation, want one for %+v, which is denied now", name, q)
					}
				}
			}
		}
		t.Repeat(events)
	})
}

// The engine reports no revocation if no connection is affected: for each one, the agent evaluates all connections of the node.
func TestOnlyRevocationsAreReported(t *testing.T) {
	isolating := allowFrom("ns", "isolating", 81)
	isolating.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	peer := Pod{PodKey: PodKey{Namespace: "ns", Name: "new"}, Labels: map[string]string{"app": "peer"}, Addrs: []netip.Addr{addr(9)}}
	unlabelled := peer
	unlabelled.Labels = nil
	e := small(t).engine
	if err := e.SetNetworkPolicy(allowFrom("ns", "np", 80, "peer")); err != nil {
		t.Fatal(err)
	}
	e.Revoked()
	for _, tc := range []struct {
		name       string
		do         func(e *Engine)
		permission bool
		addrs      []netip.Addr
	}{
		{"a new peer", func(e *Engine) { e.SetPod(peer) }, false, nil},
		{"the same peer again", func(e *Engine) { e.SetPod(peer) }, false, nil},
		{"the peer loses its label", func(e *Engine) { e.SetPod(unlabelled) }, true, nil},
		{"a deleted pod that is no peer", func(e *Engine) { e.DeletePod(peer.PodKey) }, false, peer.Addrs},
		{"the peer is created again", func(e *Engine) { e.SetPod(peer) }, false, nil},
		{"the peer is deleted", func(e *Engine) { e.DeletePod(peer.PodKey) }, true, peer.Addrs},
		{"an isolated pod is attached to this node", func(e *Engine) {
			e.SetPod(unlabelled)
			e.Attach(unlabelled.PodKey, addr(9))
		}, false, nil},
		{"a policy that allows more", func(e *Engine) { _ = e.SetNetworkPolicy(allowFrom("ns", "more", 81, "peer")) }, false, nil},
		{"the policy allows another port", func(e *Engine) { _ = e.SetNetworkPolicy(allowFrom("ns", "more", 82, "peer")) }, true, nil},
		{"the policy is deleted", func(e *Engine) { e.DeleteNetworkPolicy("ns", "more") }, true, nil},
		{"a policy that isolates", func(e *Engine) { _ = e.SetNetworkPolicy(isolating) }, true, nil},
		{"a policy without local pods", func(e *Engine) { _ = e.SetNetworkPolicy(allowFrom("other", "np", 80, "peer")) }, false, nil},
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
		got := e.Revoked()
		slices.SortFunc(got.Addrs, netip.Addr.Compare)
		if got.Permission != tc.permission || !slices.Equal(got.Addrs, tc.addrs) {
			t.Errorf("%s: revocation: got %+v, want permission %v and addresses %v", tc.name, got, tc.permission, tc.addrs)
		}
	}
}

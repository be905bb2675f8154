package policy

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/test/seed"
)

// history applies random events of a small cluster to the engine of one node, and records its objects. Many pods have named ports.
type history struct {
	*compiled
	namespaces map[string]map[string]string
	vnids      map[string]uint32
	pods       map[PodKey]Pod
	attached   map[PodKey]netip.Addr
	added      []netip.Addr // of the pod that the last event attached to the node
	node       netip.Addr   // own address of the only node; invalid: the node has no network
	policies   map[policyKey]*networkingv1.NetworkPolicy
	cluster    map[string]*policyv1alpha2.ClusterNetworkPolicy
}

func newHistory() *history {
	return &history{
		compiled: newCompiled(), namespaces: map[string]map[string]string{}, vnids: map[string]uint32{}, pods: map[PodKey]Pod{},
		attached: map[PodKey]netip.Addr{}, policies: map[policyKey]*networkingv1.NetworkPolicy{}, cluster: map[string]*policyv1alpha2.ClusterNetworkPolicy{},
	}
}

func (h *history) setPod(t *rapid.T) {
	p := Pod{PodKey: drawPod(t), Labels: drawApp(t), Ended: rapid.IntRange(0, 5).Draw(t, "ended") == 0}
	if !p.Ended && rapid.Bool().Draw(t, "addressed") {
		p.Addrs = []netip.Addr{drawAddr(t)}
	}
	for range rapid.IntRange(0, 3).Draw(t, "ports") {
		p.Ports = append(p.Ports, NamedPort{drawPortName(t), corev1.ProtocolTCP, rapid.Uint16Range(80, 83).Draw(t, "number")})
	}
	h.pods[p.PodKey] = p
	h.engine.SetPod(p)
}

func (h *history) deletePod(t *rapid.T) {
	key := drawPod(t)
	delete(h.pods, key)
	h.engine.DeletePod(key)
}

func (h *history) attach(t *rapid.T) {
	key, addr := drawPod(t), drawAddr(t)
	if _, here := h.attached[key]; !here {
		h.added = append(slices.Clone(h.pods[key].Addrs), addr)
	}
	h.attached[key] = addr
	h.engine.Attach(key, addr)
}

func (h *history) detach(t *rapid.T) {
	key := drawPod(t)
	delete(h.attached, key)
	h.engine.Detach(key)
}

func (h *history) setNamespace(t *rapid.T) {
	name, set := drawNamespace(t), drawApp(t)
	h.namespaces[name] = set
	h.engine.SetNamespace(name, set)
}

func (h *history) deleteNamespace(t *rapid.T) {
	name := drawNamespace(t)
	delete(h.namespaces, name)
	h.engine.DeleteNamespace(name)
}

func (h *history) setVNID(t *rapid.T) {
	name, vnid := drawNamespace(t), rapid.SampledFrom([]uint32{0, 10, 11}).Draw(t, "VNID")
	h.vnids[name] = vnid
	h.engine.SetVNID(name, vnid)
}

func (h *history) setNodeNetwork(t *rapid.T) {
	h.node = addr(rapid.IntRange(6, 7).Draw(t, "own address"))
	h.engine.SetNodeNetwork("n", h.node, insideAddr())
}

func (h *history) deleteNodeNetwork(*rapid.T) {
	h.node = netip.Addr{}
	h.engine.SetNodeNetwork("n", netip.Addr{})
}

func (h *history) setPolicy(t *rapid.T) {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: drawNamespace(t), Name: rapid.SampledFrom([]string{"np1", "np2"}).Draw(t, "policy")}}
	p.Spec.PodSelector = someSelector(t)
	for range rapid.IntRange(0, 2).Draw(t, "ingress") {
		peers, ports := drawRule(t)
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: peers, Ports: ports})
	}
	for range rapid.IntRange(0, 2).Draw(t, "egress") {
		peers, ports := drawRule(t)
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: peers, Ports: ports})
	}
	h.policies[policyKey{p.Namespace, p.Name}] = p
	if err := h.engine.SetNetworkPolicy(p); err != nil {
		t.Fatal(err)
	}
}

func (h *history) deletePolicy(t *rapid.T) {
	key := policyKey{drawNamespace(t), rapid.SampledFrom([]string{"np1", "np2"}).Draw(t, "policy")}
	delete(h.policies, key)
	h.engine.DeleteNetworkPolicy(key.namespace, key.name)
}

func (h *history) setClusterPolicy(t *rapid.T) {
	p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: drawClusterName(t)}}
	p.Spec.Tier = rapid.SampledFrom([]policyv1alpha2.Tier{policyv1alpha2.AdminTier, policyv1alpha2.BaselineTier}).Draw(t, "tier")
	// The order of policies with the same priority is undefined, so the two have different ones.
	p.Spec.Priority = 2*rapid.Int32Range(0, 2).Draw(t, "priority") + map[string]int32{"cnp1": 0, "cnp2": 1}[p.Name]
	p.Spec.Subject.Namespaces = new(someSelector(t))
	for range rapid.IntRange(0, 2).Draw(t, "ingress") {
		p.Spec.Ingress = append(p.Spec.Ingress, policyv1alpha2.ClusterNetworkPolicyIngressRule{
			Action: drawAction(t), Protocols: drawProtocols(t), From: []policyv1alpha2.ClusterNetworkPolicyIngressPeer{{Namespaces: new(someSelector(t))}},
		})
	}
	for range rapid.IntRange(0, 2).Draw(t, "egress") {
		peer := policyv1alpha2.ClusterNetworkPolicyEgressPeer{Networks: []policyv1alpha2.CIDR{"10.128.0.2/31"}}
		if rapid.Bool().Draw(t, "pods") {
			peer = policyv1alpha2.ClusterNetworkPolicyEgressPeer{Pods: &policyv1alpha2.NamespacedPod{NamespaceSelector: someSelector(t), PodSelector: someSelector(t)}}
		}
		p.Spec.Egress = append(p.Spec.Egress, policyv1alpha2.ClusterNetworkPolicyEgressRule{
			Action: drawAction(t), Protocols: drawProtocols(t), To: []policyv1alpha2.ClusterNetworkPolicyEgressPeer{peer},
		})
	}
	h.cluster[p.Name] = p
	if err := h.engine.SetClusterNetworkPolicy(p); err != nil {
		t.Fatal(err)
	}
}

func (h *history) deleteClusterPolicy(t *rapid.T) {
	name := drawClusterName(t)
	delete(h.cluster, name)
	h.engine.DeleteClusterNetworkPolicy(name)
}

func (h *history) events() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"set pod": h.setPod, "change pod": h.setPod, "delete pod": h.deletePod, "attach": h.attach, "detach": h.detach,
		"set namespace": h.setNamespace, "delete namespace": h.deleteNamespace, "set VNID": h.setVNID,
		"set policy": h.setPolicy, "change policy": h.setPolicy, "delete policy": h.deletePolicy,
		"set node network": h.setNodeNetwork, "delete node network": h.deleteNodeNetwork,
		"set cluster policy": h.setClusterPolicy, "delete cluster policy": h.deleteClusterPolicy,
	}
}

// rebuilt returns a new engine with the current objects, added in another order.
func (h *history) rebuilt() *compiled {
	c := newCompiled()
	for _, p := range h.cluster {
		_ = c.engine.SetClusterNetworkPolicy(p) // as before
	}
	for _, p := range h.policies {
		_ = c.engine.SetNetworkPolicy(p)
	}
	for key, addr := range h.attached {
		c.engine.Attach(key, addr)
	}
	for _, p := range h.pods {
		c.engine.SetPod(p)
	}
	for name, set := range h.namespaces {
		c.engine.SetNamespace(name, set)
	}
	for name, vnid := range h.vnids {
		c.engine.SetVNID(name, vnid)
	}
	if h.node.IsValid() {
		c.engine.SetNodeNetwork("n", h.node, insideAddr())
	}
	return c
}

// After any events, the clauses and the size of the engine equal those of a new engine with the same objects.
func TestHistoryLeavesNoState(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory()
		events := h.events()
		events[""] = func(t *rapid.T) {
			h.drain()
			c := h.rebuilt()
			c.drain()
			if diff := c.differs(h.compiled); diff != "" {
				t.Fatal(diff)
			}
		}
		t.Repeat(events)
	})
}

// differs returns the difference between a new engine and one with a history, which have the same objects; "" if there is none.
func (c *compiled) differs(history *compiled) string {
	if diff := diff(c.parts, history.parts); diff != "" {
		return fmt.Sprintf("clauses differ (-new engine +engine with a history):\n%s", diff)
	}
	if diff := diff(c.outcomes, history.outcomes) + diff(c.levels, history.levels); diff != "" {
		return fmt.Sprintf("outcomes or their levels differ (-new engine +engine with a history):\n%s", diff)
	}
	if diff := cmp.Diff(sizes(c.engine), sizes(history.engine)); diff != "" {
		return fmt.Sprintf("sizes of the engines differ (-new engine +engine with a history):\n%s", diff)
	}
	return ""
}

// diff is cmp.Diff, which takes ten times as long as reflect.DeepEqual to find that large maps are equal.
func diff(want, got any) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got)
}

// sizes counts the elements of all collections of an engine.
func sizes(e *Engine) map[string]int {
	n := map[string]int{
		"pods": len(e.pods), "policies": len(e.policies), "groups": len(e.groups), "groups that select namespaces": len(e.selecting), "namespaces by label": len(e.byLabel),
		"addresses": len(e.byAddr), "VNIDs": len(e.holders), "conjunctions": len(e.byID), "blocks": len(e.blocks), "ports": len(e.ports),
		"rules that only targets limit": len(e.anything), "changed": len(e.changed) + len(e.addresses), "namespaces": len(e.namespaces),
		"nodes' addresses": len(e.nodes.byAddr), "nodes with addresses": len(e.nodes.addrs),
	}
	for _, s := range e.buckets {
		n["conjunctions on buckets"] += len(s.conjs)
	}
	for _, holders := range e.holders {
		n["holders"] += len(holders)
	}
	for _, users := range e.blocks {
		n["users of blocks"] += len(users)
	}
	for _, users := range e.ports {
		n["users of ports"] += len(users)
	}
	for _, a := range e.byAddr {
		n["pods of addresses"] += len(a.pods)
	}
	for _, p := range e.pods {
		n["pods in sets"] += len(p.sets.list)
		n["addresses of pods"] += len(p.at)
	}
	for _, p := range e.policies {
		n["rules"] += len(p.rules)
		n["groups of policies"] += len(p.groups)
		for _, r := range p.rules {
			n["conjunctions of rules"] += len(r.conjs)
		}
	}
	for _, c := range e.byID {
		n["peers"] += len(c.peers)
	}
	for _, ns := range e.namespaces {
		n["pods of namespaces"] += len(ns.pods)
		n["groups of namespaces"] += len(ns.groups)
		n["labels"] += len(ns.byLabel)
		n["wanted labels"] += len(ns.byPodLabel)
	}
	for _, g := range e.groups {
		n["namespaces of groups"] += len(g.namespaces)
		n["host-network namespaces of groups"] += g.hosts
		n["sets"] += len(g.sets)
		n["rules of groups"] += len(g.rules)
		for _, s := range g.sets {
			n["sets' pods"] += len(s.pods)
			n["sets' users"] += len(s.users)
			n["sets' active users"] += s.active[Allow] + s.active[Deny] + s.active[Pass]
			n["isolators"] += len(s.isolators[Ingress]) + len(s.isolators[Egress])
		}
	}
	return n
}

// A pod whose number for a port name changes many times leaves no state of the previous numbers.
func TestUnusedPortNumbersAreReleased(t *testing.T) {
	c := small(t)
	np := allowFrom("ns", "np", 0, "peer")
	np.Spec.Ingress[0].Ports[0].Port = new(intstr.FromString("web"))
	np.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{Ports: np.Spec.Ingress[0].Ports}}
	if err := c.engine.SetNetworkPolicy(np); err != nil {
		t.Fatal(err)
	}
	setNumber := func(number uint16) map[string]int {
		c.engine.SetPod(Pod{PodKey: target, Addrs: []netip.Addr{addr(0)}, Ports: []NamedPort{{"web", corev1.ProtocolTCP, number}}})
		c.drain()
		return sizes(c.engine)
	}
	first := setNumber(1000)
	for number := range uint16(1000) {
		if diff := cmp.Diff(first, setNumber(2000+number)); diff != "" {
			t.Fatalf("after %d numbers (-first +now):\n%s", number+1, diff)
		}
		if !c.reach(target, ownPeer, 2000+number) || c.reach(target, ownPeer, 1000) {
			t.Fatalf("want port %d allowed and port 1000 denied; got another verdict", 2000+number)
		}
	}
}

// With very many rules, the rules that share a level do not depend on the order in which rules were added and deleted.
func TestLevelsDoNotDependOnTheOrder(t *testing.T) {
	forth, back := small(t), small(t)
	set := func(c *compiled, i int) {
		if err := c.engine.SetNetworkPolicy(allowFrom("ns", fmt.Sprintf("np%d", i), 1+i, "peer")); err != nil {
			t.Fatal(err)
		}
	}
	const policies = 2*bucketSize + 100
	for i := range policies {
		set(forth, i)
		set(back, policies-1-i)
	}
	back.drain()
	for i := 0; i < policies; i += 50 {
		back.engine.DeleteNetworkPolicy("ns", fmt.Sprintf("np%d", i))
	}
	back.drain()
	for i := 0; i < policies; i += 50 {
		set(back, i)
	}
	forth.drain()
	back.drain()
	if diff := forth.differs(back); diff != "" {
		t.Error(diff)
	}
}

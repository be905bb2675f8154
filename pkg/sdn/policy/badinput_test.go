package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// target is the pod that policies of the tests select; other pods are peers.
var target = PodKey{Namespace: "ns", Name: "target"} //nolint:gochecknoglobals // a constant

// small is a node with a pod, and a cluster with four others.
func small(t *testing.T) *compiled {
	t.Helper()
	c := newCompiled()
	c.engine.SetNamespace("ns", map[string]string{"team": "a"})
	c.engine.SetNamespace("other", map[string]string{"team": "b"})
	for i, p := range []Pod{
		{PodKey: target, Labels: map[string]string{"app": "web"}, Ports: []NamedPort{{"web", corev1.ProtocolTCP, 8080}}},
		{PodKey: PodKey{Namespace: "ns", Name: "unnamed"}, Labels: map[string]string{"app": "web"}},
		{PodKey: PodKey{Namespace: "ns", Name: "peer"}, Labels: map[string]string{"app": "peer"}},
		{PodKey: PodKey{Namespace: "other", Name: "peer"}, Labels: map[string]string{"app": "peer"}},
		{PodKey: PodKey{Namespace: "other", Name: "stranger"}},
	} {
		p.Addrs = []netip.Addr{addr(i)}
		c.engine.SetPod(p)
		if i < 2 {
			c.engine.Attach(p.PodKey, p.Addrs...)
		}
	}
	return c
}

// reach reports whether the clauses allow a TCP packet from an address to a port of the pod.
func (c *compiled) reach(pod PodKey, from string, port uint16) bool {
	c.drain()
	return c.verdict(Ingress, pod, c.between(Ingress, pod, netip.MustParseAddr(from), 0), corev1.ProtocolTCP, port)
}

const (
	ownPeer   = "10.128.0.2"
	otherPeer = "10.128.0.3"
	stranger  = "10.128.0.4"
	outside   = "192.0.2.7"
)

func number(n int) *intstr.IntOrString { return new(intstr.FromInt(n)) }

func from(cidr string, except ...string) []networkingv1.NetworkPolicyPeer {
	return []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}}
}

// Unusual and invalid policies: the peers that reach port 80, and the error.
func TestSetNetworkPolicy_unusualRules(t *testing.T) {
	everyone := []string{ownPeer, otherPeer, stranger, outside}
	last := int32(79)
	for name, tc := range map[string]struct {
		rule    networkingv1.NetworkPolicyIngressRule
		allowed []string
		fault   string
	}{
		"no restriction at all":                        {rule: networkingv1.NetworkPolicyIngressRule{}, allowed: everyone},
		"a selector that matches every pod":            {rule: networkingv1.NetworkPolicyIngressRule{From: pods(&metav1.LabelSelector{}, &metav1.LabelSelector{})}, allowed: everyone[:3]},
		"a selector that matches no pod":               {rule: networkingv1.NetworkPolicyIngressRule{From: pods(nil, only("app", "none"))}},
		"a selector of namespaces that matches none":   {rule: networkingv1.NetworkPolicyIngressRule{From: pods(only("team", "none"), nil)}},
		"a selector that contradicts itself":           {rule: networkingv1.NetworkPolicyIngressRule{From: pods(nil, contradiction())}},
		"an empty peer":                                {rule: networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{}}}, allowed: everyone[:1]},
		"an unknown operator":                          {rule: networkingv1.NetworkPolicyIngressRule{From: pods(nil, unknown())}, fault: `"Near" is not a valid`},
		"a CIDR with host bits":                        {rule: networkingv1.NetworkPolicyIngressRule{From: from("192.0.2.99/24")}, allowed: everyone[3:]},
		"an invalid CIDR":                              {rule: networkingv1.NetworkPolicyIngressRule{From: from("192.0.2.0")}, fault: `ipBlock "192.0.2.0"`},
		"a CIDR of the other family":                   {rule: networkingv1.NetworkPolicyIngressRule{From: from("::/0")}},
		"an exception outside of its CIDR":             {rule: networkingv1.NetworkPolicyIngressRule{From: from("192.0.2.0/24", "198.51.100.0/24")}, allowed: everyone[3:]},
		"an exception with host bits":                  {rule: networkingv1.NetworkPolicyIngressRule{From: from("0.0.0.0/0", "10.128.0.77/16")}, allowed: everyone[3:]},
		"an exception as large as its CIDR":            {rule: networkingv1.NetworkPolicyIngressRule{From: from("192.0.2.0/24", "192.0.2.0/24")}},
		"an exception larger than its CIDR":            {rule: networkingv1.NetworkPolicyIngressRule{From: from("192.0.2.0/24", "192.0.0.0/16")}},
		"exceptions that overlap":                      {rule: networkingv1.NetworkPolicyIngressRule{From: from("0.0.0.0/0", "10.128.0.0/16", "10.128.0.0/30")}, allowed: everyone[3:]},
		"an invalid exception":                         {rule: networkingv1.NetworkPolicyIngressRule{From: from("0.0.0.0/0", "10.128.0.0")}, fault: `exception "10.128.0.0"`},
		"endPort below port":                           {rule: networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: number(80), EndPort: &last}}}, fault: "ports 80 to 79"},
		"port 0":                                       {rule: networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: number(0)}}}, fault: "ports 0 to 0"},
		"port 65536":                                   {rule: networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: number(65536)}}}, fault: "ports 65536 to 65536"},
		"an invalid port and a valid one":              {rule: networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: number(0)}, {Port: number(80)}}}, allowed: everyone, fault: "ports 0 to 0"},
		"the same port, twice":                         {rule: networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: number(80)}, {Port: number(80)}}}, allowed: everyone},
		"a port by a name that no pod has":             {rule: networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromString("none"))}}}},
		"the same peer, twice, and a part of it again": {rule: networkingv1.NetworkPolicyIngressRule{From: append(append(from("192.0.2.0/24"), from("192.0.2.0/24")...), from("192.0.2.7/32")...)}, allowed: everyone[3:]},
	} {
		t.Run(name, func(t *testing.T) {
			c := small(t)
			err := c.engine.SetNetworkPolicy(&networkingv1.NetworkPolicy{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "np"},
				Spec:       networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{tc.rule}},
			})
			if (err != nil) != (tc.fault != "") || err != nil && !strings.Contains(err.Error(), tc.fault) {
				t.Errorf("error: got %v, want one that contains %q", err, tc.fault)
			}
			var allowed []string
			for _, peer := range everyone {
				if c.reach(target, peer, 80) {
					allowed = append(allowed, peer)
				}
			}
			if fmt.Sprint(allowed) != fmt.Sprint(tc.allowed) {
				t.Errorf("peers that reach port 80: got %v, want %v", allowed, tc.allowed)
			}
		})
	}
}

func pods(namespaces, pods *metav1.LabelSelector) []networkingv1.NetworkPolicyPeer {
	return []networkingv1.NetworkPolicyPeer{{NamespaceSelector: namespaces, PodSelector: pods}}
}

func only(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func contradiction() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "app", Operator: metav1.LabelSelectorOpExists}, {Key: "app", Operator: metav1.LabelSelectorOpDoesNotExist},
	}}
}

func unknown() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Near"}}}
}

// Each target has its own number for a named port. A target without the name has no allowed port.
func TestNamedPort_missingInSomeTargets(t *testing.T) {
	c := small(t)
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "np"}}
	np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromString("web"))}}}}
	if err := c.engine.SetNetworkPolicy(np); err != nil {
		t.Fatal(err)
	}
	unnamed := PodKey{Namespace: "ns", Name: "unnamed"}
	if !c.reach(target, outside, 8080) || c.reach(target, outside, 80) || c.reach(unnamed, outside, 8080) {
		t.Error("want port 8080 of the target with the name allowed, and all else denied; got another verdict")
	}
	c.engine.SetPod(Pod{PodKey: unnamed, Addrs: []netip.Addr{addr(1)}, Ports: []NamedPort{{"web", corev1.ProtocolTCP, 80}}})
	if !c.reach(unnamed, outside, 80) || c.reach(unnamed, outside, 8080) || !c.reach(target, outside, 8080) {
		t.Error("after the other target got the name for port 80: want its port 80 and port 8080 of the first allowed, and all else denied; got another verdict")
	}
}

// The permissions of several policies for one target add up.
func TestOverlappingPolicies(t *testing.T) {
	c := small(t)
	for i, apps := range [][]string{nil, {"peer"}, {"peer", "none"}, {"peer"}} {
		np := allowFrom("ns", fmt.Sprintf("np%d", i), 80, apps...)
		if apps == nil {
			np.Spec.Ingress = nil // denies all
		}
		if err := c.engine.SetNetworkPolicy(np); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		if got, want := c.reach(target, ownPeer, 80), i < 3; got != want || c.reach(target, stranger, 80) {
			t.Errorf("with %d policies that allow the peer: allowed %v, want %v; other peers must be denied", 3-i, got, want)
		}
		c.engine.DeleteNetworkPolicy("ns", fmt.Sprintf("np%d", 3-i%3))
	}
}

// Drain returns each clause once, however often a policy has changed since the last call.
func TestDrain_afterThousandChanges(t *testing.T) {
	c := small(t)
	for i := range 1000 {
		if err := c.engine.SetNetworkPolicy(allowFrom("ns", "np", 1+i, "peer")); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[Clause]bool{}
	compiledTo := 0
	for _, p := range c.engine.Drain() {
		if seen[p] {
			t.Errorf("got clause %+v twice, want it once", p)
		}
		seen[p] = true
		if parts := c.engine.Compile(p); len(parts) > 0 {
			c.parts[p] = cloneParts(parts)
			compiledTo++
		}
		if _, level, action, ok := c.engine.Outcome(p); p.Kind == Outcome && ok {
			c.outcomes[p.ID], c.levels[p.ID] = action, level
			compiledTo++
		}
	}
	if compiledTo != 5 {
		t.Errorf("clauses: got %d, want 5: two targets, a peer, a port and an outcome", compiledTo)
	}
	if !c.reach(target, ownPeer, 1000) || c.reach(target, ownPeer, 999) {
		t.Error("want port 1000 allowed, of the last change, and port 999 denied; got another verdict")
	}
}

// A flow holds some 4,000 conjunctions: if there are more rules, they are distributed over levels, and all of them apply.
func TestMoreRulesThanAFlowHolds(t *testing.T) {
	c := small(t)
	const policies = 10_000
	for i := range policies {
		if err := c.engine.SetNetworkPolicy(&networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("np%d", i)},
			Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From:  from(netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}).String() + "/32"),
				Ports: []networkingv1.NetworkPolicyPort{{Port: number(80)}},
			}}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range []int{0, 1, 2999, 3000, 9999} {
		if peer := netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}).String(); !c.reach(target, peer, 80) || c.reach(target, peer, 81) {
			t.Errorf("%s: want port 80 allowed and port 81 denied; got another verdict", peer)
		}
	}
	if c.reach(target, "172.17.0.1", 80) {
		t.Error("got a packet of 172.17.0.1 allowed, want it denied: no policy has the address")
	}
	for p, parts := range c.parts {
		for _, part := range parts {
			if len(part.Conj) > bucketSize {
				t.Errorf("%+v has %d conjunctions on level %d, want at most %d", p, len(part.Conj), part.Level, bucketSize)
			}
			if part.Level.IsAdmin() || part.Level <= Isolation {
				t.Errorf("%+v has level %d, want one of network policies", p, part.Level)
			}
		}
	}
	if n := len(c.parts[Clause{Kind: Target, Pod: target}]); n != 4 {
		t.Errorf("flows of the target: got %d, want 4", n)
	}
	for i := range policies {
		c.engine.DeleteNetworkPolicy("ns", fmt.Sprintf("np%d", i))
	}
	if c.drain(); len(c.parts) > 0 || len(c.outcomes) > 0 {
		t.Errorf("after all policies were deleted: got %d clauses and %d outcomes, want none", len(c.parts), len(c.outcomes))
	}
}

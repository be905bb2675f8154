package policies

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
)

// allow lets pods with the label app=peer, of namespaces with the label team, reach those with app=web.
func allow(namespace, name, team string, port int32) *networkingv1.NetworkPolicy {
	number := intstr.FromInt32(port)
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{{
					NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": team}},
					PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "peer"}},
				}},
				Ports: []networkingv1.NetworkPolicyPort{{Port: &number}},
			}},
		},
	}
}

// allowAllOf lets all pods of those namespaces.
func allowAllOf(namespace, name, team string, port int32) *networkingv1.NetworkPolicy {
	np := allow(namespace, name, team, port)
	np.Spec.Ingress[0].From[0].PodSelector = nil
	return np
}

// isolated is what the flow to a pod says when ingress rules alone let in.
const isolated = "load:0x3->NXM_NX_REG4["

func labels(app string) map[string]string { return map[string]string{"app": app} }

func team(name string) map[string]string { return map[string]string{"team": name} }

func two(f *fixture) {
	f.tenant("a", 10, team("a"))
	f.tenant("b", 11, team("b"))
	f.networkPolicies.Add(allow("a", "web", "b", 8080))
	f.pods.Add(podObject("b", "peer", "1", "10.129.0.9", labels("peer")))
}

func TestPolicyComesLater(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		f.tenant("a", 10, team("a"))
		f.tenant("b", 11, team("b"))
		f.pods.Add(podObject("b", "peer", "1", "10.129.0.9", labels("peer")))
	})
	f.come(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	if flows := f.judged(); len(flows) > 0 {
		t.Errorf("there is no policy, and the switch has\n%s", strings.Join(flows, "\n"))
	}
	before := f.bridge.Bundles()
	f.networkPolicies.Add(allow("a", "web", "b", 8080))
	f.eventually(has(1, isolated))
	if n := f.bridge.Bundles() - before; n != 1 {
		t.Errorf("%d bundles: between two of them the pod is isolated without its rules, or the other way", n)
	}
	if err := has(1, "nw_src=10.129.0.9,")(f.judged()); err != nil {
		t.Error(err)
	}
	f.networkPolicies.Delete(allow("a", "web", "b", 8080))
	f.eventually(has(0, ""))
}

func TestNamespaceThatNoWatchHasToldOf(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		two(f)
		f.netNamespaces.Add(&networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "new"}, NetName: "new", NetID: 12})
		f.clusterPolicies.Add(&policyv1alpha2.ClusterNetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "guard"},
			Spec: policyv1alpha2.ClusterNetworkPolicySpec{
				Tier: policyv1alpha2.AdminTier, Priority: 1,
				Subject: policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: &metav1.LabelSelector{MatchLabels: team("new")}},
				Ingress: []policyv1alpha2.ClusterNetworkPolicyIngressRule{{
					Action: policyv1alpha2.ClusterNetworkPolicyRuleActionDeny,
					From: []policyv1alpha2.ClusterNetworkPolicyIngressPeer{{
						Namespaces: &metav1.LabelSelector{MatchLabels: team("b")},
					}},
				}},
			},
		})
	})
	if err := f.Fetch(t.Context(), "nowhere"); code(err) != types.ErrTryAgainLater || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("a namespace that is not there: %v", err)
	}
	f.mu.Lock()
	f.unseen["new"] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new", Labels: team("new")}}
	f.mu.Unlock()
	f.come(podObject("new", "x", "5", "", nil), "s1", 3, "10.128.0.5")
	flows := f.judged()
	// The peers are a namespace with a VNID of its own.
	if count(flows, "reg0=0xb,") != 1 || count(flows, "conj_id=") != 1 || count(flows, "conj_id=", "goto_table:82") > 0 {
		t.Errorf("the switch has\n%s", strings.Join(flows, "\n"))
	}
}

// What the API server answers may be older than what the watch tells while it is asked.
func TestNamespaceThatTheWatchTellsOfMeanwhile(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		two(f)
		f.networkPolicies.Add(allowAllOf("a", "late", "late", 8080))
	})
	f.come(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	f.cluster.GetNamespace = func(context.Context, string) (*corev1.Namespace, error) {
		f.tenant("late", 12, team("late"))
		f.pods.Add(podObject("late", "peer", "3", "10.129.0.12", nil))
		f.eventually(has(1, "reg0=0xc,"))
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "late", Labels: team("early")}}, nil
	}
	f.must(f.Fetch(t.Context(), "late"))
	f.must(f.update(t.Context()))
	if err := has(1, "reg0=0xc,")(f.judged()); err != nil {
		t.Error(err)
	}
}

func code(err error) uint {
	var e *types.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// However fast a policy changes, the last state is what is there in the end, and the switch hears of few between.
func TestPolicyThatChangesAllTheTime(t *testing.T) {
	f := newFixture(t, two)
	f.come(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	before := f.bridge.Bundles()
	for i := range int32(1000) {
		f.networkPolicies.Modify(allow("a", "web", "b", 1000+i))
	}
	f.eventually(has(1, "tp_dst=1999,"))
	if err := has(1, "tp_dst=")(f.judged()); err != nil {
		t.Error(err)
	}
	if n := f.bridge.Bundles() - before; n > 200 {
		t.Errorf("%d bundles for 1,000 changes at once", n)
	}
}

// What the cluster says before the agent starts is all in its first word to the switch.
func TestPrimed(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		two(f)
		f.pods.Add(podObject("a", "web", "2", "10.128.0.5", labels("web")))
		f.nodes.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "n"}, {Type: corev1.NodeInternalIP, Address: "172.31.0.12"}}}})
		f.hostSubnets.Add(&networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Host: "n", HostIP: "172.31.0.12", Subnet: "10.129.0.0/23"})
		f.clusterPolicies.Add(&policyv1alpha2.ClusterNetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "nodes"},
			Spec: policyv1alpha2.ClusterNetworkPolicySpec{
				Tier: policyv1alpha2.AdminTier, Priority: 1,
				Subject: policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}},
				Egress: []policyv1alpha2.ClusterNetworkPolicyEgressRule{{
					Action: policyv1alpha2.ClusterNetworkPolicyRuleActionDeny,
					To:     []policyv1alpha2.ClusterNetworkPolicyEgressPeer{{Nodes: &metav1.LabelSelector{}}},
				}},
			},
		})
	})
	f.Attach(t.Context(), owner("s1"), policy.PodKey{Namespace: "a", Name: "web"}, pod(3, "10.128.0.5"), nil)
	for _, addr := range []string{"172.31.0.12", "10.129.0.1"} { // its own, and tun0's
		f.eventually(has(1, "nw_dst="+addr+","))
	}
	f.eventually(has(1, "nw_src=10.129.0.9,"))
}

// A NetNamespace that nobody can have changes nothing; one that is gone leaves its pods' addresses.
func TestVNIDs(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		two(f)
		p := allow("a", "web", "b", 80)
		p.Spec.Ingress[0].From[0].PodSelector = nil
		f.networkPolicies.Modify(p)
	})
	f.come(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	f.eventually(has(1, "reg0=0xb,"))
	f.eventually(has(0, "nw_src=10.129.0.9,"))
	net := &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "b"}, NetName: "b", NetID: 5}
	f.netNamespaces.Modify(net)
	moved := net.DeepCopy()
	moved.NetID = 0x20
	f.netNamespaces.Modify(moved)
	f.eventually(has(1, "reg0=0x20,"))
	f.netNamespaces.Delete(moved)
	f.eventually(has(1, "nw_src=10.129.0.9,"))
	f.eventually(has(0, "reg0=0x20,"))
}

// While Open vSwitch is away nothing is lost, and who waits is told when his time is over.
func TestSwitchIsAway(t *testing.T) {
	f := newFixture(t, two)
	f.come(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	f.bridge.SetUnavailable(true)
	for i := range 10 {
		f.networkPolicies.Add(allow("a", fmt.Sprint("more", i), "b", 9000+int32(i))) //nolint:gosec // small
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := f.Attach(t.Context(), owner("s2"), policy.PodKey{Namespace: "a", Name: "web"}, pod(4, "10.128.0.6"), nil)
	cancel()
	if err := done(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	f.bridge.SetUnavailable(false)
	f.eventually(has(11, "tp_dst="))
	f.eventually(has(1, "reg2=0x4,"))
}

// Connections end with the policy that allowed them, and with their pod, without anybody's asking.
func TestCutsComeByThemselves(t *testing.T) {
	f := newFixture(t, two)
	f.come(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	connect := func() {
		c := tracked(zoneHere, protoTCP, "10.129.0.9:1000", "10.128.0.5:8080")
		f.bridge.Connect(ovs.Connections{Zone: c.Zone, Protocol: c.Protocol, Original: c.Original, Reply: c.Reply})
	}
	left := func(want int) func([]string) error {
		return func([]string) error {
			if n := len(f.bridge.Tracked()); n != want {
				return fmt.Errorf("%d connections are left, want %d", n, want)
			}
			return nil
		}
	}
	connect()
	f.networkPolicies.Add(allow("a", "more", "b", 9090))
	f.eventually(has(1, "tp_dst=9090,"))
	f.must(f.cuts.cut(t.Context()))
	f.must(left(1)(nil))
	f.networkPolicies.Delete(allow("a", "web", "b", 8080))
	f.eventually(left(0))
	connect()
	f.goes("s1")
	f.eventually(left(0))
}

package networkpolicy

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

	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/test/tier"
)

// allow returns a policy that allows pods with app=peer, of namespaces with the label team, to reach those with app=web.
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

// allowAllOf is allow for all pods of those namespaces.
func allowAllOf(namespace, name, team string, port int32) *networkingv1.NetworkPolicy {
	np := allow(namespace, name, team, port)
	np.Spec.Ingress[0].From[0].PodSelector = nil
	return np
}

// isolated is the action of the flow to a pod that is isolated for ingress.
const isolated = "load:0x3->NXM_NX_REG4["

func labels(app string) map[string]string { return map[string]string{"app": app} }

func team(name string) map[string]string { return map[string]string{"team": name} }

// addPolicyWithPeer adds the namespaces a and b, and a policy of a that allows the pod peer of b.
func addPolicyWithPeer(f *fixture) {
	f.tenant("a", 10, team("a"))
	f.tenant("b", 11, team("b"))
	f.networkPolicies.Add(allow("a", "web", "b", 8080))
	f.pods.Add(podObject("b", "peer", "1", "10.129.0.9", labels("peer")))
}

func TestPolicyIsAddedAfterPod(t *testing.T) {
	tier.Parallel(t)
	f := newFixture(t, func(f *fixture) {
		f.tenant("a", 10, team("a"))
		f.tenant("b", 11, team("b"))
		f.pods.Add(podObject("b", "peer", "1", "10.129.0.9", labels("peer")))
	})
	f.attachPod(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	if flows := f.policyFlows(); len(flows) > 0 {
		t.Errorf("got flows without a policy:\n%s", strings.Join(flows, "\n"))
	}
	before := f.bridge.Bundles()
	f.networkPolicies.Add(allow("a", "web", "b", 8080))
	f.eventually(has(1, isolated))
	if n := f.bridge.Bundles() - before; n != 1 {
		t.Errorf("got %d bundles, want 1: between two of them the pod would have its rules or its isolation, not both", n)
	}
	if err := has(1, "nw_src=10.129.0.9,")(f.policyFlows()); err != nil {
		t.Error(err)
	}
	f.networkPolicies.Delete(allow("a", "web", "b", 8080))
	f.eventually(has(0, ""))
}

func TestFetch_readsNamespaceFromAPIServer(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		addPolicyWithPeer(f)
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
	if _, err := f.Fetch(t.Context(), "nowhere"); code(err) != types.ErrTryAgainLater || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("got error %v for a namespace that does not exist, want ErrTryAgainLater with its name", err)
	}
	f.mu.Lock()
	f.unseen["new"] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new", Labels: team("new")}}
	f.mu.Unlock()
	f.attachPod(podObject("new", "x", "5", "", nil), "s1", 3, "10.128.0.5")
	flows := f.policyFlows()
	// The peers are a whole namespace with its own VNID.
	if count(flows, "reg0=0xb,") != 1 || count(flows, "conj_id=") != 1 || count(flows, "conj_id=", "goto_table:82") > 0 {
		t.Errorf("got flows\n%s\nwant one that matches the VNID, and one outcome that denies", strings.Join(flows, "\n"))
	}
}

// The response of the API server may be older than an event that the watch delivers in the meantime.
func TestFetch_responseIsOlderThanCache(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		addPolicyWithPeer(f)
		f.networkPolicies.Add(allowAllOf("a", "late", "late", 8080))
	})
	f.attachPod(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	f.cluster.GetNamespace = func(context.Context, string) (*corev1.Namespace, error) {
		f.tenant("late", 12, team("late"))
		f.pods.Add(podObject("late", "peer", "3", "10.129.0.12", nil))
		f.eventually(has(1, "reg0=0xc,"))
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "late", Labels: team("early")}}, nil
	}
	if _, err := f.Fetch(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	f.must(f.update(t.Context()))
	if err := has(1, "reg0=0xc,")(f.policyFlows()); err != nil {
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

// The last of many fast changes of a policy is installed, with few bundles for the changes before it.
func TestPolicyChangesContinuously(t *testing.T) {
	f := newFixture(t, addPolicyWithPeer)
	f.attachPod(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	before := f.bridge.Bundles()
	for i := range int32(1000) {
		f.networkPolicies.Modify(allow("a", "web", "b", 1000+i))
	}
	f.eventually(has(1, "tp_dst=1999,"))
	if err := has(1, "tp_dst=")(f.policyFlows()); err != nil {
		t.Error(err)
	}
	if n := f.bridge.Bundles() - before; n > 200 {
		t.Errorf("got %d bundles for 1,000 changes, want at most 200", n)
	}
}

// The flows of all objects that exist when the agent starts are installed.
func TestPrime(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		addPolicyWithPeer(f)
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
	f.Attach(t.Context(), owner("s1"), policy.PodKey{Namespace: "a", Name: "web", UID: "2"}, pod(3, "10.128.0.5"), nil)
	for _, addr := range []string{"172.31.0.12", "10.129.0.1"} { // its own, and tun0's
		f.eventually(has(1, "nw_dst="+addr+","))
	}
	f.eventually(has(1, "nw_src=10.129.0.9,"))
}

// An invalid NetNamespace changes nothing. After the deletion of the NetNamespace, flows match the addresses of the pods.
func TestVNIDs(t *testing.T) {
	tier.Parallel(t)
	f := newFixture(t, func(f *fixture) {
		addPolicyWithPeer(f)
		p := allow("a", "web", "b", 80)
		p.Spec.Ingress[0].From[0].PodSelector = nil
		f.networkPolicies.Modify(p)
	})
	f.attachPod(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
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

// Changes while Open vSwitch is unavailable are installed later, and a caller that waits returns when its context ends.
func TestSwitchUnavailable(t *testing.T) {
	f := newFixture(t, addPolicyWithPeer)
	f.attachPod(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	f.bridge.SetUnavailable(true)
	for i := range 10 {
		f.networkPolicies.Add(allow("a", fmt.Sprint("more", i), "b", 9000+int32(i))) //nolint:gosec // small
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := f.Attach(t.Context(), owner("s2"), policy.PodKey{Namespace: "a", Name: "web", UID: "2"}, pod(4, "10.128.0.6"), nil)
	cancel()
	if err := done(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	f.bridge.SetUnavailable(false)
	f.eventually(has(11, "tp_dst="))
	f.eventually(has(1, "reg2=0x4,"))
}

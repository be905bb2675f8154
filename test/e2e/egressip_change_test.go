package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// rewrites is how often policies are written while the sources are looked at.
const rewrites = 20

// testEgressIPMoved swaps the IPs of two nodes.
func testEgressIPMoved(t *testing.T, w *egressWorld) {
	w.during(t, func() {
		w.hosts(t, map[string][]netip.Addr{fixture.Node1: {egressIP(1)}, fixture.Node2: {egressIP(0)}, fixture.Node3: {egressIP(2)}})
		w.agrees(t)
		w.hosts(t, map[string][]netip.Addr{fixture.Node2: {egressIP(1)}, fixture.Node3: {egressIP(0), egressIP(2)}})
		w.agrees(t)
	}, w.possible(t)...)
}

// without returns a table in which a destination receives nothing of a namespace.
func (all table) without(s *egressSpace, places ...string) table {
	all = maps.Clone(all)
	for r := range all {
		if r.namespace == s.namespace && slices.Contains(places, r.to) {
			all[r] = nothing
		}
	}
	return all
}

// The names of the host outside's addresses in tables.
func outsidePlaces() []string { return []string{"outside", "outside on the fabric"} }

// testEgressIPFirewalls: packets that the firewall of the namespace denies do not leave the node of their pod, the others have their sources while it is rewritten.
func testEgressIPFirewalls(t *testing.T, w *egressWorld) {
	rule := func(action networkv1.EgressNetworkPolicyRuleType, to string) networkv1.EgressNetworkPolicyRule {
		return networkv1.EgressNetworkPolicyRule{Type: action, To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: to}}
	}
	policies := w.Network.NetworkV1().EgressNetworkPolicies(w.one.namespace)
	denied := rule(networkv1.EgressNetworkPolicyRuleDeny, w.places[1].addr.String()+"/32")
	if _, err := policies.Create(t.Context(), &networkv1.EgressNetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: networkv1.EgressNetworkPolicySpec{Egress: []networkv1.EgressNetworkPolicyRule{denied}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	want := w.want(t).without(w.one, w.places[1].name)
	w.becomes(t, want)
	w.during(t, func() {
		for i := range rewrites {
			if err := retry.RetryOnConflict(retry.DefaultRetry, func() error { // agents write the status
				o, err := policies.Get(t.Context(), "default", metav1.GetOptions{})
				if err != nil {
					return err
				}
				o.Spec.Egress = []networkv1.EgressNetworkPolicyRule{rule(networkv1.EgressNetworkPolicyRuleDeny, fmt.Sprintf("198.51.100.%d/32", i)), denied}
				_, err = policies.Update(t.Context(), o, metav1.UpdateOptions{})
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		w.becomes(t, want)
	}, want)
	if err := policies.Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.agrees(t)
}

// testEgressIPPolicies is testEgressIPFirewalls for NetworkPolicies.
func testEgressIPPolicies(t *testing.T, w *egressWorld) {
	policy := func(except ...string) *networkingv1.NetworkPolicy {
		all := networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: append(except, w.places[1].addr.String()+"/32")}}
		return &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "closed", Namespace: w.one.namespace},
			Spec: networkingv1.NetworkPolicySpec{
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
				Egress:      []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{all}}},
			},
		}
	}
	want := w.want(t).without(w.one, w.places[1].name)
	w.SetPolicy(t, policy())
	w.becomes(t, want)
	w.during(t, func() {
		for i := range rewrites {
			w.SetPolicy(t, policy(fmt.Sprintf("198.51.100.%d/32", i)))
		}
		w.becomes(t, want)
	}, want)
	w.deletePolicies(t, w.one.namespace)
	w.agrees(t)
}

// testEgressIPAgents kills the agent of each node, then changes IPs while one does not run.
func testEgressIPAgents(t *testing.T, w *egressWorld) {
	w.during(t, func() {
		for _, node := range w.nodes {
			w.killAgent(t, node)
			w.agrees(t)
		}
	}, w.want(t))
	w.service(t, fixture.Node1, agentService, (*lab.Service).Stop)
	t.Cleanup(func() { w.service(t, fixture.Node1, agentService, (*lab.Service).Start) })
	w.hosts(t, map[string][]netip.Addr{fixture.Node2: {egressIP(0), egressIP(1)}, fixture.Node3: {egressIP(2)}})
	w.service(t, fixture.Node1, agentService, (*lab.Service).Start)
	w.agrees(t)
}

// testEgressIPSwitches restarts the vswitchd of each node. With the userspace datapath the interface of the underlay is a port of it.
func testEgressIPSwitches(t *testing.T, w *egressWorld) {
	w.during(t, func() {
		for _, node := range w.nodes {
			w.service(t, node, vswitchdService, (*lab.Service).Restart)
			w.reconnected(t, node)
			w.restoreUnderlay(t, node)
			w.agrees(t)
		}
	}, w.want(t))
}

// testEgressIPMasquerade: a destination that is excepted from masquerading sees addresses of pods without an egress IP, and egress IPs.
func testEgressIPMasquerade(t *testing.T, w *egressWorld) {
	for _, node := range w.nodes {
		w.routeSubnet(t, node)
	}
	if err := w.setNonMasqueradeCIDRs(t.Context(), lab.OutsideAddr().String()+"/32"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.setNonMasqueradeCIDRs(context.WithoutCancel(t.Context()), nil); err != nil {
			t.Error(err)
		}
	})
	want := w.want(t)
	for _, p := range w.none.pods {
		want[row{w.none.namespace, p.Name, w.places[0].name}] = p.Addr.String()
	}
	w.becomes(t, want)
	if err := w.setNonMasqueradeCIDRs(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	w.agrees(t)
}

// routeSubnet gives the host outside a route to a node's pods, until the test ends.
func (c *cluster) routeSubnet(t *testing.T, node string) {
	t.Helper()
	subnet := c.Subnet(t, node).String()
	c.Output(t, lab.Outside, "ip", "route", "replace", subnet, "via", c.Addr(t, node).String())
	t.Cleanup(func() {
		if _, err := c.TryOutput(context.WithoutCancel(t.Context()), lab.Outside, "ip", "route", "del", subnet); err != nil {
			t.Error(err)
		}
	})
}

// testEgressIPClients: hosts outside reach host ports of pods that have an egress IP on another node, and, in mode networkpolicy, the pods themselves: replies
// return by the node that the request came through.
func testEgressIPClients(t *testing.T, w *egressWorld) {
	const port = 8090
	h := &sharedHostPort{trio: &trio{cluster: w.cluster, namespace: w.several.namespace}}
	h.Run(t, h.namespace,
		withHostPort("host-port-tcp", corev1.ContainerPort{HostPort: port, Protocol: corev1.ProtocolTCP}),
		withHostPort("host-port-udp", corev1.ContainerPort{HostPort: port, Protocol: corev1.ProtocolUDP}))
	node := w.Addr(t, fixture.Node1)
	for _, from := range []*sourceRecorder{w.places[0], w.places[4]} {
		for name, ask := range map[string]func(context.Context) (string, error){
			"host-port-tcp": func(ctx context.Context) (string, error) { return fixture.HostnameHTTP(ctx, from.netns, node, port) },
			"host-port-udp": func(ctx context.Context) (string, error) { return fixture.HostnameUDP(ctx, from.netns, node, port) },
		} {
			answers(t, name+" from "+from.name, name, ask)
		}
	}
	if w.mode == config.ModeNetworkPolicy {
		w.routeSubnet(t, fixture.Node1)
		p := w.several.pods[0]
		answers(t, "pod "+p.Name+" from a host outside", p.Name, func(ctx context.Context) (string, error) {
			return fixture.HostnameHTTP(ctx, w.places[0].netns, p.Addr, fixture.HTTPPort)
		})
	}
	h.end(t, "host-port-tcp", "host-port-udp")
}

// answers waits until the pod of that name answers.
func answers(t *testing.T, what, want string, ask func(context.Context) (string, error)) {
	t.Helper()
	fixture.Eventually(t, fixture.SyncTime, what, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		got, err := ask(ctx)
		if err == nil && got != want {
			err = fmt.Errorf("got an answer of %q, want %q", got, want)
		}
		return err
	})
}

// testEgressIPConflicts: an egress IP that two nodes or two namespaces have, or that is the address of a node, is used by no namespace, and an Event reports it.
func testEgressIPConflicts(t *testing.T, w *egressWorld) {
	before := w.want(t)
	for _, conflict := range []struct {
		name   string
		ip     netip.Addr
		create func(*testing.T)
		closed []*egressSpace
	}{
		{"two nodes", egressIP(0), func(t *testing.T) { w.hostEgressIPs(t, fixture.Node2, egressIP(0), egressIP(1)) }, []*egressSpace{w.one}},
		{"two namespaces", egressIP(0), func(t *testing.T) { w.useEgressIPs(t, w.none.namespace, egressIP(0)) }, []*egressSpace{w.one, w.none}},
		{"address of a node", w.Addr(t, fixture.Node2), func(t *testing.T) { w.useEgressIPs(t, w.none.namespace, w.Addr(t, fixture.Node2)) }, []*egressSpace{w.none}},
	} {
		t.Run(conflict.name, func(t *testing.T) {
			want, began := before, time.Now()
			for _, s := range conflict.closed {
				want = want.without(s, outsidePlaces()...)
			}
			w.during(t, func() {
				conflict.create(t)
				w.becomes(t, want)
			}, before, want)
			w.reportsEgressIP(t, began, conflict.ip)
			w.assign(t)
		})
	}
}

// reportsEgressIP waits for a Warning Event on a HostSubnet or a NetNamespace that names the IP.
func (c *cluster) reportsEgressIP(t *testing.T, since time.Time, ip netip.Addr) {
	t.Helper()
	fixture.Eventually(t, fixture.ProgramTime, "a warning about egress IP "+ip.String(), func(ctx context.Context) error {
		events, err := c.Kube.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning})
		if err != nil {
			return err
		}
		var others []string
		for _, e := range events.Items {
			kind := e.InvolvedObject.Kind
			if kind != "HostSubnet" && kind != "NetNamespace" || e.LastTimestamp.Time.Before(since.Truncate(time.Second)) {
				continue
			}
			if strings.Contains(e.Message, ip.String()) {
				return nil
			}
			others = append(others, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("there are %q", others)
	})
}

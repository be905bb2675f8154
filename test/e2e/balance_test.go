package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// TestBalancedServices tests services without kube-proxy (--service-proxy=ovs), in a lab of its own.
func TestBalancedServices(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: has a lab of its own")
	}
	shape := lab.Shape{ServiceProxy: lab.OVS, Mode: lab.NetworkPolicy, Install: fixture.Install(), Unidle: true, ClusterIPs: true}
	x := trioOn(t, &cluster{fixture.Own(t, "e2e-services", shape)})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *trio)
	}{
		{"clients", testBalancedClients},
		{"DNS", testBalancedDNS},
		{"API server", func(t *testing.T, x *trio) { testAPIServerProxies(t, x) }},
		{"webhooks and aggregated APIs", testBalancedAPIServerClients},
		{"no endpoints", testBalancedRejects},
		{"idled", testBalancedIdled},
		{"external addresses", testBalancedExternal},
		{"traces", testBalancedTraces},
		{"sources", testBalancedSources},
		{"egress firewall", testBalancedFirewall},
		{"egress IP", testBalancedEgressIP},
		{"host ports", testBalancedHostPorts},
		{"bad services", testBadServices},
		{"policies", testBalancedPolicies}, // its policies remain
		{"rolling restart", testRollingRestart},
		{"upgrade", testBalancedUpgrade},
		{"upgrade and UDP", testBalancedDatagrams},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, x) })
	}
}

// testBalancedClients: pods, endpoints themselves and nodes reach all endpoints of a service, and service kubernetes.
func testBalancedClients(t *testing.T, x *trio) {
	tcp := x.Expose(t, x.namespace, "tcp", servicePort{Protocol: "TCP", Port: 80, Target: fixture.HTTPPort}, x.b, x.c)
	udp := x.Expose(t, x.namespace, "udp", servicePort{Protocol: "UDP", Port: 53, Target: fixture.UDPPort}, x.b, x.c)
	for _, from := range []end{x.a.End(), x.b.End(), x.c.End(), x.nodeEnd(t, x.node1), x.nodeEnd(t, x.node2)} {
		t.Run(from.Name, func(t *testing.T) {
			reachesBoth(t, func(ctx context.Context) (string, error) { return fixture.HostnameHTTP(ctx, from.NetNS, tcp, 80) })
			// With the userspace datapath a client stays with one endpoint of UDP (docs/decisions/0011-services.md).
			fixture.Eventually(t, fixture.SyncTime, "the service of UDP answers", func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				_, err := fixture.HostnameUDP(ctx, from.NetNS, udp, 53)
				return err
			})
			fixture.Eventually(t, fixture.SyncTime, "service kubernetes answers", func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				return x.greetAPIServer(ctx, from.NetNS)
			})
		})
	}
}

func testBalancedDNS(t *testing.T, x *trio) {
	for _, from := range []pod{x.a, x.c} {
		x.resolves(t, from, apiName, x.apiAddr())
	}
}

// testBalancedRejects: a connection to a service without endpoints is refused at once.
func testBalancedRejects(t *testing.T, x *trio) {
	addr := x.CreateService(t, x.namespace, "none", servicePort{Protocol: "TCP", Port: 80, Target: 80}, map[string]string{"no": "pod"})
	for _, from := range []end{x.a.End(), x.nodeEnd(t, x.node2)} {
		fixture.Eventually(t, fixture.SyncTime, from.Name+" is refused", func(ctx context.Context) error { return refused(ctx, from, netip.AddrPortFrom(addr, 80)) })
	}
}

// testBalancedExternal: hosts outside, nodes and pods reach all endpoints of a service on its node port, at each node, and on its external IP, which the host outside
// routes to a node. Without endpoints they are refused.
func testBalancedExternal(t *testing.T, x *trio) {
	external := netip.MustParseAddr("198.51.100.10")
	x.Expose(t, x.namespace, "external", servicePort{Protocol: "TCP", Port: 80, Target: fixture.HTTPPort}, x.b, x.c)
	svc := x.patchService(t, "external", fmt.Sprintf(`{"spec":{"type":"NodePort","externalIPs":[%q]}}`, external))
	nodePort := uint16(svc.Spec.Ports[0].NodePort)
	x.Output(t, lab.Outside, "ip", "route", "replace", external.String(), "via", x.Addr(t, fixture.Node1).String())
	outside := end{Name: "outside", NetNS: x.outside.NetNS, Addr: lab.OutsideAddr()}
	all := []netip.AddrPort{
		netip.AddrPortFrom(x.Addr(t, fixture.Node1), nodePort), netip.AddrPortFrom(x.Addr(t, fixture.Node2), nodePort), netip.AddrPortFrom(external, 80),
	}
	clients := []end{outside, x.nodeEnd(t, x.node1), x.a.End(), x.b.End()}
	for _, from := range clients {
		for _, to := range all {
			t.Run(from.Name+" to "+to.String(), func(t *testing.T) {
				reachesBoth(t, func(ctx context.Context) (string, error) {
					return fixture.HostnameHTTP(ctx, from.NetNS, to.Addr(), to.Port())
				})
			})
		}
	}
	x.patchService(t, "external", `{"spec":{"selector":{"no":"pod"}}}`)
	for _, from := range clients {
		for _, to := range all {
			fixture.Eventually(t, fixture.SyncTime, from.Name+" to "+to.String()+" is refused", func(ctx context.Context) error { return refused(ctx, from, to) })
		}
	}
}

func (x *trio) patchService(t *testing.T, name, patch string) *corev1.Service {
	t.Helper()
	svc, err := x.Kube.CoreV1().Services(x.namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// refused returns an error if a connection is not refused at once.
func refused(ctx context.Context, from end, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := from.NetNS.DialContext(ctx, "tcp4", to.String())
	if err == nil {
		return errors.Join(errors.New("a connection was accepted"), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return nil
}

// testBalancedPolicies: policies of client and endpoint evaluate the endpoint.
func testBalancedPolicies(t *testing.T, x *trio) {
	addr := x.Expose(t, x.namespace, "evaluated", servicePort{Protocol: "TCP", Port: 80, Target: fixture.HTTPPort}, x.c)
	ask, control := fixture.AsksHTTP(x.a.NetNS, addr, 80), fixture.AsksHTTP(x.b.NetNS, addr, 80)
	fixture.Eventually(t, fixture.SyncTime, "the service answers", ask)
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "no-egress", Namespace: x.namespace},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"client": "a"}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		},
	}
	patch := []byte(`{"metadata":{"labels":{"client":"a"}}}`)
	if _, err := x.Kube.CoreV1().Pods(x.namespace).Patch(t.Context(), x.a.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	x.SetPolicy(t, policy)
	fixture.Stops(t, fixture.SyncTime, "the policy is enforced", func(ctx context.Context) (answered, _ error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if ask(ctx) == nil {
			answered = errors.New("the service still answers")
		}
		return answered, nil
	})
	fixture.MustNotReach(t, "a client without egress", ask, control)
	policy.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{
		IPBlock: &networkingv1.IPBlock{CIDR: netip.PrefixFrom(x.c.Addr, 32).String()},
	}}}}
	x.SetPolicy(t, policy)
	fixture.Eventually(t, fixture.SyncTime, "the service answers a client whose policy allows the endpoint", ask)
}

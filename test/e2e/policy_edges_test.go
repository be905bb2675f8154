package e2e

import (
	"context"
	"fmt"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// testProbes: kubelet's probes reach a pod that is isolated, which would otherwise never be ready; another node and a host outside do not reach it.
func testProbes(t *testing.T, c *cluster) {
	ns := c.Namespace(t)
	c.SetPolicy(t, ingressPolicy(ns, "isolated", "probed"))
	c.SetPolicy(t, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "silent", Namespace: ns},
		Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}},
	})
	probed := c.Run(t, ns, fixture.Netexec("probed", fixture.Node1))[0]
	c.routeOutside(t, fixture.Node1)
	own := fixture.AsksHTTP(c.Machine(t, fixture.Node1).NetNS, probed.Addr, fixture.HTTPPort)
	for _, other := range []string{fixture.Node2, lab.Outside} {
		fixture.MustNotReach(t, "from "+other+" to an isolated pod", fixture.AsksHTTP(c.Machine(t, other).NetNS, probed.Addr, fixture.HTTPPort), own)
	}
}

// crowdSize is how many targets and how many peers testPolicyFlows has.
const crowdSize = 6

// testPolicyFlows: a policy has one flow for each target, peer and port, and not one for each combination.
func testPolicyFlows(t *testing.T, c *cluster) {
	ns := c.Namespace(t)
	c.createOn(t, ns, "target", crowdSize, []string{fixture.Node1})
	c.createOn(t, ns, "peer", crowdSize, []string{fixture.Node2})
	var stations []*station
	for _, wave := range []string{"target", "peer"} {
		for i := range crowdSize {
			p := c.Ready(t, ns, fmt.Sprint(wave, "-", i))
			stations = append(stations, &station{end: p.End(), pod: true, node: p.Node})
		}
	}
	p := newProber(t, stations...)
	wave := func(name string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{waveLabel: name}}
	}
	peers, port := wave("peer"), intstr.FromInt32(80)
	before := len(c.Flows(t, fixture.Node1))
	c.SetPolicy(t, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "crowd", Namespace: ns},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: wave("target"),
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &peers}},
				Ports: []networkingv1.NetworkPolicyPort{{Port: &port}},
			}},
		},
	})
	var asked []evaluated
	for _, q := range p.evaluate(c.objects(t)) {
		if q.protocol == wire.ProtocolTCP && q.from >= crowdSize && q.to < crowdSize {
			asked = append(asked, q)
		}
	}
	fixture.Eventually(t, fixture.SyncTime, "peers reach targets on one port", func(ctx context.Context) error { return p.ask(ctx, asked) })
	if err := p.late(); err != nil {
		fixture.Arrived(t, "%v", err)
	}
	more := len(c.Flows(t, fixture.Node1)) - before
	t.Logf("a policy with %d targets and %d peers is %d flows", crowdSize, crowdSize, more)
	const other = 4 // the port, the outcome, and what else has nothing to do with how many there are
	if more > 2*crowdSize+other {
		t.Errorf("it is %d flows, want at most %d", more, 2*crowdSize+other)
	}
}

package e2e

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// testBalancedTraces: traces follow packets to a service of pods, nodes and a host outside, whose packets the host translates.
func testBalancedTraces(t *testing.T, x *trio) {
	x.Expose(t, x.namespace, "traced", servicePort{Protocol: "TCP", Port: 80, Target: fixture.HTTPPort}, x.b, x.c)
	x.openNodePort(t, "traced")
	to := "service/" + x.namespace + "/traced"
	sources := []string{"pod/" + x.namespace + "/" + x.a.Name, "node/" + fixture.Node1, fabricOutside().String()}
	for _, from := range sources {
		x.wantTrace(t, diagnostics.TraceSpec{Source: from, Destination: to, Port: 80}, diagnostics.VerdictDelivered, to+": 2 of 2 endpoints get the packet")
	}
	isolates := ingressPolicy(x.namespace, "isolates-c", x.c.Name)
	x.SetPolicy(t, isolates)
	t.Cleanup(func() {
		if err := x.Kube.NetworkingV1().NetworkPolicies(x.namespace).Delete(context.WithoutCancel(t.Context()), isolates.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	for _, from := range sources {
		x.wantTrace(t, diagnostics.TraceSpec{Source: from, Destination: to, Port: 80}, diagnostics.VerdictDropped, to+": 1 of 2 endpoints get the packet", "isolates-c")
	}
}

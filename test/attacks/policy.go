package attacks

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// testPolicies has pods get around policies that deny.
func testPolicies(t *testing.T, w *world) {
	t.Run("direct", func(t *testing.T) {
		w.try(t, attack{
			position: aPod, sent: "UDP to a pod whose policy does not admit the sender",
			send: fromPod(w.enemy, func(token []byte) [][]byte { return [][]byte{datagram(w.enemy, to(w.server.Addr), token)} }),
			at:   []receiver{podFrom(w.server, w.friend)}, counters: []counter{w.drops(fixture.Node1, "83")},
		})
	})
	t.Run("log masking", func(t *testing.T) { testLogMasking(t, w) })
	t.Run("bombs", func(t *testing.T) { testPolicyBombs(t, w) })
	t.Run("service to a denied address", func(t *testing.T) { testDeniedService(t, w) })
}

// productNamespace is that of agents and controllers.
const productNamespace = "ovsdn-system"

// agent returns the pod of a node's agent.
func (w *world) agent(t *testing.T, node string) corev1.Pod {
	t.Helper()
	pods, err := w.Kube.CoreV1().Pods(productNamespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=ovsdn-node", FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) != 1 {
		t.Fatalf("%s has %d agents, want 1", node, len(pods.Items))
	}
	return pods.Items[0]
}

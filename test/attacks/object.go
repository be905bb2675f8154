package attacks

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// testObjects has a tenant make objects that are as costly as the API takes them.
func testObjects(t *testing.T, w *world) {
	t.Run("services with large annotations", func(t *testing.T) { testLargeAnnotations(t, w) })
}

// agents returns the process of each node's agent and how much memory it has, in KiB.
func (w *world) agents(t *testing.T) (pids map[string]int, memory map[string]int) {
	t.Helper()
	pids, memory = map[string]int{}, map[string]int{}
	for _, node := range w.Nodes() {
		s, err := w.Service(node, "ovsdn-node")
		if err != nil {
			t.Fatal(err)
		}
		status, err := s.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pids[node] = status.PID
		out := w.Output(t, node, "cat", fmt.Sprintf("/proc/%d/status", status.PID))
		for line := range strings.Lines(out) {
			if _, err := fmt.Sscanf(line, "VmRSS: %d kB", new(int)); err == nil {
				var kib int
				_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &kib)
				memory[node] = kib
			}
		}
	}
	return pids, memory
}

// testLargeAnnotations makes services of which agents need little and the API has much.
func testLargeAnnotations(t *testing.T, w *world) {
	const size = 255 << 10 // the API takes 256 KiB of annotations, with their names
	count := sized(100, 4000)
	pids, before := w.agents(t)
	text := strings.Repeat("x", size)
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	services := w.Kube.CoreV1().Services(w.attackers)
	name := func(n int) string { return fmt.Sprintf("large-%d", n) }
	for n := range count {
		group.Go(func() error {
			_, err := services.Create(ctx, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: name(n), Labels: map[string]string{"attack": "large"}, Annotations: map[string]string{"text": text}},
				Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
			}, metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		group, ctx := errgroup.WithContext(context.WithoutCancel(t.Context()))
		group.SetLimit(8)
		for n := range count {
			group.Go(func() error { return services.Delete(ctx, name(n), metav1.DeleteOptions{}) })
		}
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	})
	w.settle(t, w.attackers, w.a1, w.a2) // agents have seen them all
	var after, memory map[string]int
	// Agents receive the objects, so that there is some garbage for a while. They must not retain them.
	most := func(node string) int { return before[node] + count*size>>10/2 + 64<<10 }
	fixture.Eventually(t, fixture.SyncTime, "agents release the objects", func(context.Context) error {
		after, memory = w.agents(t)
		for node, kib := range memory {
			if kib > most(node) {
				return fmt.Errorf("the agent of %s has %d KiB, want at most %d, for annotations of %d KiB", node, kib, most(node), count*size>>10)
			}
		}
		return nil
	})
	report(t, attack{position: apiClient, sent: fmt.Sprintf("%d services with annotations of %d KiB", count, size>>10)}, 0,
		[]string{fmt.Sprintf("memory of agents in KiB: %v before, %v after", before, memory)})
	for node, pid := range pids {
		if after[node] != pid {
			t.Errorf("the agent of %s was started again", node)
		}
	}
}

package attacks

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// testMacvlan has a tenant ask for an interface past the bridge: on the node's network and on the node's own interface in the pod network, with a new pod and
// with a running one.
func testMacvlan(t *testing.T, w *world) {
	for value, because := range map[string]string{"true": "no container of the pod is privileged", "tun0": "no container of the pod is privileged", "../eth0": "the value is not a name"} {
		t.Run("new pod with "+value, func(t *testing.T) {
			const name = "macvlan"
			started := time.Now()
			object := fixture.Netexec(name, fixture.Node1)
			object.Annotations = map[string]string{networkv1.AssignMacvlanAnnotation: value}
			w.Create(t, w.attackers, object)
			defer func() {
				if err := w.DeletePod(context.WithoutCancel(t.Context()), w.attackers, name); err != nil {
					t.Error(err)
				}
			}()
			w.Warned(t, started, "Pod", name, "can't have the macvlan interface", because)
			pod, err := w.Kube.CoreV1().Pods(w.attackers).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			arrived := 0
			if pod.Status.PodIP != "" {
				arrived = 1
				fixture.Arrived(t, "the pod has the network %s, want none", pod.Status.PodIP)
			}
			report(t, attack{position: aTenant, sent: "an unprivileged pod with " + networkv1.AssignMacvlanAnnotation + "=" + value}, arrived, []string{"refusal: " + because})
		})
	}
	t.Run("running pod", func(t *testing.T) { tryMacvlanOfRunningPod(t, w) })
}

func tryMacvlanOfRunningPod(t *testing.T, w *world) {
	started := time.Now()
	annotate := func(ctx context.Context, value any) error {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{networkv1.AssignMacvlanAnnotation: value}}})
		if err != nil {
			return err
		}
		if _, err := w.Kube.CoreV1().Pods(w.attackers).Patch(ctx, w.a1.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("annotate pod %s: %w", w.a1.Name, err)
		}
		return nil
	}
	if err := annotate(t.Context(), "true"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := annotate(context.WithoutCancel(t.Context()), nil); err != nil {
			t.Error(err)
		}
	}()
	w.Warned(t, started, "Pod", w.a1.Name, networkv1.AssignMacvlanAnnotation, "has no effect")
	arrived := 0
	if err := w.a1.NetNS.Do(func() error {
		links, err := netlinksafe.LinkList()
		for _, link := range links {
			if link.Attrs().Name == sandbox.MacvlanName || link.Type() == "macvlan" {
				arrived++
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if arrived > 0 {
		fixture.Arrived(t, "the running pod has a macvlan interface, want none")
	}
	report(t, attack{position: aTenant, sent: "a running pod that asks for a macvlan interface"}, arrived, []string{"Event MacvlanUnchanged"})
}

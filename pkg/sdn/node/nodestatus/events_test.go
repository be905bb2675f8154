package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

func TestWarnSync(t *testing.T) {
	client := fake.NewClientset()
	r := NewReporter(t.Context(), client, "node1")
	defer r.Stop()
	r.WarnSync(t.Context(), eventreason.NetworkSetupFailed, errors.New("another agent is here"))
	events, err := client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(events.Items) != 1 {
		t.Fatalf("got %d Events, want 1", len(events.Items))
	}
	e := events.Items[0]
	if e.Type != corev1.EventTypeWarning || e.Reason != eventreason.NetworkSetupFailed || e.Message != "another agent is here" || e.InvolvedObject != *r.node ||
		e.LastTimestamp.IsZero() || e.Source.Component != "ovsdn-node" ||
		e.ReportingController != "ovsdn-node" || e.ReportingInstance != "node1" {
		t.Errorf("got Event %+v", e)
	}
}

func TestServiceEvents(t *testing.T) {
	client := fake.NewClientset()
	r := NewReporter(t.Context(), client, "node1")
	defer r.Stop()
	r.WarnService("ns", "web", "uid", eventreason.HealthCheckPortFailed, "the port is in use")
	r.EventService("ns", "web", "uid", eventreason.NeedPods, "a client needs it")
	await.OK(t, 90*time.Second, func(ctx context.Context) error {
		events, err := client.CoreV1().Events("ns").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var got []string
		for _, e := range events.Items {
			if want := (corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: "ns", Name: "web", UID: "uid"}); e.InvolvedObject != want {
				t.Errorf("got an Event on %v, want %v", e.InvolvedObject, want)
			}
			got = append(got, strings.Join([]string{e.Type, e.Reason, e.Message}, " "))
		}
		slices.Sort(got)
		if want := []string{"Normal NeedPods a client needs it", "Warning HealthCheckPortFailed the port is in use"}; !slices.Equal(got, want) {
			return fmt.Errorf("got Events %q, want %q", got, want)
		}
		return nil
	})
}

// NeedPods of a service that does not wake is written each ten seconds; client-go drops most of a Warning that repeats as often.
func TestServiceEvents_repeated(t *testing.T) {
	const repeats, burst, refill = 100, 25, 300 // seconds
	for reason, want := range map[string]int{eventreason.NeedPods: repeats, eventreason.HealthCheckPortFailed: burst + repeats*10/refill} {
		t.Run(reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				r := NewReporter(t.Context(), client, "node1")
				defer r.Stop()
				for range repeats {
					if reason == eventreason.NeedPods {
						r.EventService("ns", "web", "uid", reason, "a client needs it")
					} else {
						r.WarnService("ns", "web", "uid", reason, "the port is in use")
					}
					time.Sleep(10 * time.Second) //nolint:forbidigo // of the bubble
				}
				writes := 0
				for _, a := range client.Actions() {
					if a.GetVerb() == "create" || a.GetVerb() == "patch" {
						writes++
					}
				}
				if writes != want {
					t.Errorf("got %d writes, want %d", writes, want)
				}
			})
		})
	}
}

// The API server accepts Events about objects with the longest names that it allows, and with the longest messages of the agent.
func TestEventsOfLongestNames(t *testing.T) {
	tier.Parallel(t)
	admin := apitest.Start(t)
	kube, ours := apitest.Clients(t, admin)
	defer apitest.Disconnect(kube, ours)
	const longName, longLabel = 253, 63
	node, namespace := strings.Repeat("n", longName), strings.Repeat("s", longLabel)
	policy := namespace + "/" + strings.Repeat("p", longName)
	_, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := NewReporter(t.Context(), kube, node)
	defer r.Stop()
	pod := sandbox.Pod{Namespace: namespace, Name: strings.Repeat("q", longName), UID: "uid"}
	r.Warn(eventreason.NetworkWaiting, errors.New("about the node"))
	r.WarnSync(t.Context(), eventreason.NetworkSetupFailed, errors.New("the last"))
	r.WarnPod(pod, "PodEvent", "about the pod "+pod.Name)
	r.WarnNode(eventreason.NetworkPoliciesBeyondBudgets, strings.Repeat(policy+", ", 10))
	for _, want := range []struct{ namespace, name, reason, message string }{
		{metav1.NamespaceDefault, node, eventreason.NetworkWaiting, "about the node"},
		{metav1.NamespaceDefault, node, eventreason.NetworkSetupFailed, "the last"},
		{namespace, pod.Name, "PodEvent", "about the pod " + pod.Name},
		{metav1.NamespaceDefault, node, eventreason.NetworkPoliciesBeyondBudgets, policy},
	} {
		await.OK(t, 90*time.Second, func(ctx context.Context) error {
			events, err := kube.CoreV1().Events(want.namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + want.reason})
			if err != nil {
				return err
			}
			for _, e := range events.Items {
				if e.InvolvedObject.Name == want.name && strings.HasPrefix(e.Message, want.message) {
					return nil
				}
			}
			return fmt.Errorf("no Event %s about %s: got %d", want.reason, want.name, len(events.Items))
		})
	}
}

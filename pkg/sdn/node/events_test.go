package node

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestLastEventIsWrittenBeforeTheAgentEnds(t *testing.T) {
	client := fake.NewClientset()
	r := newReporter(t.Context(), client, "node1")
	defer r.stop()
	r.warnLast(t.Context(), reasonFailed, errors.New("another agent is here"))
	events, err := client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(events.Items) != 1 {
		t.Fatalf("there are %d Events", len(events.Items))
	}
	e := events.Items[0]
	if e.Type != corev1.EventTypeWarning || e.Reason != reasonFailed || e.Message != "another agent is here" || e.InvolvedObject != *r.node ||
		e.LastTimestamp.IsZero() || e.Source.Component != "ovsdn-node" ||
		e.ReportingController != "ovsdn-node" || e.ReportingInstance != "node1" {
		t.Errorf("it is %+v", e)
	}
}

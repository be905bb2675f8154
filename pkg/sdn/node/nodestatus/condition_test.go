package nodestatus

import (
	"context"
	"errors"
	"fmt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

func nodeWith(conditions ...corev1.NodeCondition) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "u", ResourceVersion: "7"}, Status: corev1.NodeStatus{Conditions: conditions}}
}

// writes returns the patches of nodes/status.
func writes(client *fake.Clientset) (patches int) {
	for _, a := range client.Actions() {
		if a.Matches("patch", "nodes") && a.GetSubresource() == "status" {
			patches++
		}
	}
	return patches
}

func TestCondition_writtenOnce(t *testing.T) {
	long := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	given := corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: config.ReasonHostSubnetGiven, LastTransitionTime: long,
	}
	client := fake.NewClientset(nodeWith(ready, given))
	c := NewCondition(client.CoreV1().Nodes(), "node1")
	get := func() *corev1.NodeCondition {
		t.Helper()
		node, err := client.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(node.Status.Conditions) != 2 {
			t.Fatalf("conditions: %+v", node.Status.Conditions)
		}
		return config.NetworkUnavailable(node)
	}
	// Unavailable for another reason: the same transition.
	if err := c.write(t.Context(), *Unavailable(errors.New("no bridge"))); err != nil {
		t.Fatal(err)
	}
	if got := get(); got.Status != corev1.ConditionTrue || got.Reason != config.ReasonNotReady || got.Message != "no bridge" || !got.LastTransitionTime.Equal(&long) {
		t.Errorf("got %+v", got)
	}
	for range 2 {
		if err := c.write(t.Context(), *Available("pods get addresses")); err != nil {
			t.Fatal(err)
		}
	}
	if got := get(); got.Status != corev1.ConditionFalse || got.Reason != config.ReasonReady || got.LastTransitionTime.Equal(&long) {
		t.Errorf("got %+v", got)
	}
	if n := writes(client); n != 2 {
		t.Errorf("%d writes, want 2", n)
	}
}

// While the node has no HostSubnet, the controller's condition has the cause.
func TestCondition_noHostSubnet(t *testing.T) {
	for reason, want := range map[string]string{
		config.ReasonNoHostSubnet: config.ReasonNoHostSubnet,
		config.ReasonReady:        config.ReasonNotReady,
	} {
		status := corev1.ConditionTrue
		if reason == config.ReasonReady {
			status = corev1.ConditionFalse
		}
		client := fake.NewClientset(nodeWith(corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: status, Reason: reason}))
		c := NewCondition(client.CoreV1().Nodes(), "node1")
		if err := c.write(t.Context(), *Unavailable(fmt.Errorf("%w: why", ErrNoHostSubnet))); err != nil {
			t.Fatal(err)
		}
		node, err := client.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := config.NetworkUnavailable(node); got.Status != corev1.ConditionTrue || got.Reason != want {
			t.Errorf("%s: got %+v, want True with reason %s", reason, got, want)
		}
	}
}

// The first write fails with a timeout, the second with a conflict; both are repeated.
func TestCondition_writeRetried(t *testing.T) {
	client := fake.NewClientset(nodeWith())
	failures := []error{apierrors.NewServerTimeout(schema.GroupResource{}, "patch", 1), apierrors.NewConflict(schema.GroupResource{}, "node1", nil)}
	written := make(chan struct{}, 10)
	client.PrependReactor("patch", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) {
		if len(failures) > 0 {
			err := failures[0]
			failures = failures[1:]
			return true, nil, err
		}
		written <- struct{}{}
		return false, nil, nil
	})
	c := NewCondition(client.CoreV1().Nodes(), "node1")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	c.Set(Available("yes"))
	<-written
	cancel()
	<-done
}

func TestCondition_noStatus(t *testing.T) {
	client := fake.NewClientset(nodeWith())
	c := NewCondition(client.CoreV1().Nodes(), "node1")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	c.Set(nil)
	c.Refresh()
	cancel()
	<-done
	if len(client.Actions()) > 0 {
		t.Errorf("got requests %v, want none", client.Actions())
	}
}

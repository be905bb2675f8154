package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// warned waits for a warning about an object, given since a time, that says all of the words.
func (c *cluster) warned(t *testing.T, since time.Time, kind, name string, words ...string) {
	t.Helper()
	eventually(t, programTime, fmt.Sprintf("a warning about %s %s that says %q", kind, name, words), func(ctx context.Context) error {
		warnings, err := c.warnings(ctx, since, kind, name)
		if err != nil {
			return err
		}
		var others []string
		for _, e := range warnings {
			if saysAll(e.Message, words) {
				return nil
			}
			others = append(others, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("it has %q", others)
	})
}

// notWarned fails for each warning of a component about an object.
func (c *cluster) notWarned(t *testing.T, since time.Time, kind, name, component string) {
	t.Helper()
	warnings, err := c.warnings(t.Context(), since, kind, name)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range warnings {
		switch {
		case e.Source.Component != component:
		case strings.Contains(e.Message, "the API server does not answer"):
			t.Logf("the machine was slow: %s: %s", e.Reason, e.Message) // a program that starts gives it some seconds
		default:
			t.Errorf("%s warns about %s %s: %s: %s", component, kind, name, e.Reason, e.Message)
		}
	}
}

func (c *cluster) warnings(ctx context.Context, since time.Time, kind, name string) ([]corev1.Event, error) {
	events, err := c.kube.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(events.Items, func(e corev1.Event) bool {
		// Events know seconds only.
		return e.Type != corev1.EventTypeWarning || e.LastTimestamp.Time.Before(since.Truncate(time.Second))
	}), nil
}

func saysAll(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

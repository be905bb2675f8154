package reconcile

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOnlyNamed(t *testing.T) {
	var o metav1.ListOptions
	OnlyNamed("web")(&o)
	if want := "metadata.name=web"; o.FieldSelector != want {
		t.Errorf("got field selector %q, want %q", o.FieldSelector, want)
	}
}

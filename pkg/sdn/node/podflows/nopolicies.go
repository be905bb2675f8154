package podflows

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// NoPolicies implements Policies for mode subnet, which evaluates no policies.
type NoPolicies struct{}

// Fetch returns no UID: all namespaces have the same VNID.
func (NoPolicies) Fetch(context.Context, string) (types.UID, error) { return "", nil }

// Attach does nothing.
func (NoPolicies) Attach(context.Context, pipeline.Owner, policy.PodKey, pipeline.Pod, *corev1.Pod) func(context.Context) error {
	return func(context.Context) error { return nil }
}

// Detach does nothing.
func (NoPolicies) Detach(pipeline.Owner) func(context.Context) error {
	return func(context.Context) error { return nil }
}

package pods

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// NoPolicies is for the mode that judges nobody.
type NoPolicies struct{}

// Fetch knows all that there is to know.
func (NoPolicies) Fetch(context.Context, string) error { return nil }

// Attach does nothing.
func (NoPolicies) Attach(context.Context, pipeline.Owner, policy.PodKey, pipeline.Pod, *corev1.Pod) func(context.Context) error {
	return func(context.Context) error { return nil }
}

// Detach does nothing.
func (NoPolicies) Detach(pipeline.Owner) func(context.Context) error {
	return func(context.Context) error { return nil }
}

// Of says that there are no rules.
func (NoPolicies) Of(policy.PodKey) pipeline.PodPolicies { return pipeline.PodPolicies{} }

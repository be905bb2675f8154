package podflows

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// PodHandler is a feature with flows for the pods of this node, or with inputs of the pods' flows (*networkpolicy.Policies, *egresspolicy.Policies).
type PodHandler interface {
	// Attach is called before the pod's own flows are set, and again for an attached owner. object is the pod as read from the API server; nil: the cached one. The
	// returned function waits until the feature's flows for the pod are installed.
	Attach(ctx context.Context, owner pipeline.Owner, key policy.PodKey, pod pipeline.Pod, object *corev1.Pod) (done func(context.Context) error)

	// Detach is called after the pod's own flows are removed from the store, also for an owner that is not attached. The returned function waits until the
	// feature's flows for the pod are removed.
	Detach(owner pipeline.Owner) (done func(context.Context) error)
}

func (f *Flows) attach(ctx context.Context, owner pipeline.Owner, key policy.PodKey, pod pipeline.Pod, object *corev1.Pod) (done func(context.Context) error) {
	waits := make([]func(context.Context) error, len(f.handlers))
	for i, h := range f.handlers {
		waits[i] = h.Attach(ctx, owner, key, pod, object)
	}
	return waitAll(waits)
}

func (f *Flows) detach(owner pipeline.Owner) (done func(context.Context) error) {
	waits := make([]func(context.Context) error, len(f.handlers))
	for i, h := range f.handlers {
		waits[i] = h.Detach(owner)
	}
	return waitAll(waits)
}

func waitAll(waits []func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		errs := make([]error, len(waits))
		for i, wait := range waits {
			errs[i] = wait(ctx)
		}
		return errors.Join(errs...)
	}
}

package podflows

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

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

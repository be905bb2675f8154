package vnids

import (
	"context"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// fetchTimeout limits the request to the API server that a pod's ADD waits for.
const fetchTimeout = 2 * time.Second

// resolve publishes the VNID of a namespace that a pod's ADD needs before the watch has delivered its NetNamespace. Concurrent calls for a namespace
// share one request to the API server. After the error the container runtime repeats ADD.
func (v *VNIDs) resolve(ctx context.Context, name string) error {
	done := v.fetches.DoChan(name, func() (any, error) {
		// Other ADDs wait for the answer too: the request must not end with this one.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
		defer cancel()
		return nil, v.fetch(ctx, name)
	})
	select {
	case result := <-done:
		return result.Err
	case <-ctx.Done():
		return fmt.Errorf("wait for the NetNamespace of namespace %s: %w", name, ctx.Err())
	}
}

func (v *VNIDs) fetch(ctx context.Context, name string) error {
	o, err := v.get(ctx, name)
	if apierrors.IsNotFound(err) {
		return tryAgain("namespace %s has no NetNamespace yet: ovsdn-controller creates it; check that it runs", name, err)
	}
	if err != nil {
		return tryAgain("failed to get the NetNamespace of namespace %s from the Kubernetes API", name, err)
	}
	n, err := config.ParseNetNamespace(o)
	if err != nil {
		return tryAgain("NetNamespace %s is invalid; correct it", name, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, exists := v.namespaces[name]; !exists { // else the watch has delivered this state, or a newer one
		v.setNamespace(ctx, n)
	}
	return nil
}

func tryAgain(format, name string, err error) error {
	return types.NewError(types.ErrTryAgainLater, fmt.Sprintf(format, name), err.Error())
}

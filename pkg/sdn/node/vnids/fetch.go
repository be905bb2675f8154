package vnids

import (
	"context"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// fetchTime bounds the one question that a pod's ADD waits for.
const fetchTime = 2 * time.Second

// Fetch makes sure that the namespace's VNID is known. It asks the API server once if nobody has told of it, since the watch may be
// behind kubelet's; pods of a namespace that ask at once share the answer. The error makes the runtime come again.
func (v *VNIDs) Fetch(ctx context.Context, name string) error {
	if v.isCurrent(name) {
		return nil
	}
	done := v.fetches.DoChan(name, func() (any, error) {
		// It is not only for this pod.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTime)
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

// isCurrent says whether pods that come now get the VNID that is known. That of a NetNamespace that has gone is for those who are left of
// it: a new one of the same name has another.
func (v *VNIDs) isCurrent(name string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.flat() || v.namespaces[name].current()
}

func (v *VNIDs) fetch(ctx context.Context, name string) error {
	o, err := v.get(ctx, name)
	if apierrors.IsNotFound(err) {
		return tryAgain("namespace %s has no NetNamespace yet: ovsdn-controller makes it; is it running?", name, err)
	}
	if err != nil {
		return tryAgain("can't look up the NetNamespace of namespace %s in the Kubernetes API", name, err)
	}
	n, err := config.ParseNetNamespace(o)
	if err != nil {
		return tryAgain("NetNamespace %s is not usable, correct it", name, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	ns := v.namespace(n.Name)
	if ns.current() {
		return nil // by the watch, which may be ahead of the answer
	}
	v.take(ctx, n)
	ns.unsettled = true // nobody waits, as the pod's own flows come behind; when the watch tells of it somebody does
	return nil
}

// Unknown is the error of a pod whose namespace lost its NetNamespace while the pod was being attached.
func Unknown(name string) error {
	return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("namespace %s has no NetNamespace any more", name), "")
}

func tryAgain(format, name string, err error) error {
	return types.NewError(types.ErrTryAgainLater, fmt.Sprintf(format, name), err.Error())
}

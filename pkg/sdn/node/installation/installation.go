// Package installation follows whether the agent's installation is being deleted, after which the agent uninstalls the pod network from its node.
package installation

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// Watch watches whether the namespace of the agent's installation is being deleted. The watch must begin before the deletion: when the agent is
// stopped, its permissions are deleted, but an open watch continues. See docs/decisions/0005.
type Watch struct {
	factory  informers.SharedInformerFactory
	onChange func(deleting bool) // called when the deletion begins, and when the namespace was created again
	deleting atomic.Bool
}

// New returns a watch of the namespace. Without a namespace, it never calls onChange.
func New(namespace string, kube kubernetes.Interface, onChange func(deleting bool)) (*Watch, error) {
	i := &Watch{onChange: onChange}
	if namespace == "" {
		return i, nil
	}
	i.factory = informers.NewSharedInformerFactoryWithOptions(kube, 0,
		informers.WithTweakListOptions(reconcile.OnlyNamed(namespace)),
		informers.WithTransform(func(o any) (any, error) {
			if ns, ok := o.(*corev1.Namespace); ok {
				return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
					Name: ns.Name, UID: ns.UID, ResourceVersion: ns.ResourceVersion, DeletionTimestamp: ns.DeletionTimestamp,
				}}, nil
			}
			return o, nil
		}))
	if _, err := i.factory.Core().V1().Namespaces().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    i.update,
		UpdateFunc: func(_, o any) { i.update(o) },
		DeleteFunc: func(any) { i.set(true) },
	}); err != nil {
		return nil, fmt.Errorf("watch namespace %s: %w", namespace, err)
	}
	return i, nil
}

// Run watches until the context ends.
func (i *Watch) Run(ctx context.Context) {
	if i.factory == nil {
		return
	}
	i.factory.Start(ctx.Done())
	<-ctx.Done()
	i.factory.Shutdown()
}

// Deleting reports whether the namespace is being deleted, or does not exist.
func (i *Watch) Deleting() bool { return i.deleting.Load() }

func (i *Watch) update(o any) {
	if ns, ok := o.(*corev1.Namespace); ok {
		i.set(ns.DeletionTimestamp != nil)
	}
}

func (i *Watch) set(deleting bool) {
	if i.deleting.Swap(deleting) != deleting {
		i.onChange(deleting)
	}
}

// checkTimeout limits the request of CheckUninstalled.
const checkTimeout = 15 * time.Second

// CheckUninstalled returns an error unless the namespace of the installation does not exist or is being deleted. It also returns an
// error if the API server does not answer: the network may be in use.
func CheckUninstalled(ctx context.Context, kube kubernetes.Interface, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	ns, err := kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("nothing was changed: get namespace %s, which must have been deleted (see --kube-apiserver): %w", namespace, err)
	case ns.DeletionTimestamp == nil:
		return fmt.Errorf("nothing was changed: namespace %s exists, so the pod network is in use; delete the installation first (docs/uninstall.md)", namespace)
	}
	return nil
}

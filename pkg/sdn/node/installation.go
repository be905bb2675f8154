package node

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// installation knows whether all that the agent was installed with is being deleted: its namespace. It must know before the agent is told
// to stop, since by then its rights are gone; a watch that was begun before outlives them. See docs/decisions/0005.
type installation struct {
	factory informers.SharedInformerFactory
	tell    func(leaving bool) // called when it begins to be deleted, and when it is there after all
	leaving atomic.Bool
}

// newInstallation watches the namespace when it runs; with the namespace "" it never sees anything.
func newInstallation(namespace string, kube kubernetes.Interface, tell func(leaving bool)) (*installation, error) {
	i := &installation{tell: tell}
	if namespace == "" {
		return i, nil
	}
	own := fields.OneTermEqualSelector(metav1.ObjectNameField, namespace).String()
	i.factory = informers.NewSharedInformerFactoryWithOptions(kube, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = own }),
		informers.WithTransform(func(o any) (any, error) {
			if ns, ok := o.(*corev1.Namespace); ok {
				return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
					Name: ns.Name, UID: ns.UID, ResourceVersion: ns.ResourceVersion, DeletionTimestamp: ns.DeletionTimestamp,
				}}, nil
			}
			return o, nil
		}))
	if _, err := i.factory.Core().V1().Namespaces().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    i.see,
		UpdateFunc: func(_, o any) { i.see(o) },
		DeleteFunc: func(any) { i.set(true) },
	}); err != nil {
		return nil, fmt.Errorf("watching namespace %s: %w", namespace, err)
	}
	return i, nil
}

// run watches until the context ends.
func (i *installation) run(ctx context.Context) {
	if i.factory == nil {
		return
	}
	i.factory.Start(ctx.Done())
	<-ctx.Done()
	i.factory.Shutdown()
}

func (i *installation) see(o any) {
	if ns, ok := o.(*corev1.Namespace); ok {
		i.set(ns.DeletionTimestamp != nil)
	}
}

func (i *installation) set(leaving bool) {
	if i.leaving.Swap(leaving) != leaving {
		i.tell(leaving)
	}
}

// answerTime is how long the API server may take to say whether there is an installation.
const answerTime = 15 * time.Second

// CheckUninstalled returns nil if the namespace of an installation is not there, or is being deleted. That the API server can't be asked is an
// error, too: a network that is in use would be lost.
func CheckUninstalled(ctx context.Context, kube kubernetes.Interface, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	ns, err := kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("nothing was touched: ask the API server whether namespace %s is gone (see --kube-apiserver): %w", namespace, err)
	case ns.DeletionTimestamp == nil:
		return fmt.Errorf("nothing was touched: namespace %s is there, so the pod network is in use; delete it with all that was installed first (docs/uninstall.md)", namespace)
	}
	return nil
}

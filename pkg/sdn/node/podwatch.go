package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// watchPods notifies the pod manager of changes of this node's pods.
func (n *nodeNetwork) watchPods(ctx context.Context) error {
	return watchPods(n.caches.Local.Core().V1().Pods().Informer(), func(pod *corev1.Pod) { n.pods.PodChanged(ctx, pod) })
}

// watchPods calls changed for added and changed pods. Nothing follows from the deletion of a pod: its sandbox may run on, until DEL.
func watchPods(informer cache.SharedIndexInformer, changed func(*corev1.Pod)) error {
	handle := func(o any) {
		if pod, ok := o.(*corev1.Pod); ok {
			changed(pod)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: handle, UpdateFunc: func(_, o any) { handle(o) }})
	return err
}

package multicast

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// podWatch counts one namespace's pods on other nodes. The lock of Listeners guards it.
type podWatch struct {
	nodes   map[string]int // number of pods by node
	started bool
	synced  bool
	cancel  context.CancelFunc
}

func newPodWatch() *podWatch { return &podWatch{nodes: map[string]int{}, cancel: func() {}} }

// watch counts the namespace's pods until p.cancel is called or the context ends. It does not block.
func (l *Listeners) watch(ctx context.Context, vnid config.VNID, namespace string, p *podWatch) error {
	informer := coreinformers.NewPodInformer(l.client, namespace, 0, cache.Indexers{})
	if err := informer.SetTransform(strip); err != nil {
		return err
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { l.updateCounts(vnid, p, nil, o) },
		UpdateFunc: func(previous, o any) { l.updateCounts(vnid, p, previous, o) },
		DeleteFunc: func(o any) { l.updateCounts(vnid, p, o, nil) },
	})
	if err != nil {
		return err
	}
	ctx, p.cancel = context.WithCancel(ctx)
	l.watches.Go(func() { informer.RunWithContext(ctx) })
	l.watches.Go(func() {
		select {
		case <-ctx.Done():
		case <-registration.HasSyncedChecker().Done():
			l.mu.Lock()
			defer l.mu.Unlock()
			p.synced = true
			l.loop.Add(vnid.String())
		}
	})
	return nil
}

// updateCounts counts a pod on its current node instead of on its previous one. Either object may be nil.
func (l *Listeners) updateCounts(vnid config.VNID, p *podWatch, previous, current any) {
	from, to := l.nodeOf(previous), l.nodeOf(current)
	if from == to {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := false
	if from != "" {
		if p.nodes[from]--; p.nodes[from] == 0 {
			delete(p.nodes, from)
			changed = true
		}
	}
	if to != "" {
		p.nodes[to]++
		changed = changed || p.nodes[to] == 1
	}
	if changed && p.synced {
		l.loop.AddAfter(vnid.String(), publishDelay)
	}
}

// nodeOf returns the node of a running pod, or "" if the pod is on this node or not in the pod network.
func (l *Listeners) nodeOf(o any) string {
	if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = tombstone.Obj
	}
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.Spec.HostNetwork || pod.Spec.NodeName == l.self {
		return ""
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return ""
	}
	return pod.Spec.NodeName
}

// strip is an informer's transform that retains the fields that nodeOf and the cache read.
func strip(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, ResourceVersion: pod.ResourceVersion},
		Spec:       corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork},
		Status:     corev1.PodStatus{Phase: pod.Status.Phase},
	}, nil
}

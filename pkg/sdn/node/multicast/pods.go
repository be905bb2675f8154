package multicast

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// pods is where one namespace's pods are. The lock of Listeners is for it too.
type pods struct {
	nodes   map[string]int // how many listen, by name of the node; this node is not among them
	started bool
	synced  bool
	cancel  context.CancelFunc
}

func newPods() *pods { return &pods{nodes: map[string]int{}, cancel: func() {}} }

func (p *pods) stop() { p.cancel() }

// watch counts the namespace's pods until p is stopped or the context ends. It returns at once.
func (l *Listeners) watch(ctx context.Context, vnid config.VNID, namespace string, p *pods) error {
	informer := coreinformers.NewPodInformer(l.client, namespace, 0, cache.Indexers{})
	if err := informer.SetTransform(strip); err != nil {
		return err
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { l.count(vnid, p, nil, o) },
		UpdateFunc: func(before, o any) { l.count(vnid, p, before, o) },
		DeleteFunc: func(o any) { l.count(vnid, p, o, nil) },
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

// count takes a pod from where it was to where it is; either may be nil.
func (l *Listeners) count(vnid config.VNID, p *pods, was, is any) {
	from, to := l.listensOn(was), l.listensOn(is)
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
		l.loop.AddAfter(vnid.String(), refreshDelay)
	}
}

// listensOn returns the other node where the pod listens, if it does at all.
func (l *Listeners) listensOn(o any) string {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
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

// strip leaves of a pod what is looked at here, and what the cache needs.
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

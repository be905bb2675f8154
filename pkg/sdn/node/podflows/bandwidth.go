package podflows

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// The limits of a pod's bandwidth are an input of its flows, by which a changed annotation changes them while the pod runs. Only annotations set them: the
// CNI configuration does not declare the capability "bandwidth", so that the runtime passes none (docs/decisions/0015-bandwidth.md).

// limits are the limits of an attached pod.
type limits struct {
	pod      sandbox.Pod
	active   config.Bandwidth
	sent     bool              // to the store, the active ones
	reported map[string]string // errors by annotation
}

// limitsOf returns the limits of the pod's attachment. The caller holds f.mu.
func (f *Flows) limitsOf(p sandbox.Pod) *limits {
	l := f.limits[p.Attachment]
	if l == nil {
		l = &limits{reported: map[string]string{}}
		f.limits[p.Attachment] = l
	}
	l.pod = p
	return l
}

// read sets the limits to those of the annotations. An invalid one retains the limit that is active, and is reported once.
func (l *limits) read(annotations map[string]string, events Events) {
	for _, direction := range []struct {
		annotation, name string
		active           *uint64
	}{
		{config.IngressBandwidthAnnotation, "ingress", &l.active.Ingress},
		{config.EgressBandwidthAnnotation, "egress", &l.active.Egress},
	} {
		limit, err := config.ParseBandwidth(annotations, direction.annotation)
		if err == nil {
			*direction.active = limit
			delete(l.reported, direction.annotation)
			continue
		}
		if l.reported[direction.annotation] == err.Error() {
			continue
		}
		l.reported[direction.annotation] = err.Error()
		effect := "unlimited"
		if *direction.active > 0 {
			effect = fmt.Sprintf("limited to %d bit/s", *direction.active)
		}
		events.WarnPod(l.pod, eventreason.InvalidBandwidth, fmt.Sprintf("%v; the pod's %s bandwidth stays %s", err, direction.name, effect))
	}
}

// publishBandwidth adds the limits of a pod to the update. The object may be nil. The caller holds f.mu, so that the cache is read in the order of updates.
func (f *Flows) publishBandwidth(u *flowstore.Update, p sandbox.Pod, object *corev1.Pod) {
	l := f.limitsOf(p)
	if cached := sandbox.CachedObject(f.cache, p); cached != nil {
		object = cached
	}
	if object != nil {
		l.read(object.Annotations, f.events)
	}
	l.sent = true
	u.Publish = append(u.Publish, flowstore.Published{Input: inputs.Bandwidth(p.Owner()), Value: l.active})
}

// deleteBandwidth deletes the limits of the attachment. The caller holds f.mu.
func (f *Flows) deleteBandwidth(u *flowstore.Update, a sandbox.Attachment) {
	delete(f.limits, a)
	u.Withdraw = append(u.Withdraw, inputs.Bandwidth(a.Owner()))
}

// PodChanged applies the annotations of a pod in the Kubernetes API. It does not wait for the switch.
func (f *Flows) PodChanged(ctx context.Context, object *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.limits {
		if !l.sent || l.pod.Namespace != object.Namespace || l.pod.Name != object.Name || !sandbox.IsPod(object, l.pod.UID) {
			continue
		}
		previous := l.active
		l.read(object.Annotations, f.events)
		if l.active == previous {
			continue // an update would repeat flows that the switch has refused, without the store's back-off
		}
		f.store.Update(flowstore.Update{Publish: []flowstore.Published{{Input: inputs.Bandwidth(l.pod.Owner()), Value: l.active}}})
		klog.FromContext(ctx).Info("Changed bandwidth of pod", "pod", klog.KObj(object), "sandbox", l.pod.Sandbox, "ingressBitsPerSecond", l.active.Ingress, "egressBitsPerSecond", l.active.Egress)
	}
}

// RecoverBandwidth sets the active limits of pods, before Set or SetAsync, to those that the meters of the switch enforce.
func (f *Flows) RecoverBandwidth(pods []sandbox.Pod, meters []ovs.Meter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range pods {
		f.limitsOf(p).active = pipeline.BandwidthOf(meters, p.OFPort)
	}
}

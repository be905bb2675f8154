package nodestatus

import (
	"context"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// Reporter writes Events on the Node, pods, Services and EgressNetworkPolicies.
type Reporter struct {
	recorder   record.EventRecorder
	repeated   record.EventRecorder // of Normal Events on Services, which repeat
	broadcasts []record.EventBroadcaster
	events     typedcorev1.EventInterface
	source     corev1.EventSource
	node       *corev1.ObjectReference
	refused    *refusal
}

const (
	// lastEventTimeout limits the write of the agent's last Event.
	lastEventTimeout = 3 * time.Second

	// repeatedRate and repeatedBurst let NeedPods pass as long as clients send packets to an idled service, one in ten seconds. The rate per second is twice that: one that
	// is a little early is not lost. client-go's default drops all but one in five minutes after the first 25.
	repeatedRate  = 0.2
	repeatedBurst = 25
)

// NewReporter returns a reporter whose Events are written in the background until Stop.
func NewReporter(ctx context.Context, client kubernetes.Interface, nodeName string) *Reporter {
	b := record.NewBroadcaster(record.WithContext(ctx))
	repeated := record.NewBroadcaster(record.WithContext(ctx), record.WithCorrelatorOptions(record.CorrelatorOptions{QPS: repeatedRate, BurstSize: repeatedBurst}))
	refused := &refusal{}
	for _, each := range []record.EventBroadcaster{b, repeated} {
		each.StartRecordingToSink(&refusalSink{&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")}, refused})
	}
	source := corev1.EventSource{Component: "ovsdn-node", Host: nodeName}
	return &Reporter{
		broadcasts: []record.EventBroadcaster{b, repeated},
		recorder:   b.NewRecorder(scheme.Scheme, source),
		repeated:   repeated.NewRecorder(scheme.Scheme, source),
		events:     client.CoreV1().Events(metav1.NamespaceDefault),
		source:     source,
		refused:    refused,
		// kubectl describe node finds Events by the name in place of the UID, as kubelet writes them.
		node: &corev1.ObjectReference{Kind: "Node", Name: nodeName, UID: types.UID(nodeName)},
	}
}

// Warn writes a Warning Event on the Node.
func (r *Reporter) Warn(reason string, err error) { r.WarnNode(reason, err.Error()) }

// WarnSync writes an Event for an error that ends the agent. It returns after the write: the recorder would lose the Event when the agent exits.
func (r *Reporter) WarnSync(ctx context.Context, reason string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lastEventTimeout)
	defer cancel()
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: r.node.Name + ".", Namespace: metav1.NamespaceDefault},
		InvolvedObject: *r.node, Source: r.source, ReportingController: r.source.Component, ReportingInstance: r.source.Host, Type: corev1.EventTypeWarning, Reason: reason, Message: err.Error(),
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	if _, err := r.events.Create(ctx, event, metav1.CreateOptions{}); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to write Event on the Node", "reason", reason)
	}
}

// Event writes an Event on the Node.
func (r *Reporter) Event(eventType, reason, message string) {
	r.recorder.Event(r.node, eventType, reason, message)
}

// WarnNode writes a Warning Event on the Node.
func (r *Reporter) WarnNode(reason, message string) {
	r.Event(corev1.EventTypeWarning, reason, message)
}

// WarnPod writes a Warning Event on the pod.
func (r *Reporter) WarnPod(p sandbox.Pod, reason, message string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID)}
	r.recorder.Event(ref, corev1.EventTypeWarning, reason, message)
}

// WarnService writes a Warning Event on the Service.
func (r *Reporter) WarnService(namespace, name string, uid types.UID, reason, message string) {
	r.recorder.Event(serviceReference(namespace, name, uid), corev1.EventTypeWarning, reason, message)
}

// EventService writes a Normal Event on the Service. The caller bounds their rate; more than one in ten seconds on a Service are not all written.
func (r *Reporter) EventService(namespace, name string, uid types.UID, reason, message string) {
	r.repeated.Event(serviceReference(namespace, name, uid), corev1.EventTypeNormal, reason, message)
}

func serviceReference(namespace, name string, uid types.UID) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: name, UID: uid}
}

// WarnEgressNetworkPolicy writes a Warning Event on the policy.
func (r *Reporter) WarnEgressNetworkPolicy(o *networkv1.EgressNetworkPolicy, reason, message string) {
	ref := &corev1.ObjectReference{APIVersion: networkv1.GroupVersion.String(), Kind: "EgressNetworkPolicy", Namespace: o.Namespace, Name: o.Name, UID: o.UID}
	r.recorder.Event(ref, corev1.EventTypeWarning, reason, message)
}

// Stop ends the writes.
func (r *Reporter) Stop() {
	for _, b := range r.broadcasts {
		b.Shutdown()
	}
}

// Refusal returns the API server's refusal of the last Event about the Node, nil if there is none.
func (r *Reporter) Refusal() error { return r.refused.get(refusedEventTime) }

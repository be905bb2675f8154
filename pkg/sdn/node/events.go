package node

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/pods"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

var _ pods.Events = &reporter{}

// reporter writes Events on the Node and on pods.
type reporter struct {
	recorder    record.EventRecorder
	broadcaster record.EventBroadcaster
	events      typedcorev1.EventInterface
	source      corev1.EventSource
	node        *corev1.ObjectReference
	refused     *refusal
}

// lastEventTimeout limits the write of the agent's last Event.
const lastEventTimeout = 3 * time.Second

func newReporter(ctx context.Context, client kubernetes.Interface, nodeName string) *reporter {
	b := record.NewBroadcaster(record.WithContext(ctx))
	refused := &refusal{}
	b.StartRecordingToSink(&refusalSink{&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")}, refused})
	source := corev1.EventSource{Component: "ovsdn-node", Host: nodeName}
	return &reporter{
		broadcaster: b,
		recorder:    b.NewRecorder(scheme.Scheme, source),
		events:      client.CoreV1().Events(metav1.NamespaceDefault),
		source:      source,
		refused:     refused,
		// kubectl describe node finds Events by the name in place of the UID, as kubelet writes them.
		node: &corev1.ObjectReference{Kind: "Node", Name: nodeName, UID: types.UID(nodeName)},
	}
}

func (r *reporter) warn(reason string, err error) { r.WarnNode(reason, err.Error()) }

// warnSync writes an Event for an error that ends the agent. It returns after the write: the recorder would lose the Event when the agent exits.
func (r *reporter) warnSync(ctx context.Context, reason string, err error) {
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

func (r *reporter) event(eventType, reason, message string) {
	r.recorder.Event(r.node, eventType, reason, message)
}

// WarnNode implements pods.Events.
func (r *reporter) WarnNode(reason, message string) {
	r.event(corev1.EventTypeWarning, reason, message)
}

// WarnPod implements pods.Events.
func (r *reporter) WarnPod(p sandbox.Pod, reason, message string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID)}
	r.recorder.Event(ref, corev1.EventTypeWarning, reason, message)
}

func (r *reporter) stop() { r.broadcaster.Shutdown() }

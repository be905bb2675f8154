package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/pods"
)

var _ pods.Events = &reporter{}

// Reasons of the agent's Events on its Node.
const (
	reasonWaiting = "NetworkWaiting"
	reasonFailed  = "NetworkSetupFailed"
	reasonReady   = "NetworkReady"

	// Another network's CNI configuration goes before the agent's.
	reasonNotFirst = "OtherNetworkFirst"
)

// reporter tells the user of this node's network where the user looks: Events on the Node.
type reporter struct {
	recorder    record.EventRecorder
	broadcaster record.EventBroadcaster
	node        *corev1.ObjectReference
}

func newReporter(ctx context.Context, client kubernetes.Interface, nodeName string) *reporter {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &reporter{
		broadcaster: b,
		recorder:    b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "ovsdn-node", Host: nodeName}),
		// kubectl describe node finds Events by the name in place of the UID, as kubelet writes them.
		node: &corev1.ObjectReference{Kind: "Node", Name: nodeName, UID: types.UID(nodeName)},
	}
}

func (r *reporter) warn(reason string, err error) {
	r.recorder.Event(r.node, corev1.EventTypeWarning, reason, err.Error())
}

func (r *reporter) say(reason, message string) {
	r.recorder.Event(r.node, corev1.EventTypeNormal, reason, message)
}

// WarnNode implements pods.Events.
func (r *reporter) WarnNode(reason, message string) {
	r.recorder.Event(r.node, corev1.EventTypeWarning, reason, message)
}

// WarnPod implements pods.Events.
func (r *reporter) WarnPod(p pods.Pod, reason, message string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID)}
	r.recorder.Event(ref, corev1.EventTypeWarning, reason, message)
}

func (r *reporter) stop() { r.broadcaster.Shutdown() }

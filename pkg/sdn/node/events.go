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
)

var _ pods.Events = &reporter{}

// Reasons of the agent's Events on its Node.
const (
	reasonWaiting = "NetworkWaiting"
	reasonFailed  = "NetworkSetupFailed"
	reasonReady   = "NetworkReady"

	// Another network's CNI configuration goes before the agent's.
	reasonNotFirst = "OtherNetworkFirst"

	// The host's conntrack tracks the tunnel, since the kernel lacks xt_CT or xt_addrtype.
	reasonTunnelTracked = "TunnelTracked"

	// The host accepts VXLAN from any address, since the kernel lacks ip_set, ip_set_hash_ip, xt_set or xt_addrtype, or another program created the set.
	reasonTunnelUnrestricted = "TunnelUnrestricted"

	// No pod has a limit in the host's conntrack, since the kernel lacks xt_connlimit or nf_conncount.
	reasonPodConnectionsUnlimited = "PodConnectionsUnlimited"

	// The CNI configuration or plugin was missing or changed, and is written again. Normal when the agent starts, else a warning.
	reasonFilesWritten = "CNIFilesWritten"

	// The CNI socket or its lock was deleted while the agent ran, and is restored.
	reasonSocketRestored = "CNISocketRestored"

	// The bridge or its fixed ports were deleted while the agent ran, and are restored.
	reasonBridgeRestored = "BridgeRestored"

	// Sockets of Open vSwitch were deleted while it runs; existing connections continue.
	reasonSwitchSockets = "OpenvSwitchSocketsMissing"

	// The cluster's services are outside of the service network.
	reasonServiceNetwork = "ServiceNetworkMismatch"
)

// reporter tells the user of this node's network where the user looks: Events on the Node.
type reporter struct {
	recorder    record.EventRecorder
	broadcaster record.EventBroadcaster
	events      typedcorev1.EventInterface
	source      corev1.EventSource
	node        *corev1.ObjectReference
	refused     *refusal
}

// lastTime is how long the agent waits for its last Event to be written.
const lastTime = 3 * time.Second

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

func (r *reporter) warn(reason string, err error) {
	r.recorder.Event(r.node, corev1.EventTypeWarning, reason, err.Error())
}

// warnLast warns of what ends the agent, and returns when that is written: the recorder would take it along.
func (r *reporter) warnLast(ctx context.Context, reason string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lastTime)
	defer cancel()
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: r.node.Name + ".", Namespace: metav1.NamespaceDefault},
		InvolvedObject: *r.node, Source: r.source, ReportingController: r.source.Component, ReportingInstance: r.source.Host, Type: corev1.EventTypeWarning, Reason: reason, Message: err.Error(),
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	if _, err := r.events.Create(ctx, event, metav1.CreateOptions{}); err != nil {
		klog.FromContext(ctx).Error(err, "Could not write an Event on the Node", "reason", reason)
	}
}

func (r *reporter) onNode(eventType, reason, message string) {
	r.recorder.Event(r.node, eventType, reason, message)
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

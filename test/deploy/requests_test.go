package deploy

import (
	"context"
	"encoding/json"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The requests of agents and controllers.

// varied returns a request that differs in each call: a patch that succeeded before the policies are active changes nothing when it is repeated, and is
// allowed.
func varied(request func(n string) func(context.Context, as) error) func(context.Context, as) error {
	n := 0
	return func(ctx context.Context, client as) error {
		n++
		return request(strconv.Itoa(n))(ctx, client)
	}
}

// patchStatus patches a Node as the agent does.
func patchStatus(node string, patch map[string]any) func(context.Context, as) error {
	return func(ctx context.Context, client as) error {
		content, err := json.Marshal(patch)
		if err != nil {
			return err
		}
		_, err = client.kube.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, content, metav1.PatchOptions{}, "status")
		return err
	}
}

func readPod(ctx context.Context, client as) error {
	_, err := client.kube.CoreV1().Pods(system).Get(ctx, "agent-on-node1", metav1.GetOptions{})
	return err
}

func condition(of corev1.NodeConditionType, reason string) map[string]any {
	return map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{Type: of, Status: corev1.ConditionFalse, Reason: reason}}}}
}

func event(name, component, host, kind, about string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: about, Namespace: map[string]string{"Pod": metav1.NamespaceDefault, "EgressNetworkPolicy": metav1.NamespaceDefault}[kind]},
		Source:         corev1.EventSource{Component: component, Host: host},
		Reason:         "Test", Message: "test", Type: corev1.EventTypeNormal,
		ReportingController: component, ReportingInstance: host,
	}
}

// editedEvent is an Event of the agent of node1 about its own Node, but for the edit.
func editedEvent(name string, edit func(*corev1.Event)) *corev1.Event {
	e := event(name, "ovsdn-node", "node1", "Node", "node1")
	edit(e)
	return e
}

func createEvent(e *corev1.Event) func(context.Context, as) error {
	return func(ctx context.Context, client as) error {
		_, err := client.kube.CoreV1().Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{})
		return err
	}
}

func patchEvent(name string) func(context.Context, as) error {
	return func(ctx context.Context, client as) error {
		_, err := client.kube.CoreV1().Events(metav1.NamespaceDefault).Patch(ctx, name, types.StrategicMergePatchType, []byte(`{"count":2}`), metav1.PatchOptions{})
		return err
	}
}

func updateEvent(name string, edit func(*corev1.Event)) func(context.Context, as) error {
	return func(ctx context.Context, client as) error {
		e := editedEvent(name, edit)
		_, err := client.kube.CoreV1().Events(e.Namespace).Update(ctx, e, metav1.UpdateOptions{})
		return err
	}
}

// newEvent creates an Event by the API group events.k8s.io.
func newEvent(ctx context.Context, client as) error {
	_, err := client.kube.EventsV1().Events(metav1.NamespaceDefault).Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "new"}, EventTime: metav1.NowMicro(), Action: "Test", Reason: "Test", Type: corev1.EventTypeNormal,
		ReportingController: "ovsdn-node", ReportingInstance: "node2", Regarding: corev1.ObjectReference{Kind: "Node", Name: "node2"},
	}, metav1.CreateOptions{})
	return err
}

func annotatePod(ctx context.Context, client as) error {
	_, err := client.kube.CoreV1().Pods(system).Patch(ctx, "agent-on-node2", types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{})
	return err
}

func writeHostSubnet(name string) func(context.Context, as) error {
	return func(ctx context.Context, client as) error {
		_, err := client.network.NetworkV1().HostSubnets().Patch(ctx, name, types.MergePatchType, []byte(`{"hostIP":"192.0.2.9"}`), metav1.PatchOptions{})
		return err
	}
}

// patchKind patches an object of any kind, by its path, which need not exist to be refused.
func patchKind(path string) func(context.Context, as) error {
	return func(ctx context.Context, client as) error {
		return client.kube.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(path).Body([]byte(`{"spec":{}}`)).Do(ctx).Error()
	}
}

func patchNode(ctx context.Context, client as) error {
	_, err := client.kube.CoreV1().Nodes().Patch(ctx, "node1", types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	return err
}

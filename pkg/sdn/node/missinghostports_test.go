package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/caches"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostports"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// recordedEvents are the Events' texts, as a Reporter has them.
type recordedEvents []string

func (r *recordedEvents) WarnPod(_ sandbox.Pod, reason, message string) {
	*r = append(*r, reason+" "+message)
}
func (r *recordedEvents) WarnNode(reason, message string) { *r = append(*r, reason+" "+message) }

// newReported returns a node with a record of sandbox "mapped".
func newReported(t *testing.T) *nodeNetwork {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "a.json"), []byte(`{"sandbox":"mapped","ifName":"eth0","portMappings":[{"hostPort":80,"containerPort":80,"protocol":"tcp"}]}`), 0o600))
	ports, err := hostports.New(hostports.Options{Dir: dir})
	must(t, err)
	return &nodeNetwork{
		agent:     &agent{},
		caches:    &caches.Set{Local: informers.NewSharedInformerFactory(fake.NewClientset(), 0)},
		hostPorts: ports,
	}
}

// addPod adds a pod to the cache, and returns its attachment.
func (n *nodeNetwork) addPod(t *testing.T, name string, spec corev1.PodSpec) sandbox.Pod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: spec}
	must(t, n.caches.Local.Core().V1().Pods().Informer().GetStore().Add(pod))
	return sandbox.Pod{Attachment: sandbox.Attachment{Sandbox: name, IfName: "eth0"}, Namespace: "ns", Name: name, UID: name}
}

// withPorts is the specification of a pod with unnamed ports.
func withPorts(ports ...int32) corev1.PodSpec {
	var c corev1.Container
	for _, p := range ports {
		c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: 80, HostPort: p})
	}
	return corev1.PodSpec{Containers: []corev1.Container{c}}
}

// Pods that a version without host ports started are reported once.
func TestReportMissingHostPorts(t *testing.T) {
	n, events := newReported(t), recordedEvents{}
	replaced := n.addPod(t, "replaced", withPorts(8080))
	replaced.UID = "previous"
	attached := []sandbox.Pod{
		n.addPod(t, "mapped", withPorts(80)), n.addPod(t, "unmapped", withPorts(8080, 8081)), n.addPod(t, "without", withPorts(0)), replaced,
		{Attachment: sandbox.Attachment{Sandbox: "deleted", IfName: "eth0"}, Namespace: "ns", Name: "deleted", UID: "deleted"},
	}
	n.addPod(t, "starting", withPorts(8082))
	n.reportMissingHostPorts(t.Context(), &events, attached)
	want := recordedEvents{"HostPortsMissing the pod's hostPort is not mapped, since a version without host ports started the pod; delete the pod so that it is created again"}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("Events differ (-want +got):\n%s", diff)
	}
	events = nil
	if n.reportMissingHostPorts(t.Context(), &events, attached); len(events) > 0 {
		t.Errorf("second set-up: got Events %q, want none", events)
	}
}

// The number of Events is limited; the last counts the other pods.
func TestReportMissingHostPorts_many(t *testing.T) {
	n, events := newReported(t), recordedEvents{}
	var attached []sandbox.Pod
	for i := range maxHostPortEvents + 5 {
		attached = append(attached, n.addPod(t, fmt.Sprintf("p%d", i), withPorts(8080)))
	}
	n.reportMissingHostPorts(t.Context(), &events, attached)
	if len(events) != maxHostPortEvents+1 {
		t.Fatalf("got %d Events, want %d", len(events), maxHostPortEvents+1)
	}
	if last := events[maxHostPortEvents]; !strings.Contains(last, "5 more pods of this node") {
		t.Errorf("last Event: got %q, want the number of other pods", last)
	}
}

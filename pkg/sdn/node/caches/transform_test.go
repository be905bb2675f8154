package caches

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

func TestTransform_annotations(t *testing.T) {
	large := strings.Repeat("x", 1<<18)
	meta := func(annotations ...string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Name: "o", ManagedFields: []metav1.ManagedFieldsEntry{{}}, Annotations: map[string]string{"example.com/large": large}}
		for _, key := range annotations {
			m.Annotations[key] = "value"
		}
		return m
	}
	for name, tc := range map[string]struct {
		object metav1.Object
		want   map[string]string
	}{
		"pod with similar keys": {&corev1.Pod{ObjectMeta: meta(config.IngressBandwidthAnnotation, config.IngressBandwidthAnnotation+"A", "x.kubernetes.io/config.hash", "kubernetes.io/config.source")},
			map[string]string{config.IngressBandwidthAnnotation: "value"}},
		"pod":             {&corev1.Pod{ObjectMeta: meta("kubernetes.io/config.hash")}, map[string]string{"kubernetes.io/config.hash": "value"}},
		"host subnet":     {&networkv1.HostSubnet{ObjectMeta: meta(networkv1.NodeUIDAnnotation)}, map[string]string{networkv1.NodeUIDAnnotation: "value"}},
		"net namespace":   {&networkv1.NetNamespace{ObjectMeta: meta(config.AssignedVNIDAnnotation)}, map[string]string{config.AssignedVNIDAnnotation: "value"}},
		"cluster network": {&networkv1.ClusterNetwork{ObjectMeta: meta(config.AcceptedAnnotation)}, map[string]string{config.AcceptedAnnotation: "value"}},
	} {
		got, err := transform(tc.object)
		if err != nil {
			t.Fatal(err)
		}
		o, ok := got.(metav1.Object)
		if !ok || len(o.GetManagedFields()) > 0 {
			t.Errorf("%s: managed fields are left", name)
			continue
		}
		if diff := cmp.Diff(tc.want, o.GetAnnotations()); diff != "" {
			t.Errorf("%s: annotations (-want +got):\n%s", name, diff)
		}
	}
}

// A long value is invalid in the cache, too, and not as none.
func TestTransform_longBandwidth(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{config.EgressBandwidthAnnotation: strings.Repeat("1", 200_000)}}}
	cached := transformed(t, pod)
	if value := cached.Annotations[config.EgressBandwidthAnnotation]; len(value) > 100 {
		t.Errorf("the cached value has %d bytes", len(value))
	}
	if _, err := config.ParseBandwidth(cached.Annotations, config.EgressBandwidthAnnotation); err == nil {
		t.Error("the cached value is valid, want invalid")
	}
}

// The cached pod has its limits of bandwidth and asks for a macvlan interface; a value of any length that is invalid is in the cache, too.
func TestTransform_requests(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{config.EgressBandwidthAnnotation: "10M", networkv1.AssignMacvlanAnnotation: "eth0"}}}
	cached := transformed(t, pod)
	if limit, err := config.ParseBandwidth(cached.Annotations, config.EgressBandwidthAnnotation); limit != 10e6 || err != nil {
		t.Errorf("got egress bandwidth %d, %v, want 10000000", limit, err)
	}
	if value, asks := config.MacvlanAnnotation(cached); value != "eth0" || !asks {
		t.Errorf("got %q, %t, want that the pod asks for a macvlan interface on eth0", value, asks)
	}
	pod.Annotations[networkv1.AssignMacvlanAnnotation] = strings.Repeat("x", 200_000)
	cached = transformed(t, pod)
	if value, asks := config.MacvlanAnnotation(cached); !asks || len(value) > 100 || config.ValidateMacvlan(cached) == nil {
		t.Errorf("got a value of %d bytes, %t, want a short one that is invalid", len(value), asks)
	}
}

// The cached pod shows whether its pod can have the macvlan interface that it asks for, so that it starts while the API server is away. Other pods have no containers.
func TestTransform_privileged(t *testing.T) {
	yes, no := true, false
	privileged := corev1.Container{Name: "router", Image: "image", SecurityContext: &corev1.SecurityContext{Privileged: &yes}}
	for name, spec := range map[string]corev1.PodSpec{
		"privileged":                {Containers: []corev1.Container{{}, privileged}},
		"privileged init container": {Containers: []corev1.Container{{}}, InitContainers: []corev1.Container{privileged}},
		"not privileged":            {Containers: []corev1.Container{{SecurityContext: &corev1.SecurityContext{Privileged: &no}}}},
		"user namespace":            {HostUsers: &no, Containers: []corev1.Container{privileged}},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{networkv1.AssignMacvlanAnnotation: "true"}}, Spec: spec}
		want, got := config.ValidateMacvlan(pod), config.ValidateMacvlan(transformed(t, pod))
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %v of the cached pod, want %v", name, got, want)
		}
		pod.Annotations = nil
		if cached := transformed(t, pod); len(cached.Spec.Containers) > 0 || cached.Spec.HostUsers != nil {
			t.Errorf("%s: got %+v of a pod that does not ask, want no containers", name, cached.Spec)
		}
	}
}

// The cached pod has the host ports of a pod in the host's network, else one of them, and no more of its ports.
func TestTransform_hostPorts(t *testing.T) {
	pod := &corev1.Pod{}
	for range 1000 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Image: "image", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 80, HostPort: 8080}}})
	}
	if got := config.HostPorts(&transformed(t, pod).Spec); len(got) != 1 { // those of the named ports, which policies read
		t.Errorf("pod with its own network: got host ports %+v", got)
	}
	unnamed := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
		{ContainerPort: 80, HostPort: 8080}, {ContainerPort: 80, HostPort: 8081}, {ContainerPort: 80, HostPort: 8082},
	}}}}}
	if got := config.HostPorts(&transformed(t, unnamed).Spec); len(got) != 1 {
		t.Errorf("pod with its own network: got host ports %+v, want one", got)
	}
	always := corev1.ContainerRestartPolicyAlways
	init := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{{RestartPolicy: &always, Ports: []corev1.ContainerPort{
		{ContainerPort: 80, HostPort: 8080}, {Name: "named", ContainerPort: 81, HostPort: 8081},
	}}}}}
	if got := config.HostPorts(&transformed(t, init).Spec); len(got) != 0 { // kubelet maps none of them
		t.Errorf("init container of a pod with its own network: got host ports %+v, want none", got)
	}
	pod.Spec.HostNetwork = true
	cached := transformed(t, pod)
	last := cached.Spec.Containers[len(cached.Spec.Containers)-1]
	if want := []corev1.ContainerPort{{HostPort: 8080, Protocol: corev1.ProtocolTCP}}; !cmp.Equal(last.Ports, want) {
		t.Errorf("pod in the host's network: got ports %+v, want %+v", last.Ports, want)
	}
}

func transformed(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	got, err := transform(pod)
	if err != nil {
		t.Fatal(err)
	}
	cached, ok := got.(*corev1.Pod)
	if !ok {
		t.Fatalf("got %T, want a pod", got)
	}
	return cached
}

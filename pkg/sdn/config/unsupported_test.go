package config

import (
	"slices"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func podWith(edit func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}}}}}
	edit(pod)
	return pod
}

func TestUnsupportedOfPod(t *testing.T) {
	annotated := func(key, value string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.ObjectMeta = metav1.ObjectMeta{Annotations: map[string]string{key: value}} }
	}
	for name, tc := range map[string]struct {
		edit func(*corev1.Pod)
		want []string // parts, one of each message
	}{
		"nothing":   {func(*corev1.Pod) {}, nil},
		"host port": {func(pod *corev1.Pod) { pod.Spec.Containers[0].Ports[0].HostPort = 8080 }, nil},
		"on the host": {func(pod *corev1.Pod) {
			annotated(networkv1.AssignMacvlanAnnotation, "true")(pod)
			pod.Spec.HostNetwork = true
		}, nil},
		"macvlan":    {annotated(networkv1.AssignMacvlanAnnotation, "true"), []string{"assign-macvlan=true: "}},
		"no macvlan": {annotated(networkv1.AssignMacvlanAnnotation, "false"), nil},
		"another":    {annotated("example.com/bandwidth", "1"), nil},
	} {
		got := UnsupportedOfPod(podWith(tc.edit))
		if len(got) != len(tc.want) || !slices.EqualFunc(got, tc.want, strings.Contains) {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

func TestUnsupportedOfNetworkObjects(t *testing.T) {
	nn := &networkv1.NetNamespace{}
	hs := &networkv1.HostSubnet{}
	if got := append(UnsupportedOfNetNamespace(nn, ModeSubnet), UnsupportedOfHostSubnet(hs, ModeSubnet)...); got != nil {
		t.Errorf("without egress IPs: got %q, want none", got)
	}
	for range 20 {
		nn.EgressIPs = append(nn.EgressIPs, "192.0.2.7")
	}
	hs.EgressIPs, hs.EgressCIDRs = []networkv1.HostSubnetEgressIP{"192.0.2.7"}, []networkv1.HostSubnetEgressCIDR{"192.0.2.0/24"}
	for _, mode := range []Mode{ModeMultitenant, ModeNetworkPolicy} {
		if got := append(UnsupportedOfNetNamespace(nn, mode), UnsupportedOfHostSubnet(hs, mode)...); got != nil {
			t.Errorf("mode %s: got %q, want none", mode, got)
		}
	}
	got := append(UnsupportedOfNetNamespace(nn, ModeSubnet), UnsupportedOfHostSubnet(hs, ModeSubnet)...)
	want := []string{"192.0.2.7, and 12 more in mode subnet: ", "egressIPs 192.0.2.7 in mode subnet: ", "egressCIDRs 192.0.2.0/24 in mode subnet: "}
	if len(got) != len(want) || !slices.EqualFunc(got, want, strings.Contains) {
		t.Errorf("got %q, want %q", got, want)
	}
}

package config

import (
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
)

// macvlanPod asks for a macvlan interface and has a privileged container.
func macvlanPod(value string) *corev1.Pod {
	yes := true
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{SecurityContext: &corev1.SecurityContext{Privileged: &yes}}}}}
	pod.Annotations = map[string]string{networkv1.AssignMacvlanAnnotation: value}
	return pod
}

func TestValidateMacvlan_values(t *testing.T) {
	for _, value := range []string{"true", "eth0", "bond0.100", "br-ex", strings.Repeat("x", 15), "yes", "True", "lo"} { // the node decides whether the parent exists
		pod := macvlanPod(value)
		if got, asks := MacvlanAnnotation(pod); got != value || !asks {
			t.Errorf("%q: got %q, %t, want the value", value, got, asks)
		}
		if err := ValidateMacvlan(pod); err != nil {
			t.Errorf("%q: %v", value, err)
		}
	}
	for _, value := range []string{"", " ", "eth0 ", "true\n", strings.Repeat("x", 16), "a/b", "../eth0", ".", "..", "-", "a:b", "eth0\x00", "tun0\x00x", "eth\xff", "é", strings.Repeat("x", 1<<18)} {
		pod := macvlanPod(value)
		if _, asks := MacvlanAnnotation(pod); !asks {
			t.Errorf("%q: does not ask, want that it asks for something invalid", Shorten(value))
		}
		if err := ValidateMacvlan(pod); err == nil || !strings.Contains(err.Error(), "not a name") {
			t.Errorf("%q: got %v, want an invalid value", Shorten(value), err)
		}
	}
	pod := macvlanPod("false")
	pod.Spec.Containers[0].SecurityContext = nil
	if value, asks := MacvlanAnnotation(pod); asks || value != "" {
		t.Errorf("false: got %q, %t, want no request", value, asks)
	}
	if err := ValidateMacvlan(pod); err != nil {
		t.Errorf("false: %v", err)
	}
	if _, asks := MacvlanAnnotation(&corev1.Pod{}); asks {
		t.Error("a pod without the annotation asks")
	}
}

func TestValidateMacvlan_privileged(t *testing.T) {
	yes, no := true, false
	privileged := func(value *bool) corev1.Container {
		return corev1.Container{SecurityContext: &corev1.SecurityContext{Privileged: value}}
	}
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want string // part of the error; "": none
	}{
		"no container":              {corev1.PodSpec{}, "no container of the pod is privileged"},
		"no security context":       {corev1.PodSpec{Containers: []corev1.Container{{}}}, "no container"},
		"not set":                   {corev1.PodSpec{Containers: []corev1.Container{privileged(nil)}}, "no container"},
		"false":                     {corev1.PodSpec{Containers: []corev1.Container{privileged(&no)}, InitContainers: []corev1.Container{privileged(&no)}}, "no container"},
		"one of two":                {corev1.PodSpec{Containers: []corev1.Container{{}, privileged(&yes)}}, ""},
		"init container":            {corev1.PodSpec{Containers: []corev1.Container{{}}, InitContainers: []corev1.Container{privileged(&yes)}}, ""}, // egress router in mode http-proxy
		"with capabilities":         {corev1.PodSpec{Containers: []corev1.Container{{SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"ALL"}}}}}}, "no container"},
		"in a user namespace":       {corev1.PodSpec{HostUsers: &no, Containers: []corev1.Container{privileged(&yes)}}, "user namespace"},
		"in the host's":             {corev1.PodSpec{HostUsers: &yes, Containers: []corev1.Container{privileged(&yes)}}, ""},
		"root user, not privileged": {corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{RunAsUser: new(int64)}, Containers: []corev1.Container{{}}}, "no container"},
		"ephemeral container": {corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			SecurityContext: &corev1.SecurityContext{Privileged: &yes}}}}}, "no container"},
	} {
		pod := macvlanPod("true")
		pod.Spec = tc.spec
		err := ValidateMacvlan(pod)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}

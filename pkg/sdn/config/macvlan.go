package config

import (
	"errors"
	"fmt"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
)

// MacvlanOnDefaultRoute is the value of networkv1.AssignMacvlanAnnotation that selects the interface of the node's default route as the parent. Any other value but
// "false" is the name of the parent.
const MacvlanOnDefaultRoute = "true"

// maxInterfaceName is the length of the longest name of an interface (IFNAMSIZ in linux/if.h, less the terminating zero).
const maxInterfaceName = 15

// MacvlanAnnotation returns the value by which a pod asks for a macvlan interface, and whether it asks. The value may be invalid.
func MacvlanAnnotation(pod *corev1.Pod) (value string, asks bool) {
	value, asks = pod.Annotations[networkv1.AssignMacvlanAnnotation]
	if value == "false" {
		return "", false
	}
	return value, asks
}

// ValidateMacvlan returns why the pod can't have the macvlan interface that it asks for, with the remedy. It needs the security contexts of the pod.
//
// One privileged container is enough, as in OpenShift SDN: it can create the interface by itself, since it can enter the node's network namespace. All containers
// of a pod share one network, so the others get nothing that it could not give them.
func ValidateMacvlan(pod *corev1.Pod) error {
	value, asks := MacvlanAnnotation(pod)
	switch {
	case !asks:
		return nil
	case !isInterfaceName(value):
		return fmt.Errorf(`the value is not a name of 1 to %d characters that an interface can have; set "true" for the interface of the node's default route, or the name of an interface`, maxInterfaceName)
	case pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers:
		return errors.New("the pod has a user namespace, in which no container is privileged on the node; remove hostUsers: false, or the annotation")
	case !hasPrivilegedContainer(&pod.Spec):
		return errors.New("no container of the pod is privileged; set securityContext.privileged of the container that configures the interface, or remove the annotation")
	}
	return nil
}

// isInterfaceName reports whether an interface can have the name, in printable ASCII (dev_valid_name in net/core/dev.c of Linux). It refuses "-", which is an empty
// field in the record of a pod (package sandbox).
func isInterfaceName(name string) bool {
	for _, c := range []byte(name) {
		if c <= ' ' || c > '~' || c == '/' || c == ':' {
			return false
		}
	}
	return name != "" && len(name) <= maxInterfaceName && name != "." && name != ".." && name != "-"
}

// CompactMacvlan returns the part of the spec that ValidateMacvlan reads, if the pod asks for a macvlan interface: one privileged container, if it has any, and whether
// it shares the node's user namespace. Both are immutable: a cached pod has those of the API server's pod with its UID.
func CompactMacvlan(pod *corev1.Pod) (privileged []corev1.Container, hostUsers *bool) {
	if _, asks := MacvlanAnnotation(pod); !asks {
		return nil, nil
	}
	if hasPrivilegedContainer(&pod.Spec) {
		yes := true
		privileged = []corev1.Container{{SecurityContext: &corev1.SecurityContext{Privileged: &yes}}}
	}
	return privileged, pod.Spec.HostUsers
}

// hasPrivilegedContainer does not consider ephemeral containers: they are added to a pod that has its network.
func hasPrivilegedContainer(s *corev1.PodSpec) bool {
	privileged := func(c corev1.Container) bool {
		return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
	}
	return slices.ContainsFunc(s.Containers, privileged) || slices.ContainsFunc(s.InitContainers, privileged)
}

// Package cniargs parses CNI_ARGS, by which a container runtime names the pod of a sandbox, and compares it with the pod in the Kubernetes API.
package cniargs

import (
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Annotations by which kubelet ties a static pod to its mirror in the API, which has another UID: both hold the static
// pod's UID. (k8s.io/kubernetes/pkg/kubelet/types, ConfigHashAnnotationKey and ConfigMirrorAnnotationKey.)
const (
	annotationConfigHash   = "kubernetes.io/config.hash"
	annotationConfigMirror = corev1.MirrorPodAnnotationKey
)

// PodAnnotations returns the keys of the annotations of pods that Matches reads.
func PodAnnotations() []string { return []string{annotationConfigHash, annotationConfigMirror} }

// Args are the CNI_ARGS that Kubernetes' container runtimes set.
type Args struct {
	Namespace string // K8S_POD_NAMESPACE
	Name      string // K8S_POD_NAME
	UID       string // K8S_POD_UID; empty from old runtimes
	Sandbox   string // K8S_POD_INFRA_CONTAINER_ID; may be empty
}

// Parse reads CNI_ARGS, "K=V;K=V". Unknown keys are an error unless IgnoreUnknown is set, by CNI's convention.
func Parse(text string) (Args, error) {
	var a Args
	var unknown []string
	ignoreUnknown := false
	for pair := range strings.SplitSeq(text, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return Args{}, Invalid("%q is not KEY=VALUE", pair)
		}
		switch key {
		case "K8S_POD_NAMESPACE":
			a.Namespace = value
		case "K8S_POD_NAME":
			a.Name = value
		case "K8S_POD_UID":
			a.UID = value
		case "K8S_POD_INFRA_CONTAINER_ID":
			a.Sandbox = value
		case "IgnoreUnknown":
			ignoreUnknown = value == "1" || strings.EqualFold(value, "true")
		default:
			unknown = append(unknown, key)
		}
	}
	if len(unknown) > 0 && !ignoreUnknown {
		return Args{}, Invalid("unknown keys %q", unknown)
	}
	return a, a.validate()
}

func (a Args) validate() error {
	if a.Namespace == "" || a.Name == "" {
		return Invalid("K8S_POD_NAMESPACE and K8S_POD_NAME are required; only a Kubernetes container runtime sets them")
	}
	if faults := validation.IsDNS1123Label(a.Namespace); len(faults) > 0 {
		return Invalid("K8S_POD_NAMESPACE %q: %s", a.Namespace, faults[0])
	}
	if faults := validation.IsDNS1123Subdomain(a.Name); len(faults) > 0 {
		return Invalid("K8S_POD_NAME %q: %s", a.Name, faults[0])
	}
	return nil
}

// Invalid returns the CNI error for an argument that is not valid.
func Invalid(format string, args ...any) error {
	return types.NewError(types.ErrInvalidEnvironmentVariables, "invalid CNI_ARGS", fmt.Sprintf(format, args...))
}

// Matches reports whether the pod has the runtime's UID. For a static pod kubelet passes the hash of its manifest, which
// the mirror pod has as an annotation. Users can write config.hash on any pod, but can't make it a mirror: it counts on mirrors only.
func (a Args) Matches(pod *corev1.Pod) bool {
	if a.UID == "" || a.UID == string(pod.UID) {
		return true
	}
	mirror, isMirror := pod.Annotations[annotationConfigMirror]
	return isMirror && (a.UID == mirror || a.UID == pod.Annotations[annotationConfigHash])
}

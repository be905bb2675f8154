package pods

import (
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// kubeArgs are the CNI_ARGS that Kubernetes' container runtimes set.
type kubeArgs struct {
	namespace string // K8S_POD_NAMESPACE
	name      string // K8S_POD_NAME
	uid       string // K8S_POD_UID; empty from old runtimes
	sandbox   string // K8S_POD_INFRA_CONTAINER_ID; may be empty
}

// parseArgs reads CNI_ARGS, "K=V;K=V". Unknown keys are an error unless IgnoreUnknown is set, by CNI's convention.
func parseArgs(text string) (kubeArgs, error) {
	var a kubeArgs
	var unknown []string
	ignoreUnknown := false
	for pair := range strings.SplitSeq(text, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return kubeArgs{}, invalidArgs("%q is not KEY=VALUE", pair)
		}
		switch key {
		case "K8S_POD_NAMESPACE":
			a.namespace = value
		case "K8S_POD_NAME":
			a.name = value
		case "K8S_POD_UID":
			a.uid = value
		case "K8S_POD_INFRA_CONTAINER_ID":
			a.sandbox = value
		case "IgnoreUnknown":
			ignoreUnknown = value == "1" || strings.EqualFold(value, "true")
		default:
			unknown = append(unknown, key)
		}
	}
	if len(unknown) > 0 && !ignoreUnknown {
		return kubeArgs{}, invalidArgs("unknown keys %q", unknown)
	}
	return a, a.validate()
}

func (a kubeArgs) validate() error {
	if a.namespace == "" || a.name == "" {
		return invalidArgs("K8S_POD_NAMESPACE and K8S_POD_NAME are required; only a Kubernetes container runtime sets them")
	}
	if faults := validation.IsDNS1123Label(a.namespace); len(faults) > 0 {
		return invalidArgs("K8S_POD_NAMESPACE %q: %s", a.namespace, faults[0])
	}
	if faults := validation.IsDNS1123Subdomain(a.name); len(faults) > 0 {
		return invalidArgs("K8S_POD_NAME %q: %s", a.name, faults[0])
	}
	return nil
}

func invalidArgs(format string, args ...any) error {
	return types.NewError(types.ErrInvalidEnvironmentVariables, "invalid CNI_ARGS", fmt.Sprintf(format, args...))
}

// matches reports whether the pod has the runtime's UID. For a static pod kubelet passes the hash of its manifest, which
// the mirror pod has as an annotation.
func (a kubeArgs) matches(pod *corev1.Pod) bool {
	return a.uid == "" || a.uid == string(pod.UID) ||
		a.uid == pod.Annotations[annotationConfigHash] || a.uid == pod.Annotations[annotationConfigMirror]
}

package pods

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
)

// api are the pods in the API server, by namespace/name.
type api map[string]*corev1.Pod

// Cached returns nil: every ADD calls Get.
func (a api) Cached(string, string) *corev1.Pod { return nil }

func (a api) Local() []*corev1.Pod { return slices.Collect(maps.Values(a)) }

func (a api) Get(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	if name == "unreachable" {
		return nil, apierrors.NewServerTimeout(schema.GroupResource{Resource: "pods"}, "get", 1)
	}
	if p, ok := a[namespace+"/"+name]; ok {
		return p, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
}

// addPod adds a pod to the API and returns the ADD request for it.
func (n *node) addPod(name string, netns ns.NetNS) *cniserver.Request {
	uid := "uid-of-" + name
	n.api["default/"+name] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: apitypes.UID(uid)}}
	sandbox := "sandbox-of-" + name
	return &cniserver.Request{
		Command:     cniserver.CommandAdd,
		ContainerID: sandbox,
		Netns:       path(netns),
		IfName:      "eth0",
		Args: fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=%s",
			name, sandbox, uid),
		Config: []byte(`{"cniVersion":"1.1.0","name":"ovsdn","type":"ovsdn-cni"}`),
	}
}

// run sets the pod in the API to running on the node with these addresses.
func (n *node) run(name string, addrs ...string) *corev1.Pod {
	p := n.api["default/"+name]
	p.Spec.NodeName = n.options.NodeName
	p.Status.Phase = corev1.PodRunning
	p.Status.PodIPs = nil
	for _, a := range addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return p
}

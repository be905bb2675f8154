package pods

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

// A sandbox can outlive its pod, and the pod its namespace: after a forced deletion while kubelet is stopped. Another Namespace of the same name is another
// tenant. So a pod has flows only with the VNID of the Namespace that it was attached in.

// unverified is the NamespaceUID of a pod that the API server has to confirm first.
const unverified types.UID = "unverified"

// belongsTo reports whether the pod may have the VNID of the Namespace with the UID; "": an unknown one.
func (p Pod) belongsTo(namespace types.UID) bool {
	return namespace == "" || p.NamespaceUID == "" || p.NamespaceUID == namespace
}

// isPod reports whether the sandbox with the UID in its external_ids is the object's. Earlier versions wrote the UID of the mirror for static pods.
func isPod(object *corev1.Pod, uid string) bool {
	return uid == string(config.PodUID(object)) || uid == string(object.UID)
}

// setNamespaces sets the UIDs of the recovered pods' Namespaces. Pods that the cache does not have are looked up in the API server.
func (m *Manager) setNamespaces(ctx context.Context) {
	for _, pod := range m.Pods() {
		pod.NamespaceUID = unverified
		if object := m.pods.Cached(pod.Namespace, pod.Name); object != nil && isPod(object, pod.UID) {
			pod.NamespaceUID = m.flows.namespaceUID(pod.Namespace)
		}
		m.setAttached(pod, m.fault(pod.Attachment))
	}
	m.verifyNamespaces(ctx)
}

// verifyNamespaces looks up the pods whose namespace has the VNID of another Namespace than they were attached in. A pod that exists belongs to the current
// one. It reports whether all pods were looked up; it stops at the first failure, and does not wait for the switch.
func (m *Manager) verifyNamespaces(ctx context.Context) bool {
	complete := true
	for _, pod := range m.Pods() {
		if uid := m.flows.namespaceUID(pod.Namespace); uid == "" || uid == pod.NamespaceUID {
			continue
		}
		verified, err := m.verifyNamespace(ctx, pod.Attachment)
		if err != nil {
			if ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Failed to look up the pod of a sandbox", "sandbox", pod.Sandbox, "retryAfter", probePeriod)
			}
			return false
		}
		complete = complete && verified
	}
	return complete
}

// lookupTimeout bounds a request to the API server.
const lookupTimeout = 2 * time.Second

// verifyNamespace reports false if another request of the sandbox is in progress.
func (m *Manager) verifyNamespace(ctx context.Context, a Attachment) (verified bool, err error) {
	unlock, ok := m.sandboxes.try(a.Sandbox)
	if !ok {
		return false, nil
	}
	defer unlock()
	pod, attached := m.get(a)
	if !attached {
		return true, nil
	}
	uid := m.flows.namespaceUID(pod.Namespace) // before the lookup: a pod that exists then belongs to this Namespace or a later one
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	object, err := m.pods.Get(ctx, pod.Namespace, pod.Name)
	switch {
	case apierrors.IsNotFound(err), err == nil && !isPod(object, pod.UID):
		m.reportOrphan(ctx, pod)
		if pod.NamespaceUID != "" {
			return true, nil // it has no flows
		}
		pod.NamespaceUID = unverified
	case err != nil:
		return false, fmt.Errorf("get pod %s/%s: %w", pod.Namespace, pod.Name, err)
	default:
		pod.NamespaceUID = uid
	}
	m.setAttached(pod, m.fault(a))
	if m.recovered.Load() && m.fault(a) == nil { // else Recover or the next repair sets the flows
		m.flows.setAsync(ctx, pod, nil) // the store reports a refusal
	}
	return true, nil
}

// reportOrphan reports a sandbox without flows, once.
func (m *Manager) reportOrphan(ctx context.Context, pod Pod) {
	m.mu.Lock()
	reported := m.orphans[pod.Attachment]
	m.orphans[pod.Attachment] = true
	m.mu.Unlock()
	if reported {
		return
	}
	klog.FromContext(ctx).Info("Removed flows of a sandbox of a previous namespace", "pod", klog.KRef(pod.Namespace, pod.Name), "podUID", pod.UID,
		"sandbox", pod.Sandbox, "action", "stop the sandbox")
	m.events.WarnNode(eventreason.SandboxOfDeletedPod, fmt.Sprintf(
		"sandbox %s runs on node %s although its pod %s/%s (UID %s) was deleted, and namespace %s is another one of that name: it has no network; stop it with `crictl stopp %s`",
		pod.Sandbox, m.NodeName, pod.Namespace, pod.Name, pod.UID, pod.Namespace, pod.Sandbox))
}

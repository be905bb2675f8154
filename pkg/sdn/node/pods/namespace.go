package pods

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// A sandbox can outlive its pod, and the pod its namespace: after a forced deletion while kubelet is stopped. Another Namespace of the same name is another
// tenant. So a pod has the VNID of the Namespace in which it was attached, and retains it when there is another Namespace (docs/decisions/0014).

// unknownNamespace is the NamespaceUID of a recovered pod that the cache does not have. No Namespace has it.
const unknownNamespace types.UID = "unknown"

// PreviousVNIDs reads the VNIDs of the flows on the bridge, by the cookie of the owner.
type PreviousVNIDs func(ctx context.Context) (map[uint64]config.VNID, error)

// exists reports whether the cache has the pod.
func (m *Manager) exists(p sandbox.Pod) bool { return sandbox.CachedObject(m.pods, p) != nil }

// setNamespaces sets the Namespaces of the recovered pods. A pod that the cache does not have retains the VNID of its flows on the bridge.
func (m *Manager) setNamespaces(ctx context.Context) error {
	if m.previousVNIDs == nil {
		return nil
	}
	var unknown []sandbox.Pod
	for _, pod := range m.Pods() {
		if !m.exists(pod) {
			unknown = append(unknown, pod)
			continue
		}
		pod.NamespaceUID = m.flows.NamespaceUID(pod.Namespace)
		m.setAttached(pod, m.fault(pod.Attachment))
	}
	if len(unknown) == 0 {
		return nil
	}
	vnids, err := m.previousVNIDs(ctx)
	if err != nil {
		return fmt.Errorf("read the VNIDs of %d pods that are not in the cache: %w", len(unknown), err)
	}
	for _, pod := range unknown {
		pod.NamespaceUID = unknownNamespace
		if vnid, known := vnids[pod.Owner().Cookie()]; known {
			pod.VNID = &vnid
		}
		klog.FromContext(ctx).Info("Recovered sandbox whose pod is not in the cache", "pod", klog.KRef(pod.Namespace, pod.Name),
			"podUID", pod.UID, "sandbox", pod.Sandbox, "vnid", klog.SafePtr(pod.VNID), "action", "if the pod was deleted, run crictl stopp with the sandbox")
		m.setAttached(pod, m.fault(pod.Attachment))
	}
	return nil
}

// maxLookups bounds the requests to the API server in a pass of followNamespaces, and lookupTimeout each of them.
const (
	maxLookups    = 10
	lookupTimeout = 2 * time.Second
)

// followNamespaces finds pods with another Namespace than the current one of that name, although they exist: the watches had not delivered the Namespace
// when they were attached, or not the pod when they were recovered, or the UID in the NetNamespace was corrected.
func (m *Manager) followNamespaces(ctx context.Context) {
	ticker := time.NewTicker(probePeriod)
	defer ticker.Stop()
	seen := map[sandbox.Attachment]types.UID{} // Namespaces that differed in the previous pass
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			seen = m.followNamespacesOnce(ctx, seen)
		}
	}
}

// followNamespacesOnce looks up the pods whose Namespace has differed before: ovsdn-controller corrects a wrong UID at once.
func (m *Manager) followNamespacesOnce(ctx context.Context, before map[sandbox.Attachment]types.UID) (seen map[sandbox.Attachment]types.UID) {
	seen = map[sandbox.Attachment]types.UID{}
	lookups := 0
	for _, pod := range m.Pods() {
		uid := m.flows.NamespaceUID(pod.Namespace)
		if uid == "" || uid == pod.NamespaceUID || !m.exists(pod) {
			continue
		}
		seen[pod.Attachment] = uid
		if before[pod.Attachment] != uid || lookups == maxLookups {
			continue
		}
		lookups++
		if err := m.followNamespace(ctx, pod.Attachment, uid); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to get pod whose Namespace changed", "pod", klog.KRef(pod.Namespace, pod.Name), "retryAfter", probePeriod)
		}
	}
	return seen
}

// followNamespace gives the pod the VNID of the Namespace with the UID if the API server has the pod: the cache may be outdated.
func (m *Manager) followNamespace(ctx context.Context, a sandbox.Attachment, uid types.UID) error {
	unlock, ok := m.sandboxes.TryLock(a.Sandbox)
	if !ok {
		return nil // another request of the sandbox is in progress
	}
	defer unlock()
	pod, attached := m.get(a)
	if !attached {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	object, err := m.pods.Get(ctx, pod.Namespace, pod.Name)
	if apierrors.IsNotFound(err) || err == nil && !sandbox.IsPod(object, pod.UID) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	klog.FromContext(ctx).Info("Namespace of a running pod changed", "pod", klog.KRef(pod.Namespace, pod.Name), "namespaceUID", uid, "previousNamespaceUID", pod.NamespaceUID)
	pod.NamespaceUID, pod.VNID = uid, nil
	fault := m.fault(a)
	m.setAttached(pod, fault)
	if fault == nil { // else the next repair sets the flows
		m.flows.SetAsync(ctx, pod, nil) // the store reports a refusal
	}
	return nil
}

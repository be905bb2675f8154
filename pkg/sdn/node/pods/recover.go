package pods

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// Recover reads the pods that a previous agent attached from the external_ids of their ports or, where OVSDB has lost these, from
// the aliases of their host veths and from their leases, and removes ports and leases of sandboxes that no longer exist. It sets
// each pod's flows without waiting for the switch: the store's first replacement of the bridge's tables, which must come
// after, installs them. CNI requests are answered after Recover.
//
// Recover logs and skips a port or a lease that it fails to recover, so that one pod does not stop the node.
func (m *Manager) Recover(ctx context.Context) error {
	c, err := m.inventory(ctx)
	if err != nil {
		return fmt.Errorf("recover pods: %w", err)
	}
	logger := klog.FromContext(ctx)
	pods, invalid := c.pods()
	for name, err := range invalid {
		if c.devices[name] {
			logger.Error(err, "Port has invalid external_ids", "port", name, "action", "delete the pod unless its port is rebuilt")
		}
	}
	for _, pod := range pods {
		if c.devices[pod.HostVeth()] {
			m.setAttached(pod, nil)
		}
	}
	if err := m.recoverBandwidth(ctx); err != nil {
		return err
	}
	// Remove deleted sandboxes first: their leases may hold the address of a running pod.
	if err := m.reconcile(ctx, allValid); err != nil {
		if ctx.Err() != nil {
			return err
		}
		logger.Error(err, "Failed to reconcile all sandboxes", "retryAfter", reconcilePeriod)
	}
	m.addLostPorts(ctx)
	if err := m.setNamespaces(ctx); err != nil {
		return err
	}
	for _, pod := range m.Pods() {
		m.reportMacvlan(ctx, pod, sandbox.CachedObject(m.pods, pod))
		if m.rejectOutside(ctx, pod) {
			continue // without changes: the pod works again if the node gets its previous subnet back
		}
		m.setFlowsAsync(ctx, pod)
		m.updateInterface(ctx, pod)
	}
	m.recovered.Store(true)
	return nil
}

// setFlowsAsync sets the flows of a recovered pod. Run reports whether the switch rejects them.
func (m *Manager) setFlowsAsync(ctx context.Context, pod sandbox.Pod) {
	if ipam.IsConflict(m.fault(pod.Attachment)) {
		return // the other pod with the address has the flows
	}
	if pod.OFPort <= 0 {
		return // addLostPorts has reported it
	}
	m.pending = append(m.pending, pendingFlows{pod, m.flows.SetAsync(ctx, pod, nil)})
}

// recoverBandwidth reads the active limits of recovered pods from the switch. Annotations that are invalid, or not in the cache, retain them. It is called before
// any pod gets another port.
func (m *Manager) recoverBandwidth(ctx context.Context) error {
	recovered := m.Pods()
	if len(recovered) == 0 {
		return nil
	}
	meters, err := m.bridge.DumpMeters(ctx)
	if err != nil {
		return fmt.Errorf("read the bandwidth of %d pods from the switch: %w", len(recovered), err)
	}
	m.flows.RecoverBandwidth(recovered, meters)
	return nil
}

// updateInterface sets the current MTU and routes of a pod that was attached with other ones. A failure is only logged: with the previous
// ones most of its packets still pass.
func (m *Manager) updateInterface(ctx context.Context, pod sandbox.Pod) {
	logger := klog.FromContext(ctx).WithValues("pod", klog.KRef(pod.Namespace, pod.Name), "sandbox", pod.Sandbox, "interface", pod.IfName)
	if pod.Netns == "" {
		logger.Info("Skipped update of MTU and routes: the rebuilt pod's network namespace is unknown", "action", "delete the pod if the MTU or the cluster network has changed")
		return
	}
	netns, err := m.links.Open(pod.Netns)
	if err != nil {
		logger.Error(err, "Failed to open the network namespace of a pod; its MTU and routes are not updated", "netns", pod.Netns, "action", "delete the pod if the MTU or the cluster network has changed")
		return
	}
	defer netns.Close()
	changes, err := m.links.Update(ctx, netns, pod.HostVeth(), m.InterfaceConfig(pod))
	if err != nil {
		logger.Error(err, "Failed to update MTU and routes of a pod", "changed", changes, "action", "delete the pod")
		return
	}
	if len(changes) > 0 {
		logger.Info("Updated MTU and routes of a pod", "changed", changes)
	}
}

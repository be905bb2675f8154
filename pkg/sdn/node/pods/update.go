package pods

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

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

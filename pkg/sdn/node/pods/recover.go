package pods

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Recover makes the manager know the pods that its predecessor attached, from the external_ids of their ports, and removes what
// is left of those that are gone. It sets each pod's flows without waiting: the store's first replacement of the
// bridge's tables, which must come after, carries them. Requests are answered from then on.
//
// A port or an address that can't be dealt with is logged and left, so that one broken pod doesn't keep a node down.
func (m *Manager) Recover(ctx context.Context) error {
	ports, err := m.bridge.ListPorts(ctx)
	if err != nil {
		return fmt.Errorf("recover pods: %w", err)
	}
	devices, err := m.links.List(ctx)
	if err != nil {
		return fmt.Errorf("recover pods: %w", err)
	}
	// Of ports whose external_ids are damaged only the name is sure.
	living := map[string]bool{}
	for _, port := range ports {
		if port.ExternalIDs[IDSandbox] == "" {
			continue
		}
		// The device alone decides, not the netns: it goes when the kernel frees that, and the path of a living
		// netns may not be visible from here.
		if !devices[port.Name] {
			m.dropPort(ctx, port)
			continue
		}
		living[port.Name] = true
		m.recoverPod(ctx, port)
	}
	if err := m.dropLeases(ctx, living); err != nil {
		return fmt.Errorf("recover pods: %w", err)
	}
	m.recovered.Store(true)
	return nil
}

func (m *Manager) dropPort(ctx context.Context, port ovs.Port) {
	logger := klog.FromContext(ctx).WithValues("port", port.Name, "sandbox", port.ExternalIDs[IDSandbox])
	if err := m.bridge.DeletePort(ctx, port.Name); err != nil {
		logger.Error(err, "Could not remove the port of a pod that is gone")
		return
	}
	logger.Info("Removed the port of a pod that is gone")
}

func (m *Manager) recoverPod(ctx context.Context, port ovs.Port) {
	logger := klog.FromContext(ctx).WithValues("port", port.Name)
	pod, err := podOf(port)
	if err != nil {
		logger.Error(err, "The port does not say whose it is: its pod has no network, delete the pod")
		return
	}
	logger = logger.WithValues("pod", klog.KRef(pod.Namespace, pod.Name), "sandbox", pod.Sandbox)
	for _, addr := range pod.Addrs {
		if err := m.ipam.Reserve(ctx, addr, pod.Sandbox, pod.IfName); err != nil {
			logger.Error(err, "Could not mark the pod's address as taken", "address", addr)
		}
	}
	if pod.OFPort <= 0 {
		// vswitchd is behind, or could not open the device earlier: ask it again.
		again, err := m.bridge.AddPort(ctx, pod.port())
		if err != nil {
			logger.Error(err, "The port has no number: its pod has no network, delete the pod")
			return
		}
		pod.OFPort = again.OFPort
	}
	m.flows.propose(pod)
	m.remember(pod)
	m.renewMTU(ctx, pod)
}

// dropLeases frees addresses that no port has: their ADD or DEL died. A veth pair may be left of it too.
func (m *Manager) dropLeases(ctx context.Context, living map[string]bool) error {
	leases, err := m.ipam.List()
	if err != nil {
		return err
	}
	for _, l := range leases {
		a := Attachment{l.ContainerID, l.IfName}
		logger := klog.FromContext(ctx).WithValues("address", l.Addr, "sandbox", a.Sandbox, "interface", a.IfName)
		if l.Damaged() {
			err = m.ipam.Discard(ctx, l.Addr)
		} else if living[a.HostVeth()] {
			continue
		} else if err = m.links.Delete(ctx, a.HostVeth()); err == nil {
			err = m.ipam.Release(ctx, a.Sandbox, a.IfName)
		}
		if err != nil {
			logger.Error(err, "Could not free an address that no pod has")
			continue
		}
		logger.Info("Freed an address that no pod has")
	}
	return nil
}

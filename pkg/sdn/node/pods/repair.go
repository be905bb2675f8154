package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// Repair adds or corrects the port of that name if it belongs to a running pod. It is called when another program has changed the port; the
// periodic reconciliation does the same later.
func (m *Manager) Repair(ctx context.Context, port string) error {
	pod, ok := m.byHostVeth(port)
	if !ok {
		return nil
	}
	unlock, err := m.sandboxes.Lock(ctx, pod.Sandbox)
	if err != nil {
		return fmt.Errorf("wait for another request of sandbox %s: %w", pod.Sandbox, err)
	}
	defer unlock()
	pod, ok = m.get(pod.Attachment)
	if !ok {
		return nil
	}
	if _, alive, err := m.links.Find(ctx, port); err != nil || !alive {
		return err // the reconciliation removes a deleted sandbox
	}
	ports, err := m.bridge.ListPorts(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(ports, func(p ovs.Port) bool { return p.Name == port && p.OFPort == 0 }) {
		return fmt.Errorf("vswitchd has not assigned an OpenFlow port number to port %s of pod %s/%s yet", port, pod.Namespace, pod.Name)
	}
	return m.repairPort(ctx, pod)
}

func (m *Manager) byHostVeth(name string) (sandbox.Pod, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for a, pod := range m.attached {
		if a.HostVeth() == name {
			return pod, true
		}
	}
	return sandbox.Pod{}, false
}

// repairPod corrects changes by other programs to a running pod: the alias of its host veth, its leases, its port and its flows.
// The caller holds the sandbox's lock.
func (m *Manager) repairPod(ctx context.Context, c inventory, pod sandbox.Pod) error {
	broken := m.fault(pod.Attachment) != nil
	if err := m.updateAlias(ctx, c, pod); err != nil {
		return err
	}
	conflict, err := m.reserve(ctx, pod)
	if conflict != nil {
		m.setAttached(pod, conflict)
	}
	if conflict != nil || err != nil || !m.recovered.Load() {
		return err // Recover adds the port and the flows later
	}
	if port, ok := c.ports[pod.HostVeth()]; ok && isPortOf(port, pod) && !broken {
		return nil
	}
	return m.repairPort(ctx, pod)
}

// updateAlias sets the alias if an earlier version of the agent attached the pod without it, or another program changed it.
func (m *Manager) updateAlias(ctx context.Context, c inventory, pod sandbox.Pod) error {
	alias := pod.Alias()
	if have, ok := c.aliased[pod.HostVeth()]; alias == "" || ok && have.Alias() == alias {
		return nil
	}
	if err := m.links.SetAlias(ctx, pod.HostVeth(), alias); err != nil {
		return fmt.Errorf("update the alias of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// isPortOf reports whether the port has the pod's number and external_ids.
func isPortOf(port ovs.Port, pod sandbox.Pod) bool {
	return port.OFPort == pod.OFPort && hasIDsOf(port, pod)
}

// hasIDsOf reports whether the port has the pod's external_ids. Other keys are those of other programs.
func hasIDsOf(port ovs.Port, pod sandbox.Pod) bool {
	for key, want := range pod.Port().ExternalIDs {
		if port.ExternalIDs[key] != want {
			return false
		}
	}
	return true
}

// reserve restores missing leases of the running pod's addresses. If another pod has a lease of one of them, it reports that on both pods, and
// returns it as conflict.
func (m *Manager) reserve(ctx context.Context, pod sandbox.Pod) (conflict, err error) {
	var conflicts, errs []error
	for _, addr := range pod.Addrs {
		err := m.ipam.Reserve(ctx, addr, pod.Sandbox, pod.IfName)
		var held *ipam.ConflictError
		switch {
		case err == nil:
		case errors.As(err, &held):
			conflicts = append(conflicts, m.reportConflict(ctx, pod, held))
		case ctx.Err() != nil:
			return nil, err
		default:
			errs = append(errs, &diskError{fmt.Errorf("reserve %s for pod %s/%s: %w", addr, pod.Namespace, pod.Name, err)})
		}
	}
	return errors.Join(conflicts...), errors.Join(errs...)
}

// reportConflict reports the conflict on both pods, once.
func (m *Manager) reportConflict(ctx context.Context, pod sandbox.Pod, c *ipam.ConflictError) error {
	other, _ := m.get(sandbox.Attachment{Sandbox: c.ContainerID, IfName: c.IfName})
	err := fmt.Errorf("pod %s/%s and pod %s/%s (sandbox %s) have the same address; delete one of them: %w",
		pod.Namespace, pod.Name, other.Namespace, other.Name, other.Sandbox, c)
	if ipam.IsConflict(m.fault(pod.Attachment)) {
		return err // already reported
	}
	klog.FromContext(ctx).Error(err, "Two pods have the same address", "action", "delete one of them")
	m.events.WarnPod(pod, eventreason.AddressInUseTwice, err.Error())
	if other.Name != "" {
		m.events.WarnPod(other, eventreason.AddressInUseTwice, err.Error())
	}
	return err
}

// repairPort adds the pod's port if it was deleted or differs, and updates the pod's flows to the port's number. It does nothing for a pod outside of the
// node's subnets.
func (m *Manager) repairPort(ctx context.Context, pod sandbox.Pod) error {
	if m.rejectOutside(ctx, pod) {
		return nil
	}
	ports, err := m.bridge.ListPorts(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(ports, func(p ovs.Port) bool { return p.Name == pod.HostVeth() })
	fault := m.fault(pod.Attachment)
	if at >= 0 && isPortOf(ports[at], pod) && fault == nil {
		return nil // repaired since the inventory
	}
	if fault != nil {
		// The flows may not be installed yet: get what they depend on first.
		uid, err := m.flows.Ready(ctx, pod.Namespace)
		if err != nil {
			return fmt.Errorf("look up the inputs of the flows of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		if pod.NamespaceUID == "" {
			pod.NamespaceUID = uid
		}
	}
	deleted := at < 0
	if at >= 0 && ports[at].OFPort > 0 && hasIDsOf(ports[at], pod) {
		pod.OFPort = ports[at].OFPort
		if err := m.links.SetUp(ctx, pod.HostVeth()); err != nil { // see addPort
			return err
		}
	} else {
		number, err := m.recreatePort(ctx, pod)
		if err != nil {
			return fmt.Errorf("add the port of pod %s/%s again: %w", pod.Namespace, pod.Name, err)
		}
		pod.OFPort = number
	}
	if err := m.flows.Set(ctx, pod, nil); err != nil {
		return fmt.Errorf("install the flows of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	klog.FromContext(ctx).Info("Repaired the port of a pod", "pod", klog.KRef(pod.Namespace, pod.Name), "ofport", pod.OFPort)
	m.setAttached(pod, nil)
	switch {
	case errors.Is(fault, errPortLost):
		m.reportRebuilt(ctx, []sandbox.Pod{pod})
	case deleted:
		m.mu.Lock()
		m.rebuilt = append(m.rebuilt, pod)
		m.mu.Unlock()
	}
	return nil
}

package pods

import (
	"context"
	"fmt"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Repair puts right what somebody did to the port of that name, if it is a living pod's. It is for who sees that happen: sweeps
// find it too.
func (m *Manager) Repair(ctx context.Context, port string) error {
	pod, ok := m.byHostVeth(port)
	if !ok {
		return nil
	}
	unlock, err := m.sandboxes.lock(ctx, pod.Sandbox)
	if err != nil {
		return fmt.Errorf("wait for another request of sandbox %s: %w", pod.Sandbox, err)
	}
	defer unlock()
	pod, ok = m.get(pod.Attachment)
	if !ok {
		return nil
	}
	if _, alive, err := m.links.Find(ctx, port); err != nil || !alive {
		return err // a dead sandbox is the sweep's
	}
	ports, err := m.bridge.ListPorts(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(ports, func(p ovs.Port) bool { return p.Name == port && p.OFPort == 0 }) {
		return fmt.Errorf("vswitchd has not given port %s of pod %s/%s a number yet", port, pod.Namespace, pod.Name)
	}
	return m.replug(ctx, pod)
}

func (m *Manager) byHostVeth(name string) (Pod, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for a, pod := range m.attached {
		if a.HostVeth() == name {
			return pod, true
		}
	}
	return Pod{}, false
}

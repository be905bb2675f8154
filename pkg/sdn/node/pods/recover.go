package pods

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
)

// Recover makes the manager know the pods that its predecessor attached, from the external_ids of their ports, and sweeps up what
// is left of those that are gone. It sets each pod's flows without waiting: the store's first replacement of the
// bridge's tables, which must come after, carries them. Requests are answered from then on.
//
// A port or an address that can't be dealt with is logged and left, so that one broken pod doesn't keep a node down.
func (m *Manager) Recover(ctx context.Context) error {
	c, err := m.census(ctx)
	if err != nil {
		return fmt.Errorf("recover pods: %w", err)
	}
	logger := klog.FromContext(ctx)
	pods, damaged := c.pods()
	for name, err := range damaged {
		if c.devices[name] {
			logger.Error(err, "A port does not say whose it is: its pod has no network, delete the pod", "port", name)
		}
	}
	for _, pod := range pods {
		if c.devices[pod.HostVeth()] {
			m.remember(pod, nil)
		}
	}
	// First the dead: a living pod's address may be marked as theirs.
	if err := m.sweep(ctx, allValid); err != nil {
		if ctx.Err() != nil {
			return err
		}
		logger.Error(err, "Could not remove all that dead sandboxes left")
	}
	for _, pod := range m.Pods() {
		m.propose(ctx, pod)
		m.renew(ctx, pod)
	}
	m.recovered.Store(true)
	return nil
}

// propose asks for the flows of a recovered pod.
func (m *Manager) propose(ctx context.Context, pod Pod) {
	logger := klog.FromContext(ctx).WithValues("pod", klog.KRef(pod.Namespace, pod.Name), "port", pod.HostVeth())
	var conflict *ipam.ConflictError
	if errors.As(m.fault(pod.Attachment), &conflict) {
		return // the other one has the flows
	}
	if pod.OFPort <= 0 {
		// vswitchd is behind, or could not open the device earlier: ask it again.
		again, err := m.bridge.AddPort(ctx, pod.port())
		if err != nil {
			logger.Error(err, "The port has no number: its pod has no network, delete the pod")
			m.remember(pod, err)
			return
		}
		pod.OFPort = again.OFPort
		m.remember(pod, nil)
	}
	m.proposed = append(m.proposed, proposal{pod, m.flows.propose(ctx, pod, nil)})
}

package pods

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
)

// Recover reads the pods that a previous agent attached from the external_ids of their ports or, where OVSDB has lost these, from
// the aliases of their host veths and from their leases, and removes ports and leases of sandboxes that no longer exist. It sets
// each pod's flows without waiting for the switch: the store's first replacement of the bridge's tables, which must come
// after, installs them. CNI requests are answered after Recover.
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
			logger.Error(err, "Port has invalid external_ids", "port", name, "action", "delete the pod unless its port is rebuilt")
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
	m.plugLost(ctx)
	for _, pod := range m.Pods() {
		m.propose(ctx, pod)
		m.renew(ctx, pod)
	}
	m.recovered.Store(true)
	return nil
}

// propose asks for the flows of a recovered pod.
func (m *Manager) propose(ctx context.Context, pod Pod) {
	var conflict *ipam.ConflictError
	if errors.As(m.fault(pod.Attachment), &conflict) {
		return // the other one has the flows
	}
	if pod.OFPort <= 0 {
		return // plugLost has reported it
	}
	m.proposed = append(m.proposed, proposal{pod, m.flows.propose(ctx, pod, nil)})
}

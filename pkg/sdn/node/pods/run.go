package pods

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

const (
	sweepPeriod = time.Minute
	probePeriod = 5 * time.Second
)

// Run keeps watch until the context ends: over what dead sandboxes leave, over Open vSwitch, over the disk if that failed, and over
// the flows that Recover proposed.
func (m *Manager) Run(ctx context.Context) {
	sweep, probe := time.NewTicker(sweepPeriod), time.NewTicker(probePeriod)
	defer sweep.Stop()
	defer probe.Stop()
	judged := make(chan struct{})
	go func() {
		defer close(judged)
		m.judgeProposals(ctx)
	}()
	defer func() { <-judged }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-probe.C:
			m.probe(ctx)
			m.restoreLeases(ctx)
			m.reportRepaired(ctx)
		case <-sweep.C:
			if err := m.sweep(ctx, allValid); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Could not remove all that dead sandboxes left, will try again", "in", sweepPeriod)
			}
		}
	}
}

// probe asks Open vSwitch, and a disk that failed, whether they work.
func (m *Manager) probe(parent context.Context) {
	ctx, cancel := context.WithTimeout(parent, probePeriod)
	defer cancel()
	asked := m.health.asking()
	_, err := m.bridge.ListPorts(ctx)
	if err == nil {
		if _, err = m.bridge.Missing(ctx, nil); err != nil {
			err = fmt.Errorf("ask vswitchd for an answer: %w", err)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("Open vSwitch does not answer in %s (is ovs-vswitchd stuck?): %w", probePeriod, err)
	}
	if parent.Err() != nil {
		return // it says nothing
	}
	m.health.probed(asked, err)
	if _, failed := m.health.get(); failed == nil {
		return
	}
	asked = m.health.asking()
	if err := m.ipam.Probe(ctx); m.health.setDisk(asked, err) {
		klog.FromContext(ctx).Info("Addresses can be written again")
	}
}

// proposal is a recovered pod whose flows are on their way to the switch.
type proposal struct {
	pod  Pod
	done func(context.Context) error
}

// judgeProposals tells of recovered pods whose flows the switch, or the store, refused.
func (m *Manager) judgeProposals(ctx context.Context) {
	for _, p := range m.proposed {
		err := p.done(ctx)
		if err == nil || ctx.Err() != nil {
			continue
		}
		unlock, lockErr := m.sandboxes.lock(ctx, p.pod.Sandbox)
		if lockErr != nil {
			return
		}
		// One that was plugged anew meanwhile has had other flows since.
		if now, attached := m.get(p.pod.Attachment); attached && now.OFPort == p.pod.OFPort {
			klog.FromContext(ctx).Error(err, "A recovered pod's flows were refused: it has no network, delete it", "pod", klog.KRef(p.pod.Namespace, p.pod.Name))
			m.events.WarnPod(p.pod, ReasonNoFlows, err.Error())
			m.remember(p.pod, err)
		}
		unlock()
	}
}

// restoreLeases writes the leases that were deleted, and reports how many. Requests that need the disk report its failures.
func (m *Manager) restoreLeases(ctx context.Context) {
	restored, err := m.ipam.Restore(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		klog.FromContext(ctx).Error(err, "Failed to restore leases", "retryAfter", probePeriod)
	case restored > 0:
		klog.FromContext(ctx).Info("Restored leases of running pods", "leases", restored)
		m.events.WarnNode(ReasonLeasesRestored, fmt.Sprintf(
			"leases of %d addresses in use on node %s were deleted from its address directory, and are restored; no address was allocated twice; find the program that deletes them", restored, m.NodeName))
	}
}

package pods

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

const (
	reconcilePeriod = time.Minute
	probePeriod     = 5 * time.Second
)

// Run reconciles sandboxes, probes Open vSwitch and a disk that failed, and restores deleted leases, until the context ends. It also reports
// rejected flows of pods that Recover recovered.
func (m *Manager) Run(ctx context.Context) {
	reconcile, probe := time.NewTicker(reconcilePeriod), time.NewTicker(probePeriod)
	defer reconcile.Stop()
	defer probe.Stop()
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { m.reportRejected(ctx) })
	others.Go(func() { m.followNamespaces(ctx) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-probe.C:
			m.probe(ctx)
			m.restoreLeases(ctx)
			m.reportRepaired(ctx)
		case <-reconcile.C:
			if err := m.reconcile(ctx, allValid); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Failed to reconcile all sandboxes", "retryAfter", reconcilePeriod)
			}
		}
	}
}

// PodChanged applies the annotations of a pod of this node. It does not wait for the switch: the Node's condition reports flows that it refuses.
func (m *Manager) PodChanged(ctx context.Context, object *corev1.Pod) {
	m.flows.PodChanged(ctx, object)
	for _, pod := range m.attachedWithMacvlan(object) {
		m.reportMacvlan(ctx, pod, object)
	}
}

// probe checks that Open vSwitch answers, and a disk that failed before.
func (m *Manager) probe(parent context.Context) {
	ctx, cancel := context.WithTimeout(parent, probePeriod)
	defer cancel()
	before := m.health.snapshot()
	_, err := m.bridge.ListPorts(ctx)
	if err == nil {
		if _, err = m.bridge.Missing(ctx, nil); err != nil {
			err = fmt.Errorf("query vswitchd: %w", err)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer from Open vSwitch within %s; check whether ovs-vswitchd hangs: %w", probePeriod, err)
	}
	if parent.Err() != nil {
		return // canceled: not a failure of Open vSwitch
	}
	m.health.recordProbe(before, err)
	if _, failed := m.health.get(); failed == nil {
		return
	}
	before = m.health.snapshot()
	if err := m.ipam.Probe(ctx); m.health.recordDisk(before, err) {
		klog.FromContext(ctx).Info("Disk of IP leases is writable again")
	}
}

// pendingFlows is a recovered pod whose flows are being installed.
type pendingFlows struct {
	pod  sandbox.Pod
	wait func(context.Context) error
}

// reportRejected reports recovered pods whose flows the switch or the store rejected.
func (m *Manager) reportRejected(ctx context.Context) {
	for _, p := range m.pending {
		err := p.wait(ctx)
		if err == nil || ctx.Err() != nil {
			continue
		}
		unlock, lockErr := m.sandboxes.Lock(ctx, p.pod.Sandbox)
		if lockErr != nil {
			return
		}
		// A pod whose port was repaired since then has other flows.
		if current, attached := m.get(p.pod.Attachment); attached && current.OFPort == p.pod.OFPort {
			m.reportRejectedPod(ctx, p.pod, err)
		}
		unlock()
	}
}

// reportRejectedPod reports a pod without flows. The condition of the node reports a rejection by the switch, and not a conflict, which is a fault of the pod
// until a reconciliation finds it solved. The caller holds the sandbox's lock.
func (m *Manager) reportRejectedPod(ctx context.Context, pod sandbox.Pod, err error) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "pod", klog.KRef(pod.Namespace, pod.Name))
	if errors.As(err, new(*flowstore.ConflictError)) {
		m.setAttached(pod, err)
		logger.Error(err, "Flows of recovered pod conflict with those of another object", "effect", "the pod has no network", "action", "delete the pod")
		m.events.WarnPod(pod, eventreason.NetworkFlowsRefused, fmt.Sprintf("pod %s/%s has no network: its flows conflict with those of another object: %v; delete the pod",
			pod.Namespace, pod.Name, err))
		return
	}
	logger.Error(err, "Switch rejected flows of recovered pod", "effect", "the pod has no network until the switch accepts them", "action", "check ovs-vswitchd's log")
	m.events.WarnPod(pod, eventreason.NetworkFlowsRefused, fmt.Sprintf("pod %s/%s has no network: the switch rejected its flows: %v; the agent tries again: check ovs-vswitchd's log",
		pod.Namespace, pod.Name, err))
}

// restoreLeases writes the leases that were deleted, and reports how many. Requests that need the disk report its failures.
func (m *Manager) restoreLeases(ctx context.Context) {
	restored, err := m.ipam.Restore(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		klog.FromContext(ctx).Error(err, "Failed to restore leases", "retryAfter", probePeriod)
	case restored > 0:
		klog.FromContext(ctx).Info("Restored leases of running pods", "leases", restored)
		m.events.WarnNode(eventreason.AddressLeasesRestored, fmt.Sprintf(
			"leases of %d addresses in use on node %s were deleted from its lease directory, and are restored; no address was allocated twice; find the program that deletes them", restored, m.NodeName))
	}
}

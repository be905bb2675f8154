package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// reconcile removes attachments that are invalid or whose sandbox was deleted, and repairs the others. It continues after errors.
func (m *Manager) reconcile(ctx context.Context, valid func(sandbox.Attachment) bool) error {
	c, err := m.inventory(ctx)
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	known := c.attachments()
	maps.Copy(known, m.Known())
	_, invalid := c.pods()
	var errs []error
	for _, a := range slices.SortedFunc(maps.Keys(known), c.compareStaleFirst) {
		if err := m.reconcileOne(ctx, c, a, valid(a)); err != nil {
			errs = append(errs, fmt.Errorf("reconcile sandbox %s: %w", a.Sandbox, err))
		}
	}
	for name := range invalid {
		if c.devices[name] {
			continue
		}
		if err := m.bridge.DeletePort(ctx, name); err != nil {
			errs = append(errs, fmt.Errorf("remove port %s of a deleted sandbox: %w", name, err))
		}
	}
	errs = append(errs, m.releaseStaleLeases(ctx, c))
	m.restoreSysctls(ctx, c)
	return errors.Join(errs...)
}

// restoreSysctls restores the sysctls of the host veths of running pods. Its first failure is reported by SysctlsHealthy.
func (m *Manager) restoreSysctls(ctx context.Context, c inventory) {
	var failure error
	for _, pod := range m.Pods() {
		if !c.devices[pod.HostVeth()] {
			continue
		}
		changes, err := m.links.RestoreSysctls(ctx, pod.HostVeth())
		if len(changes) > 0 {
			klog.FromContext(ctx).Info("Restored sysctls of a pod's host veth", "pod", klog.KRef(pod.Namespace, pod.Name), "changes", changes)
		}
		// ErrNotExist: the pod was deleted after the inventory.
		if err != nil && !errors.Is(err, fs.ErrNotExist) && failure == nil {
			failure = fmt.Errorf("host veth of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	if ctx.Err() == nil {
		m.health.recordSysctls(failure)
	}
}

// reconcileOne removes the attachment if it is invalid or its sandbox was deleted. Else it repairs the pod, or rebuilds the port. It skips an
// attachment whose sandbox is locked by a request.
func (m *Manager) reconcileOne(ctx context.Context, c inventory, a sandbox.Attachment, valid bool) error {
	unlock, ok := m.sandboxes.TryLock(a.Sandbox)
	if !ok {
		return nil
	}
	defer unlock()
	pod, attached := m.get(a)
	if valid {
		alive := attached && c.devices[a.HostVeth()]
		if !alive { // the pod may have been attached or deleted after the inventory
			var err error
			if _, alive, err = m.links.Find(ctx, a.HostVeth()); err != nil {
				return err
			}
		}
		switch {
		case alive && attached:
			return m.repairPod(ctx, c, pod)
		case alive:
			return m.rebuild(ctx, c, a)
		case !attached && !m.recovered.Load(): // after Recover, a DEL has detached it since the inventory
			pod, _ = sandbox.ParsePort(c.ports[a.HostVeth()]) // the zero Pod if the port does not exist
		}
		m.reportDeleted(ctx, c, pod)
	}
	klog.FromContext(ctx).Info("Removing stale sandbox", "sandbox", a.Sandbox, "interface", a.IfName,
		"pod", klog.KRef(pod.Namespace, pod.Name), "addresses", pod.Addrs)
	return m.remove(ctx, a, "")
}

// releaseStaleLeases releases leases without a container id, or of attachments with another address. No running pod has such an address,
// since reconcileOne has reserved the addresses of running pods.
func (m *Manager) releaseStaleLeases(ctx context.Context, c inventory) error {
	var errs []error
	for _, l := range c.leases {
		if pod, attached := m.get(sandbox.Attachment{Sandbox: l.ContainerID, IfName: l.IfName}); !l.Corrupt() && (!attached || slices.Contains(pod.Addrs, l.Addr)) {
			continue
		}
		// ReleaseLease reads the file again: the corrupt lease of a running pod may have been rewritten since the inventory.
		if err := m.ipam.ReleaseLease(ctx, l); err != nil {
			errs = append(errs, err)
			continue
		}
		klog.FromContext(ctx).Info("Released stale IP lease", "address", l.Addr, "sandbox", l.ContainerID)
	}
	return errors.Join(errs...)
}

// allValid accepts every attachment.
func allValid(sandbox.Attachment) bool { return true }

// releaseStale reconciles, to release the addresses of deleted sandboxes. Concurrent calls share one reconciliation.
func (m *Manager) releaseStale(ctx context.Context) {
	done := m.releases.DoChan("", func() (any, error) {
		// Other requests wait for it too: it must not end with this one.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cleanupTimeout)
		defer cancel()
		if err := m.reconcile(ctx, allValid); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to reconcile all sandboxes", "retryAfter", reconcilePeriod)
		}
		return nil, nil
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}

package pods

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// Del detaches the interface. It succeeds when there is nothing to detach. It requires neither CNI_NETNS nor CNI_ARGS: without CNI_NETNS a macvlan interface is deleted
// from the namespace of ADD, or remains until the kernel deletes it with its namespace.
func (m *Manager) Del(ctx context.Context, req *cniserver.Request) error {
	a := sandbox.Attachment{Sandbox: req.ContainerID, IfName: req.IfName}
	logger := klog.FromContext(ctx).WithValues("sandbox", a.Sandbox, "interface", a.IfName)
	start, before := time.Now(), m.health.snapshot()
	_, attached := m.get(a)
	err := m.del(ctx, a, req.Netns)
	if attached || err != nil { // with nothing to detach, Open vSwitch is not called
		m.recordResult(before, err, false)
	}
	if err != nil {
		logger.Error(err, "Failed to detach pod; the runtime repeats DEL")
		return asCNIError(err)
	}
	logger.V(1).Info("Detached pod", "duration", time.Since(start))
	return nil
}

func (m *Manager) del(ctx context.Context, a sandbox.Attachment, netns string) error {
	if err := m.requireRecovered(); err != nil {
		return err
	}
	unlock, err := m.sandboxes.Lock(ctx, a.Sandbox)
	if err != nil {
		return fmt.Errorf("wait for another request of sandbox %s: %w", a.Sandbox, err)
	}
	defer unlock()
	return m.remove(ctx, a, netns)
}

// remove removes the flows, port, interfaces and leases of the attachment; none of them need exist. netns is the path of the sandbox's network namespace; "" if
// unknown. The caller holds the sandbox's lock. It continues after an error, but releases the address only when no flow, port, device or host port uses it.
func (m *Manager) remove(ctx context.Context, a sandbox.Attachment, netns string) error {
	var errs []error
	waitFlows := m.flows.Remove(a)
	if err := m.bridge.DeletePort(ctx, a.HostVeth()); err != nil {
		errs = append(errs, fmt.Errorf("remove the port of sandbox %s: %w", a.Sandbox, err))
	}
	if err := m.links.Delete(ctx, a.HostVeth()); err != nil {
		errs = append(errs, fmt.Errorf("remove the veth pair of sandbox %s: %w", a.Sandbox, err))
	}
	if err := m.removeMacvlan(ctx, a, netns); err != nil {
		errs = append(errs, fmt.Errorf("remove the macvlan interface of sandbox %s: %w", a.Sandbox, err))
	}
	if m.beforeRelease != nil {
		if err := m.beforeRelease(ctx, a); err != nil {
			errs = append(errs, fmt.Errorf("release the address of sandbox %s: %w", a.Sandbox, err))
		}
	}
	// Wait for the flows last: while Open vSwitch is unavailable this lasts until the timeout, and must not delay the port and the device.
	// Do not wait during Recover: the store's first replacement of the tables removes the flows, before any ADD can allocate the address.
	if m.recovered.Load() {
		if err := waitFlows(ctx); err != nil {
			errs = append(errs, fmt.Errorf("remove the flows of sandbox %s: %w", a.Sandbox, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if err := m.ipam.Release(ctx, a.Sandbox, a.IfName); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return &diskError{fmt.Errorf("release the address of sandbox %s: %w", a.Sandbox, err)}
	}
	m.deleteAttached(a)
	return nil
}

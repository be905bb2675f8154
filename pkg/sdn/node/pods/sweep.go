package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
)

// GC detaches what the runtime's list of valid attachments does not have. Sandboxes with a request of their own in progress, and
// what was attached meanwhile, are left alone, since the list may be older than they are. Without a list it detaches what is dead.
func (m *Manager) GC(ctx context.Context, req *cniserver.Request) error {
	if err := m.starting(); err != nil {
		return err
	}
	valid, err := validAttachments(req.Config)
	if err != nil {
		return err
	}
	known := m.known()
	asked := m.health.asking()
	// The list is older than what is attached from now on.
	if err := m.sweep(ctx, func(a Attachment) bool { return valid(a) || !known[a] }); err != nil {
		m.learn(asked, err, false)
		klog.FromContext(ctx).Error(err, "Could not remove all that is not valid any more")
		return asCNIError(err)
	}
	return nil
}

// validAttachments reads the runtime's list. That there is none, as from cnitool, does not mean that nothing is valid.
func validAttachments(config json.RawMessage) (func(Attachment) bool, error) {
	c, err := cniserver.ParseConfig(config)
	if err != nil {
		return nil, err
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(config, &keys); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration does not parse", err.Error())
	}
	if _, ok := keys["cni.dev/valid-attachments"]; !ok {
		return allValid, nil
	}
	valid := make(map[Attachment]bool, len(c.ValidAttachments))
	for _, a := range c.ValidAttachments {
		valid[Attachment{a.ContainerID, a.IfName}] = true
	}
	return func(a Attachment) bool { return valid[a] }, nil
}

// sweep removes everything of attachments that are dead, or not valid, and tends the others. It goes on after errors.
func (m *Manager) sweep(ctx context.Context, valid func(Attachment) bool) error {
	c, err := m.census(ctx)
	if err != nil {
		return fmt.Errorf("look for what dead sandboxes left: %w", err)
	}
	known := c.attachments()
	maps.Copy(known, m.known())
	_, damaged := c.pods()
	var errs []error
	for _, a := range slices.SortedFunc(maps.Keys(known), c.compareDeadFirst) {
		if err := m.sweepOne(ctx, c, a, valid(a)); err != nil {
			errs = append(errs, fmt.Errorf("clean up after sandbox %s: %w", a.Sandbox, err))
		}
	}
	for name := range damaged {
		if c.devices[name] {
			continue
		}
		if err := m.bridge.DeletePort(ctx, name); err != nil {
			errs = append(errs, fmt.Errorf("remove port %s, whose pod is gone: %w", name, err))
		}
	}
	errs = append(errs, m.sweepLeases(ctx, c))
	return errors.Join(errs...)
}

// sweepOne removes the attachment if it is invalid or dead. Else it repairs it, or rebuilds its port if OVSDB has lost it. It skips an
// attachment whose sandbox is locked by a request.
func (m *Manager) sweepOne(ctx context.Context, c census, a Attachment, valid bool) error {
	unlock, ok := m.sandboxes.try(a.Sandbox)
	if !ok {
		return nil
	}
	defer unlock()
	pod, attached := m.get(a)
	if valid {
		alive := attached && c.devices[a.HostVeth()]
		if !alive { // the pod may have been attached, or have ended, after the census
			var err error
			if _, alive, err = m.links.Find(ctx, a.HostVeth()); err != nil {
				return err
			}
		}
		switch {
		case alive && attached:
			return m.tend(ctx, c, pod)
		case alive:
			return m.rebuild(ctx, c, a)
		case !attached && !m.recovered.Load(): // after Recover, a DEL has detached it since the census
			pod, _ = podOf(c.ports[a.HostVeth()]) // the zero Pod where there is no such port
		}
		m.reportDeleted(ctx, c, pod)
	}
	klog.FromContext(ctx).Info("Removing what a sandbox left that is gone, or no longer valid", "sandbox", a.Sandbox, "interface", a.IfName,
		"pod", klog.KRef(pod.Namespace, pod.Name), "addresses", pod.Addrs)
	return m.remove(ctx, a)
}

// sweepLeases frees addresses whose files name nobody, or an attachment that has another address. Nobody who has the
// address is alive: those have been claimed.
func (m *Manager) sweepLeases(ctx context.Context, c census) error {
	var errs []error
	for _, l := range c.leases {
		if pod, attached := m.get(Attachment{l.ContainerID, l.IfName}); !l.Damaged() && (!attached || slices.Contains(pod.Addrs, l.Addr)) {
			continue
		}
		// A damaged file may belong to a living pod that was claimed since the census: then it is not damaged any more.
		if err := m.ipam.Discard(ctx, l); err != nil {
			errs = append(errs, err)
			continue
		}
		klog.FromContext(ctx).Info("Freed an address whose file names nobody who has it", "address", l.Addr, "sandbox", l.ContainerID)
	}
	return errors.Join(errs...)
}

// allValid is the list of a runtime that gives none.
func allValid(Attachment) bool { return true }

// sweepForRoom sweeps for requests that find no address; those that come meanwhile share it.
func (m *Manager) sweepForRoom(ctx context.Context) {
	done := m.sweeps.DoChan("", func() (any, error) {
		// It is not only for this request.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.undoTime)
		defer cancel()
		if err := m.sweep(ctx, allValid); err != nil {
			klog.FromContext(ctx).Error(err, "Could not remove all that dead sandboxes left")
		}
		return nil, nil
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}

package pods

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
)

// GC detaches what the runtime's list of valid attachments does not have. Sandboxes with a request of their own in progress
// are left alone, since the list may be older than they are.
func (m *Manager) GC(ctx context.Context, req *cniserver.Request) error {
	if err := m.starting(); err != nil {
		return err
	}
	config, err := cniserver.ParseConfig(req.Config)
	if err != nil {
		return err
	}
	valid := make(map[Attachment]bool, len(config.ValidAttachments))
	for _, a := range config.ValidAttachments {
		valid[Attachment{a.ContainerID, a.IfName}] = true
	}
	return m.sweep(ctx, valid)
}

// sweep removes every attachment that holds an address and is not valid.
func (m *Manager) sweep(ctx context.Context, valid map[Attachment]bool) error {
	leases, err := m.ipam.List()
	if err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	var errs []error
	for _, l := range leases {
		a := Attachment{l.ContainerID, l.IfName}
		if l.Damaged() || valid[a] || m.sandboxes.held(a.Sandbox) {
			continue
		}
		logger.Info("Removing what a sandbox left that is no longer valid", "sandbox", a.Sandbox, "interface", a.IfName, "address", l.Addr)
		if err := m.del(ctx, a); err != nil {
			errs = append(errs, fmt.Errorf("clean up after sandbox %s: %w", a.Sandbox, err))
		}
	}
	return errors.Join(errs...)
}

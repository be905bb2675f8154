package pods

import (
	"context"
	"encoding/json"

	"github.com/containernetworking/cni/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// GC detaches all that the runtime's list of valid attachments does not contain. It skips sandboxes with another request in progress, and
// those that are attached during GC, since the list may be older. Without a list it detaches deleted sandboxes only.
func (m *Manager) GC(ctx context.Context, req *cniserver.Request) error {
	if err := m.requireRecovered(); err != nil {
		return err
	}
	valid, err := validAttachments(req.Config)
	if err != nil {
		return err
	}
	known := m.Known()
	before := m.health.snapshot()
	// A pod that is attached from now on is missing in the runtime's list.
	if err := m.reconcile(ctx, func(a sandbox.Attachment) bool { return valid(a) || !known[a] }); err != nil {
		m.recordResult(before, err, false)
		klog.FromContext(ctx).Error(err, "Failed to remove all invalid attachments")
		return asCNIError(err)
	}
	return nil
}

// validAttachments parses the runtime's list. If there is none, as from cnitool, all attachments are valid.
func validAttachments(config json.RawMessage) (func(sandbox.Attachment) bool, error) {
	c, err := cniserver.ParseConfig(config)
	if err != nil {
		return nil, err
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(config, &keys); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "invalid network configuration", err.Error())
	}
	if _, ok := keys["cni.dev/valid-attachments"]; !ok {
		return allValid, nil
	}
	valid := make(map[sandbox.Attachment]bool, len(c.ValidAttachments))
	for _, a := range c.ValidAttachments {
		valid[sandbox.Attachment{Sandbox: a.ContainerID, IfName: a.IfName}] = true
	}
	return func(a sandbox.Attachment) bool { return valid[a] }, nil
}

package native

import (
	"context"
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// DeleteBridge deletes the bridge with its ports and flows, for an uninstallation, and returns after vswitchd has closed the devices. It is
// not an error if the bridge does not exist. A bridge that EnsureBridge would not adopt, whatever its datapath type, is retained: that is
// an error (IsForeignBridge).
func (n *Native) DeleteBridge(ctx context.Context, b ovs.Bridge) error {
	if b.Name != n.bridge {
		return fmt.Errorf("this backend programs bridge %q, not %q", n.bridge, b.Name)
	}
	err := within(ctx, n.timeout, n.db, func(ctx context.Context, db *database) error {
		if err := db.sync(ctx); err != nil {
			return err
		}
		bridge, exists := db.bridge(n.bridge)
		if !exists {
			return nil
		}
		if !db.stateOf(bridge).marked {
			if err := b.CheckForeign(db.portsOf(bridge)); err != nil {
				return err
			}
		}
		root, err := db.root()
		if err != nil {
			return err
		}
		_, cfg, err := db.change(ctx, deleteSampling(bridge.UUID), mutateSet(tableRoot, root.UUID, "bridges", ovsdb.MutateOperationDelete, bridge.UUID))
		if err != nil {
			return err
		}
		return db.confirmed(ctx, cfg)
	})
	if err != nil && !ovs.IsForeignBridge(err) {
		return fmt.Errorf("delete bridge %s: %w", n.bridge, err)
	}
	return err
}

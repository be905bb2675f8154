package ovs

import (
	"context"
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// DeleteBridge removes the bridge with its ports and flows, for an uninstallation, and returns when vswitchd has let go of its devices. A
// bridge that is not there is no error.
func (n *Native) DeleteBridge(ctx context.Context) error {
	err := within(ctx, n.timeout, n.db, func(ctx context.Context, db *database) error {
		bridge, exists := db.bridge(n.bridge)
		if !exists {
			return nil
		}
		root, err := db.root()
		if err != nil {
			return err
		}
		_, cfg, err := db.change(ctx, mutateSet(tableRoot, root.UUID, "bridges", ovsdb.MutateOperationDelete, bridge.UUID))
		if err != nil {
			return err
		}
		return db.confirmed(ctx, cfg)
	})
	if err != nil {
		return fmt.Errorf("delete bridge %s: %w", n.bridge, err)
	}
	return nil
}

package ovs

import (
	"context"
	"errors"
	"fmt"
)

// ListConnections implements Interface.
func (n *Native) ListConnections(ctx context.Context, zones Zones, each func(Connection)) error {
	if err := zones.validate(); err != nil {
		return err
	}
	err := n.onDatapath(ctx, func(ctx context.Context, datapath string) error {
		var strange error
		err := n.command(ctx, func(line []byte) {
			switch c, ok, err := parseConnection(line, zones); {
			case err != nil && strange == nil:
				strange = err
			case ok:
				each(c)
			}
		}, "dpctl/dump-conntrack", datapath)
		return errors.Join(err, strange)
	})
	if err != nil {
		return fmt.Errorf("list connections: %w", err)
	}
	return nil
}

// onDatapath calls f with the name that dpctl has for the bridge's datapath (ovs-dpctl(8)). All bridges of one type share one.
func (n *Native) onDatapath(ctx context.Context, f func(ctx context.Context, datapath string) error) error {
	return within(ctx, replaceTimeout, n.db, func(ctx context.Context, db *database) error {
		row, exists := db.bridge(n.bridge)
		if !exists {
			return n.errNoBridge()
		}
		kind := db.stateOf(row).datapathType
		return f(ctx, kind+"@ovs-"+kind)
	})
}

package ovs

import (
	"context"
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// keyRestoreWait in other_config of table Open_vSwitch. A vswitchd that finds it "true" when it starts neither flushes what the
// datapath still has nor takes packets from it, for all its bridges, until the key goes. From then on that vswitchd does not look
// at it any more: set again, it is for the next one (ovs-vswitchd.conf.db(5); bridge_run in vswitchd/bridge.c).
const keyRestoreWait = "flow-restore-wait"

// RestoreWait is what is known of how vswitchd starts.
type RestoreWait struct {
	Armed bool // a vswitchd that starts now waits for its flows; one that has started so may be waiting
	Alone bool // it has no bridge but ours: nobody else would have to wait
	None  bool // it has no bridge at all: one that comes later would have to wait
}

// RestoreWait answers from the copy of the database.
func (n *Native) RestoreWait(ctx context.Context) (RestoreWait, error) {
	var w RestoreWait
	err := within(ctx, n.timeout, n.db, func(_ context.Context, db *database) error {
		root, err := db.root()
		if err != nil {
			return err
		}
		w.Armed = root.OtherConfig[keyRestoreWait] == "true"
		own, exists := db.bridge(n.bridge)
		w.Alone = exists && len(root.Bridges) == 1 && root.Bridges[0] == own.UUID
		w.None = len(root.Bridges) == 0
		return nil
	})
	if err != nil {
		return w, fmt.Errorf("ask whether vswitchd waits for flows when it starts: %w", err)
	}
	return w, nil
}

// SetRestoreWait arms or disarms. When it has disarmed, vswitchd knows, and forwards if it was waiting.
func (n *Native) SetRestoreWait(ctx context.Context, armed bool) error {
	err := within(ctx, n.timeout, n.db, func(ctx context.Context, db *database) error {
		root, err := db.root()
		if err != nil {
			return err
		}
		// Insert leaves a key alone that is there, with whatever value.
		mutations := []ovsdb.Mutation{*ovsdb.NewMutation("other_config", ovsdb.MutateOperationDelete, setOf(keyRestoreWait))}
		if armed {
			mutations = append(mutations, *ovsdb.NewMutation("other_config", ovsdb.MutateOperationInsert, mapOf(map[string]string{keyRestoreWait: "true"})))
		}
		op := ovsdb.Operation{Op: ovsdb.OperationMutate, Table: tableRoot, Where: whereUUID(root.UUID), Mutations: mutations}
		if armed {
			_, err := db.transact(ctx, op)
			return err
		}
		_, cfg, err := db.change(ctx, op)
		if err != nil {
			return err
		}
		return db.confirmed(ctx, cfg)
	})
	if err != nil {
		return fmt.Errorf("set other_config:%s of Open vSwitch to %t: %w", keyRestoreWait, armed, err)
	}
	return nil
}

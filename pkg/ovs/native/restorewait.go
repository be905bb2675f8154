package native

import (
	"context"
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// keyRestoreWait is a key in other_config of table Open_vSwitch. A vswitchd that starts with the value "true" retains the datapath flows and
// processes no packets of the datapath, for all bridges, until the key is deleted. Afterwards it ignores the key, which then applies to
// its next start (ovs-vswitchd.conf.db(5); bridge_run in vswitchd/bridge.c).
const keyRestoreWait = "flow-restore-wait"

// RestoreWait is the state of flow-restore-wait.
type RestoreWait struct {
	Armed bool // a vswitchd that starts now waits for its flows; a running one may be waiting
	Alone bool // the bridge is the only one: no other bridge would wait
	None  bool // there is no bridge: one that is created later would wait
}

// RestoreWait reads the copy of the database.
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
		return w, fmt.Errorf("read other_config:flow-restore-wait of Open vSwitch: %w", err)
	}
	return w, nil
}

// SetRestoreWait sets or deletes flow-restore-wait. A deletion returns after vswitchd has processed it: if vswitchd was waiting, it forwards now.
func (n *Native) SetRestoreWait(ctx context.Context, armed bool) error {
	err := within(ctx, n.timeout, n.db, func(ctx context.Context, db *database) error {
		root, err := db.root()
		if err != nil {
			return err
		}
		// Insert does not replace an existing value.
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

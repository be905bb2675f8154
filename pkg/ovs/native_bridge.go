package ovs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// attempts bounds how often a change is tried again because somebody else was quicker.
const attempts = 5

// EnsureBridge implements Interface.
func (n *Native) EnsureBridge(ctx context.Context, b Bridge) error {
	if b.Name != n.bridge {
		return fmt.Errorf("this backend programs bridge %q, not %q", n.bridge, b.Name)
	}
	if err := b.validate(); err != nil {
		return err
	}
	err := within(ctx, n.timeout, n.db, func(ctx context.Context, db *database) error {
		if err := db.sync(ctx); err != nil { // what somebody changed before the call is to be seen
			return err
		}
		err := errOvertaken
		for range attempts {
			if err = ensureBridge(ctx, db, b); !errors.Is(err, errOvertaken) {
				break
			}
		}
		return err
	})
	if err == nil {
		// Whether the switch can do what is needed is to be known before anything relies on it. If it can't be asked now, the
		// next call says so.
		if _, dialErr := n.flows.get(ctx); IsTooOld(dialErr) {
			return dialErr
		}
	}
	if err != nil && !IsDatapathMismatch(err) && !IsForeignBridge(err) {
		return fmt.Errorf("set up bridge %s: %w", b.Name, err)
	}
	return err
}

func ensureBridge(ctx context.Context, db *database, b Bridge) error {
	row, exists := db.bridge(b.Name)
	is := bridgeState{}
	if exists {
		is = db.stateOf(row)
	}
	if exists && !is.marked {
		if err := b.foreign(db.portsOf(row)); err != nil {
			return err
		}
	}
	if exists && is.datapathType != b.DatapathType {
		return &datapathMismatchError{bridge: b.Name, got: is.datapathType, want: b.DatapathType}
	}
	columns, ops := bridgeChanges(b, is)
	switch {
	case exists && is.marked && len(columns) == 0:
		return nil
	case exists:
		if len(columns) > 0 {
			ops = append(ops, ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: tableBridge, Where: whereUUID(row.UUID), Row: columns})
		}
		if !is.marked {
			ops = append(ops, markBridge(row.UUID))
		}
	default:
		root, err := db.root()
		if err != nil {
			return err
		}
		ops = append(ops, createBridge(b.Name, columns, root.UUID)...)
	}
	results, cfg, err := db.change(ctx, ops...)
	if err != nil {
		return err
	}
	if results[len(ops)-1].Count == 0 {
		return errOvertaken // the row went
	}
	return db.confirmed(ctx, cfg)
}

// stateOf is the bridge as the database has it.
func (db *database) stateOf(r *bridgeRow) bridgeState {
	is := bridgeState{
		exists:       true,
		marked:       r.ExternalIDs[keyOwner] == owner,
		datapathType: r.DatapathType,
		failMode:     orZero(r.FailMode),
		protocols:    strings.Join(slices.Sorted(slices.Values(r.Protocols)), ","),
		tableNames:   make(map[int]string, len(r.FlowTables)),
	}
	if is.datapathType == "" {
		is.datapathType = datapathSystem
	}
	for id, uuid := range r.FlowTables {
		var name string
		if t, ok := rowAt[flowTableRow](db, tableFlowTable, uuid); ok {
			name = orZero(t.Name)
		}
		is.tableNames[id] = name
	}
	return is
}

// bridgeChanges returns the columns of the bridge's row that must change, and the operations that make rows which those
// refer to.
func bridgeChanges(b Bridge, is bridgeState) (ovsdb.Row, []ovsdb.Operation) {
	columns := ovsdb.Row{}
	var ops []ovsdb.Operation
	if is.datapathType != b.DatapathType {
		columns["datapath_type"] = b.DatapathType
	}
	if is.failMode != failModeSecure {
		columns["fail_mode"] = failModeSecure
	}
	if is.protocols != protocolVersions {
		columns["protocols"] = setOf(strings.Split(protocolVersions, ",")...)
	}
	if !maps.Equal(is.tableNames, b.TableNames) {
		// New rows for all; OVSDB collects the old ones, since nothing refers to them any more.
		tables := ovsdb.OvsMap{GoMap: map[any]any{}}
		for _, id := range slices.Sorted(maps.Keys(b.TableNames)) {
			name := fmt.Sprintf("table%d", id)
			ops = append(ops, ovsdb.Operation{Op: ovsdb.OperationInsert, Table: tableFlowTable, UUIDName: name, Row: ovsdb.Row{"name": b.TableNames[id]}})
			tables.GoMap[id] = ovsdb.UUID{GoUUID: name}
		}
		columns["flow_tables"] = tables
	}
	return columns, ops
}

// markBridge leaves what others remember of the bridge. Insert alone would leave a key that is there, with whatever value.
func markBridge(uuid string) ovsdb.Operation {
	return ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: tableBridge, Where: whereUUID(uuid),
		Mutations: []ovsdb.Mutation{
			*ovsdb.NewMutation("external_ids", ovsdb.MutateOperationDelete, setOf(keyOwner)),
			*ovsdb.NewMutation("external_ids", ovsdb.MutateOperationInsert, mapOf(map[string]string{keyOwner: owner})),
		},
	}
}

// createBridge makes the bridge with its local port. The last operation counts the roots that got it.
func createBridge(name string, columns ovsdb.Row, root string) []ovsdb.Operation {
	columns["name"] = name
	columns["external_ids"] = mapOf(map[string]string{keyOwner: owner})
	columns["ports"] = ovsdb.UUID{GoUUID: "port"}
	return []ovsdb.Operation{
		waitAbsent(tableBridge, name),
		{Op: ovsdb.OperationInsert, Table: tableInterface, UUIDName: "interface", Row: ovsdb.Row{"name": name, "type": "internal"}},
		{Op: ovsdb.OperationInsert, Table: tablePort, UUIDName: "port", Row: ovsdb.Row{"name": name, "interfaces": ovsdb.UUID{GoUUID: "interface"}}},
		{Op: ovsdb.OperationInsert, Table: tableBridge, UUIDName: "bridge", Row: columns},
		mutateSet(tableRoot, root, "bridges", ovsdb.MutateOperationInsert, "bridge"),
	}
}

// The parts of transactions.

// waitAbsent lets the transaction fail with errOvertaken when there is a row of that name.
func waitAbsent(table, name string) ovsdb.Operation {
	now := 0
	return ovsdb.Operation{
		Op: ovsdb.OperationWait, Table: table, Timeout: &now,
		Where:   []ovsdb.Condition{ovsdb.NewCondition("name", ovsdb.ConditionEqual, name)},
		Columns: []string{"name"},
		Until:   string(ovsdb.WaitConditionNotEqual),
		Rows:    []ovsdb.Row{{"name": name}},
	}
}

func whereUUID(uuid string) []ovsdb.Condition {
	return []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: uuid})}
}

// mutateSet inserts a reference into a set of the row with that UUID, or deletes it.
func mutateSet(table, row, column string, mutator ovsdb.Mutator, member string) ovsdb.Operation {
	return ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: table, Where: whereUUID(row),
		Mutations: []ovsdb.Mutation{*ovsdb.NewMutation(column, mutator, ovsdb.UUID{GoUUID: member})},
	}
}

func setOf(members ...string) ovsdb.OvsSet {
	s := ovsdb.OvsSet{GoSet: make([]any, len(members))}
	for i, m := range members {
		s.GoSet[i] = m
	}
	return s
}

func mapOf(m map[string]string) ovsdb.OvsMap {
	o := ovsdb.OvsMap{GoMap: make(map[any]any, len(m))}
	for k, v := range m {
		o.GoMap[k] = v
	}
	return o
}

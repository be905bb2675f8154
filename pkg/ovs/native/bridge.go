package native

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// attempts is the maximum number of attempts of a transaction that conflicts with those of other clients.
const attempts = 5

// protocolVersions are the OpenFlow versions of the bridge: 1.0 is the default of ovs-ofctl, administrators use 1.3, this package 1.4, and
// `ovs-ofctl dump-groups` prints ids of buckets in 1.5 only.
const protocolVersions = "OpenFlow10,OpenFlow13,OpenFlow14,OpenFlow15"

// failModeSecure prevents vswitchd from adding a flow with action NORMAL.
const failModeSecure = "secure"

// keyOwner in a bridge's external_ids, with the value ovsdn-node, marks a bridge that the agent (EnsureBridge) created or adopted, and so may
// change and delete. Earlier versions did not write it.
const (
	keyOwner = "ovsdn.io/owner"
	owner    = "ovsdn-node"
)

// bridgeState is the state of a bridge in OVSDB.
type bridgeState struct {
	exists       bool
	marked       bool // external_ids has keyOwner
	datapathType string
	failMode     string
	protocols    string
	tableNames   map[int]string
}

// EnsureBridge implements Interface.
func (n *Native) EnsureBridge(ctx context.Context, b ovs.Bridge) error {
	if b.Name != n.bridge {
		return fmt.Errorf("this backend programs bridge %q, not %q", n.bridge, b.Name)
	}
	if err := b.Validate(); err != nil {
		return err
	}
	err := within(ctx, n.timeout, n.db, func(ctx context.Context, db *database) error {
		if err := db.sync(ctx); err != nil { // the copy must contain changes that were made before the call
			return err
		}
		err := errConflict
		for range attempts {
			if err = ensureBridge(ctx, db, b); !errors.Is(err, errConflict) {
				break
			}
		}
		return err
	})
	if err == nil {
		// Report an unsupported version before anything relies on the switch. If the switch cannot be asked now, the next call reports it.
		if _, dialErr := n.flows.get(ctx); ovs.IsTooOld(dialErr) {
			return dialErr
		}
	}
	if err != nil && !ovs.IsDatapathMismatch(err) && !ovs.IsForeignBridge(err) {
		return fmt.Errorf("set up bridge %s: %w", b.Name, err)
	}
	return err
}

func ensureBridge(ctx context.Context, db *database, b ovs.Bridge) error {
	row, exists := db.bridge(b.Name)
	is := bridgeState{}
	if exists {
		is = db.stateOf(row)
	}
	if exists && !is.marked {
		if err := b.CheckForeign(db.portsOf(row)); err != nil {
			return err
		}
	}
	if exists && is.datapathType != b.DatapathType {
		return ovs.NewDatapathMismatch(b.Name, is.datapathType, b.DatapathType)
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
		return errConflict // the row was deleted
	}
	return db.confirmed(ctx, cfg)
}

// stateOf returns the state of the bridge in the copy.
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
		is.datapathType = ovs.DatapathSystem
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

// bridgeChanges returns the columns of the bridge's row to change, and the operations that insert the rows to which they refer.
func bridgeChanges(b ovs.Bridge, is bridgeState) (ovsdb.Row, []ovsdb.Operation) {
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
		// All rows are new; OVSDB deletes the old ones, because no row refers to them.
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

// markBridge sets keyOwner and retains other keys. An insertion alone would not replace an existing value.
func markBridge(uuid string) ovsdb.Operation {
	return ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: tableBridge, Where: whereUUID(uuid),
		Mutations: []ovsdb.Mutation{
			*ovsdb.NewMutation("external_ids", ovsdb.MutateOperationDelete, setOf(keyOwner)),
			*ovsdb.NewMutation("external_ids", ovsdb.MutateOperationInsert, mapOf(map[string]string{keyOwner: owner})),
		},
	}
}

// createBridge creates the bridge with its local port. The count of the last operation is that of the root rows with the bridge.
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

// waitAbsent makes the transaction fail with errConflict if a row of that name exists.
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

// mutateSet inserts a reference into a set of the row with that UUID, or deletes it from the set.
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

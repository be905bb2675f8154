package native

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// exporterName is the name of a new row of table IPFIX within a transaction.
const exporterName = "exporter"

// EnsureExporter makes want the exporter of the bridge's samples, or removes it if want is nil. It reports whether it changed the database; otherwise it wrote
// nothing, and read only the copy. It identifies its rows by their external IDs, and changes no others.
func (n *Native) EnsureExporter(ctx context.Context, want *ovs.Exporter) (changed bool, err error) {
	if want != nil {
		if err := want.Validate(); err != nil {
			return false, err
		}
	}
	err = within(ctx, n.timeout, n.db, func(ctx context.Context, db *database) error {
		ops, missing := db.exporterChanges(n.bridge, want)
		if len(ops) > 0 {
			_, cfg, err := db.change(ctx, ops...)
			if err != nil {
				return err
			}
			changed = true
			if err := db.confirmed(ctx, cfg); err != nil {
				return err
			}
		}
		if missing {
			return n.errNoBridge()
		}
		return nil
	})
	if err != nil && !ovs.IsNoBridge(err) {
		return changed, fmt.Errorf("set up the IPFIX exporter of bridge %s: %w", n.bridge, err)
	}
	return changed, err
}

// exporterChanges returns the operations after which want is the only exporter that the agent has added. missing reports that the bridge does not exist.
func (db *database) exporterChanges(name string, want *ovs.Exporter) (ops []ovsdb.Operation, missing bool) {
	bridge, exists := db.liveBridge(name)
	missing = want != nil && !exists
	var retained *samplingRow
	for _, row := range db.cache.Table(tableSampling).RowsShallow() {
		r, ok := row.(*samplingRow)
		if !ok || r.ExternalIDs[keyOwner] != owner {
			continue
		}
		// A row of another bridge would preserve that bridge's row, which it refers to.
		if want == nil || missing || r.Bridge != bridge.UUID || retained != nil {
			ops = append(ops, ovsdb.Operation{Op: ovsdb.OperationDelete, Table: tableSampling, Where: whereUUID(r.UUID)})
			continue
		}
		retained = r
	}
	if want == nil || missing {
		return ops, missing
	}
	if retained == nil {
		return append(ops, insertExporter(want), ovsdb.Operation{Op: ovsdb.OperationInsert, Table: tableSampling, Row: ovsdb.Row{
			"id": int(want.CollectorSet), "bridge": ovsdb.UUID{GoUUID: bridge.UUID}, "ipfix": ovsdb.UUID{GoUUID: exporterName}, "external_ids": ownerIDs(),
		}}), false
	}
	columns := ovsdb.Row{}
	if retained.ID != int(want.CollectorSet) {
		columns["id"] = int(want.CollectorSet)
	}
	if is, ok := rowAt[exporterRow](db, tableExporter, orZero(retained.Exporter)); !ok || !is.equals(want) {
		ops = append(ops, insertExporter(want)) // OVSDB deletes the previous one, to which no row refers
		columns["ipfix"] = ovsdb.UUID{GoUUID: exporterName}
	}
	if len(columns) > 0 {
		ops = append(ops, ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: tableSampling, Where: whereUUID(retained.UUID), Row: columns})
	}
	return ops, false
}

// liveBridge returns the bridge if vswitchd has it: a row to which another one than the root row refers may outlive its bridge.
func (db *database) liveBridge(name string) (*bridgeRow, bool) {
	bridge, exists := db.bridge(name)
	root, err := db.root()
	if err != nil || !exists || !slices.Contains(root.Bridges, bridge.UUID) {
		return &bridgeRow{}, false
	}
	return bridge, true
}

func ownerIDs() ovsdb.OvsMap { return mapOf(map[string]string{keyOwner: owner}) }

func insertExporter(e *ovs.Exporter) ovsdb.Operation {
	return ovsdb.Operation{Op: ovsdb.OperationInsert, Table: tableExporter, UUIDName: exporterName, Row: ovsdb.Row{
		"targets":              setOf(targets(e)...),
		"cache_active_timeout": int(e.ActiveTimeout / time.Second),
		"cache_max_flows":      int(e.MaxFlows),
		"external_ids":         ownerIDs(),
	}}
}

// targets returns the collectors as OVSDB has them.
func targets(e *ovs.Exporter) []string {
	all := make([]string, len(e.Collectors))
	for i, c := range e.Collectors {
		all[i] = c.String()
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (r *exporterRow) equals(e *ovs.Exporter) bool {
	return slices.Equal(slices.Sorted(slices.Values(r.Targets)), targets(e)) && len(r.OtherConfig) == 0 &&
		r.ActiveTimeout != nil && *r.ActiveTimeout == int(e.ActiveTimeout/time.Second) && r.MaxFlows != nil && *r.MaxFlows == int(e.MaxFlows) &&
		maps.Equal(r.ExternalIDs, map[string]string{keyOwner: owner})
}

// deleteSampling returns the operation that deletes all rows by which the bridge's samples are exported, also those of other programs: each refers to the
// bridge's row, which would remain.
func deleteSampling(bridge string) ovsdb.Operation {
	return ovsdb.Operation{Op: ovsdb.OperationDelete, Table: tableSampling, Where: []ovsdb.Condition{
		ovsdb.NewCondition("bridge", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: bridge}),
	}}
}

package native

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// EnsureBridge implements Interface.
func (e *Exec) EnsureBridge(ctx context.Context, b ovs.Bridge) error {
	if b.Name != e.bridge {
		return fmt.Errorf("this backend programs bridge %q, not %q", e.bridge, b.Name)
	}
	if err := b.Validate(); err != nil {
		return err
	}
	is, err := e.readBridge(ctx)
	if err != nil {
		return fmt.Errorf("read bridge %s: %w", b.Name, err)
	}
	if is.exists && !is.marked {
		ports, err := e.ListPorts(ctx)
		if err != nil {
			return err
		}
		if err := b.CheckForeign(ports); err != nil {
			return err
		}
	}
	if is.exists && is.datapathType != b.DatapathType {
		return ovs.NewDatapathMismatch(b.Name, is.datapathType, b.DatapathType)
	}
	args, err := bridgeCommands(b, is)
	if err != nil || len(args) == 0 {
		return err
	}
	if _, err := e.vsctl(ctx, args...); err != nil {
		return fmt.Errorf("set up bridge %s: %w", b.Name, err)
	}
	return nil
}

func (e *Exec) readBridge(ctx context.Context) (bridgeState, error) {
	var is bridgeState
	out, err := e.vsctl(ctx,
		"--", "--columns=datapath_type,fail_mode,protocols,flow_tables,external_ids", "find", "Bridge", "name="+e.bridge,
		"--", "--columns=_uuid,name", "list", "Flow_Table")
	if err != nil {
		return is, err
	}
	tables, err := decodeTables(out, 2)
	if err != nil {
		return is, err
	}
	bridges, flowTables := tables[0], tables[1]
	if len(bridges) == 0 {
		return is, nil
	}
	names := make(map[string]string, len(flowTables)) // by uuid
	for _, r := range flowTables {
		id, err := r.text("_uuid")
		if err != nil {
			return is, err
		}
		if names[id], err = r.text("name"); err != nil {
			return is, err
		}
	}
	return decodeBridge(bridges[0], names)
}

func decodeBridge(r row, names map[string]string) (bridgeState, error) {
	is := bridgeState{exists: true}
	var err error
	if is.datapathType, err = r.text("datapath_type"); err != nil {
		return is, err
	}
	if is.datapathType == "" {
		is.datapathType = ovs.DatapathSystem
	}
	if is.failMode, err = r.text("fail_mode"); err != nil {
		return is, err
	}
	protocols, err := r.texts("protocols")
	if err != nil {
		return is, err
	}
	slices.Sort(protocols)
	is.protocols = strings.Join(protocols, ",")
	flowTables, err := r.pairs("flow_tables")
	if err != nil {
		return is, err
	}
	ids, err := r.pairs("external_ids")
	if err != nil {
		return is, err
	}
	is.marked = ids[keyOwner] == owner
	is.tableNames = make(map[int]string, len(flowTables))
	for id, uuid := range flowTables {
		n, err := strconv.Atoi(id)
		if err != nil {
			return is, fmt.Errorf("OVSDB column flow_tables: %w", err)
		}
		is.tableNames[n] = names[uuid]
	}
	return is, nil
}

// bridgeCommands returns the commands for ovs-vsctl that make the bridge as wanted. One transaction creates the bridge and sets the fail mode,
// so that the bridge never forwards by itself.
func bridgeCommands(b ovs.Bridge, is bridgeState) ([]string, error) {
	var create, set, rows []string
	if !is.exists {
		create = []string{"--", "--may-exist", "add-br", b.Name}
	}
	if !is.marked {
		set = append(set, "external_ids:"+keyOwner+"="+owner)
	}
	if is.datapathType != b.DatapathType {
		set = append(set, "datapath_type="+b.DatapathType)
	}
	if is.failMode != failModeSecure {
		set = append(set, "fail_mode="+failModeSecure)
	}
	if is.protocols != protocolVersions {
		set = append(set, "protocols="+protocolVersions)
	}
	if !maps.Equal(is.tableNames, b.TableNames) {
		// All rows are new; OVSDB deletes the old ones, because no row refers to them.
		var members []string
		for _, id := range slices.Sorted(maps.Keys(b.TableNames)) {
			name, err := vsctlString(b.TableNames[id])
			if err != nil {
				return nil, err
			}
			rows = append(rows, "--", fmt.Sprintf("--id=@table%d", id), "create", "Flow_Table", "name="+name)
			members = append(members, fmt.Sprintf("%d=@table%d", id, id))
		}
		set = append(set, "flow_tables={"+strings.Join(members, ",")+"}")
	}
	if len(set) == 0 {
		return nil, nil
	}
	return slices.Concat(create, rows, []string{"--", "set", "Bridge", b.Name}, set), nil
}

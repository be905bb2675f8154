package ovs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// ListPorts implements Interface. It answers from the copy of the database.
func (n *Native) ListPorts(ctx context.Context) ([]Port, error) {
	var ports []Port
	err := within(ctx, n.timeout, n.db, func(_ context.Context, db *database) error {
		bridge, ok := db.bridge(n.bridge)
		if !ok {
			return n.errNoBridge()
		}
		ports = db.portsOf(bridge)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the ports of bridge %s: %w", n.bridge, err)
	}
	return ports, nil
}

// portsOf joins the three tables. A port that goes meanwhile may be missing from one of them. A bond, which nobody here
// makes, shows its first interface.
func (db *database) portsOf(bridge *bridgeRow) []Port {
	rows := db.cache.Table(tablePort).RowsShallow()
	interfaces := db.cache.Table(tableInterface).RowsShallow()
	ports := make([]Port, 0, len(bridge.Ports))
	for _, uuid := range bridge.Ports {
		row, ok := rows[uuid].(*portRow)
		if !ok || row.Name == bridge.Name || len(row.Interfaces) == 0 {
			continue
		}
		if iface, ok := interfaces[row.Interfaces[0]].(*interfaceRow); ok {
			p := iface.port()
			p.Name = row.Name
			ports = append(ports, p)
		}
	}
	slices.SortFunc(ports, func(a, b Port) int { return cmp.Compare(a.Name, b.Name) })
	return ports
}

// AddPort implements Interface.
func (n *Native) AddPort(ctx context.Context, p Port) (Port, error) {
	if err := p.validate(); err != nil {
		return Port{}, err
	}
	var got Port
	err := within(ctx, n.timeout, n.db, func(ctx context.Context, db *database) error {
		err := errOvertaken
		for range attempts {
			if got, err = n.addPort(ctx, db, p); !errors.Is(err, errOvertaken) {
				break
			}
		}
		return err
	})
	var refused *PortError
	switch {
	case err == nil:
		return got, nil
	case errors.As(err, &refused):
		return Port{}, err // it says all
	}
	return Port{}, fmt.Errorf("add port %s to bridge %s: %w", p.Name, n.bridge, err)
}

func (n *Native) addPort(ctx context.Context, db *database, want Port) (Port, error) {
	is, exists := db.iface(want.Name)
	if !exists {
		return n.createPort(ctx, db, want)
	}
	if mustRemake(is.port(), want) {
		if err := n.removePort(ctx, db, want.Name); err != nil {
			return Port{}, err
		}
		return n.createPort(ctx, db, want)
	}
	return n.correctPort(ctx, db, is, want)
}

// createPort adds a port that does not exist, in one transaction. One that vswitchd does not confirm is taken back.
func (n *Native) createPort(ctx context.Context, db *database, want Port) (Port, error) {
	if err := db.departed(ctx, want.Name); err != nil {
		return Port{}, err
	}
	bridge, ok := db.bridge(n.bridge)
	if !ok {
		return Port{}, n.errNoBridge()
	}
	row := interfaceColumnsOf(want)
	row["name"] = want.Name
	results, err := db.transact(ctx,
		waitAbsent(tableInterface, want.Name),
		ovsdb.Operation{Op: ovsdb.OperationInsert, Table: tableInterface, UUIDName: "interface", Row: row},
		ovsdb.Operation{Op: ovsdb.OperationInsert, Table: tablePort, UUIDName: "port", Row: ovsdb.Row{"name": want.Name, "interfaces": ovsdb.UUID{GoUUID: "interface"}}},
		mutateSet(tableBridge, bridge.UUID, "ports", ovsdb.MutateOperationInsert, "port"))
	const insertedInterface, changedBridge = 1, 3
	var got Port
	switch {
	case err == nil && results[changedBridge].Count == 0:
		return Port{}, errOvertaken // the bridge went
	case err == nil:
		got, err = n.confirmPort(ctx, db, results[insertedInterface].UUID.GoUUID, want)
	case !IsUnavailable(err):
		return Port{}, err // the database refused it
	}
	if err != nil && !errors.Is(err, errOvertaken) {
		return Port{}, n.takeBack(ctx, want.Name, err)
	}
	return got, err
}

// confirmPort waits until vswitchd has given the interface a number, or a reason why not.
func (n *Native) confirmPort(ctx context.Context, db *database, uuid string, want Port) (Port, error) {
	var row *interfaceRow
	var exists bool
	err := db.await(ctx, uuid, func() bool {
		row, exists = rowAt[interfaceRow](db, tableInterface, uuid)
		return !exists || row.OFPort != nil || row.Error != nil
	})
	if err != nil {
		return Port{}, fmt.Errorf("wait for vswitchd: %w", err)
	}
	if !exists {
		return Port{}, errOvertaken // somebody removed it
	}
	if refused := refusal(want, row.port()); refused != nil {
		return Port{}, refused
	}
	return row.port(), nil
}

// takeBack removes a port that was not confirmed, or may have been made, and adds to the error why it could not. The caller's
// time may be over, so it has its own; the connection may be, so it looks for another.
func (n *Native) takeBack(ctx context.Context, name string, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.undo)
	defer cancel()
	db, undoErr := n.db.get(ctx)
	if undoErr == nil && IsUnavailable(err) {
		undoErr = db.sync(ctx) // the server may be behind
	}
	if undoErr == nil {
		undoErr = n.removePort(ctx, db, name)
	}
	if undoErr != nil {
		return errors.Join(err, fmt.Errorf("take back port %s: %w", name, undoErr))
	}
	return err
}

// correctPort makes an existing port as wanted.
func (n *Native) correctPort(ctx context.Context, db *database, is *interfaceRow, want Port) (Port, error) {
	if err := n.checkOwn(ctx, db, want.Name); err != nil {
		return Port{}, err
	}
	if is.fits(want) {
		return n.confirmPort(ctx, db, is.UUID, want)
	}
	results, cfg, err := db.change(ctx,
		ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: tableInterface, Where: whereUUID(is.UUID), Row: interfaceColumnsOf(want)})
	if err != nil {
		return Port{}, err
	}
	if results[0].Count == 0 {
		return Port{}, errOvertaken // it went
	}
	// The number may be to change, or not: only vswitchd's confirmation tells.
	if err := db.confirmed(ctx, cfg); err != nil {
		return Port{}, fmt.Errorf("wait for vswitchd: %w", err)
	}
	got, err := n.confirmPort(ctx, db, is.UUID, want)
	if IsPortError(err) {
		return Port{}, n.takeBack(ctx, want.Name, err)
	}
	return got, err
}

// fits reports whether nothing is to write.
func (r *interfaceRow) fits(want Port) bool {
	return r.Type == want.Type && maps.Equal(r.Options, want.Options) && maps.Equal(r.ExternalIDs, want.ExternalIDs) &&
		(want.OFPort == 0 || orZero(r.OFPortRequest) == want.OFPort) &&
		(want.MTURequest == 0 || orZero(r.MTURequest) == want.MTURequest) &&
		(want.MAC == "" || orZero(r.MAC) == canonicalMAC(want.MAC))
}

// interfaceColumnsOf returns the columns that the port sets. Maps are replaced, so that no old key stays.
func interfaceColumnsOf(p Port) ovsdb.Row {
	row := ovsdb.Row{"type": p.Type, "options": mapOf(p.Options), "external_ids": mapOf(p.ExternalIDs)}
	if p.OFPort != 0 {
		row["ofport_request"] = p.OFPort
	}
	if p.MTURequest != 0 {
		row["mtu_request"] = p.MTURequest
	}
	if p.MAC != "" {
		row["mac"] = canonicalMAC(p.MAC)
	}
	return row
}

// DeletePort implements Interface. It does not wait for vswitchd; AddPort does before it uses the name again.
func (n *Native) DeletePort(ctx context.Context, name string) error {
	if name == "" || name == n.bridge {
		return fmt.Errorf("delete port %q of bridge %s: that is not a port of ours", name, n.bridge)
	}
	err := within(ctx, n.timeout, n.db, func(ctx context.Context, db *database) error {
		return n.removePort(ctx, db, name)
	})
	if err != nil {
		return fmt.Errorf("delete port %s of bridge %s: %w", name, n.bridge, err)
	}
	return nil
}

// removePort takes the port out of the bridge; OVSDB collects its rows then.
func (n *Native) removePort(ctx context.Context, db *database, name string) error {
	port, ok := db.port(name)
	if !ok {
		return nil
	}
	if err := n.checkOwn(ctx, db, name); err != nil {
		return err
	}
	bridge, ok := db.bridge(n.bridge)
	if !ok {
		return nil
	}
	_, cfg, err := db.change(ctx, mutateSet(tableBridge, bridge.UUID, "ports", ovsdb.MutateOperationDelete, port.UUID))
	if err != nil {
		return err
	}
	return db.leave(name, cfg)
}

// checkOwn makes sure that a port that exists is one of our bridge. The tables of the copy change one after the other: what looks like
// somebody else's is looked at again when the copy shows all of the last change.
func (n *Native) checkOwn(ctx context.Context, db *database, name string) error {
	if n.owns(db, name) {
		return nil
	}
	if err := db.sync(ctx); err != nil {
		return err
	}
	if !n.owns(db, name) {
		return fmt.Errorf("the port belongs to another bridge than %s", n.bridge)
	}
	return nil
}

// owns says whether the port is one of our bridge, or is gone.
func (n *Native) owns(db *database, name string) bool {
	port, ok := db.port(name)
	if !ok {
		return true
	}
	bridge, ok := db.bridge(n.bridge)
	return ok && slices.Contains(bridge.Ports, port.UUID)
}

// leave takes note that vswitchd is still to let go of the port.
func (db *database) leave(name string, cfg int) error {
	root, err := db.root()
	if err != nil {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	maps.DeleteFunc(db.leaving, func(_ string, c int) bool { return c <= root.CurCfg })
	db.leaving[name] = cfg
	return nil
}

// departed waits until vswitchd has let go of an earlier port of that name. It would take a port that goes and comes in one
// look at the database for unchanged, and keep the device that it has open.
func (db *database) departed(ctx context.Context, name string) error {
	db.mu.Lock()
	cfg, ok := db.leaving[name]
	db.mu.Unlock()
	if !ok {
		return nil
	}
	return db.confirmed(ctx, cfg)
}

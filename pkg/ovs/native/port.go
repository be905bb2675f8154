package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// ListPorts implements Interface. It reads the copy of the database.
func (n *Native) ListPorts(ctx context.Context) ([]ovs.Port, error) {
	var ports []ovs.Port
	err := within(ctx, n.timeout, n.db, func(_ context.Context, db *database) error {
		bridge, ok := db.bridge(n.bridge)
		if !ok {
			return n.errNoBridge()
		}
		ports = db.portsOf(bridge)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list ports of bridge %s: %w", n.bridge, err)
	}
	return ports, nil
}

// portsOf joins the three tables. A port that is deleted during the call may be missing in one of them. Of a bond, which AddPort never
// creates, it returns the first interface.
func (db *database) portsOf(bridge *bridgeRow) []ovs.Port {
	rows := db.cache.Table(tablePort).RowsShallow()
	interfaces := db.cache.Table(tableInterface).RowsShallow()
	ports := make([]ovs.Port, 0, len(bridge.Ports))
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
	slices.SortFunc(ports, func(a, b ovs.Port) int { return cmp.Compare(a.Name, b.Name) })
	return ports
}

// AddPort implements Interface.
func (n *Native) AddPort(ctx context.Context, p ovs.Port) (ovs.Port, error) {
	if err := p.Validate(); err != nil {
		return ovs.Port{}, err
	}
	var got ovs.Port
	err := within(ctx, n.timeout, n.db, func(ctx context.Context, db *database) error {
		err := errConflict
		for range attempts {
			if got, err = n.addPort(ctx, db, p); !errors.Is(err, errConflict) {
				break
			}
		}
		return err
	})
	var refused *ovs.PortError
	switch {
	case err == nil:
		return got, nil
	case errors.As(err, &refused):
		return ovs.Port{}, err // complete already
	}
	return ovs.Port{}, fmt.Errorf("add port %s to bridge %s: %w", p.Name, n.bridge, err)
}

func (n *Native) addPort(ctx context.Context, db *database, want ovs.Port) (ovs.Port, error) {
	is, exists := db.iface(want.Name)
	if !exists {
		return n.createPort(ctx, db, want)
	}
	if ovs.MustRecreate(is.port(), want) {
		if err := n.removePort(ctx, db, want.Name); err != nil {
			return ovs.Port{}, err
		}
		return n.createPort(ctx, db, want)
	}
	return n.correctPort(ctx, db, is, want)
}

// createPort adds a port that does not exist, in one transaction. It removes the port if vswitchd does not confirm it.
func (n *Native) createPort(ctx context.Context, db *database, want ovs.Port) (ovs.Port, error) {
	if err := db.awaitRemoval(ctx, want.Name); err != nil {
		return ovs.Port{}, err
	}
	bridge, ok := db.bridge(n.bridge)
	if !ok {
		return ovs.Port{}, n.errNoBridge()
	}
	row := interfaceColumnsOf(want)
	row["name"] = want.Name
	results, err := db.transact(ctx,
		waitAbsent(tableInterface, want.Name),
		ovsdb.Operation{Op: ovsdb.OperationInsert, Table: tableInterface, UUIDName: "interface", Row: row},
		ovsdb.Operation{Op: ovsdb.OperationInsert, Table: tablePort, UUIDName: "port", Row: ovsdb.Row{"name": want.Name, "interfaces": ovsdb.UUID{GoUUID: "interface"}}},
		mutateSet(tableBridge, bridge.UUID, "ports", ovsdb.MutateOperationInsert, "port"))
	const insertedInterface, changedBridge = 1, 3
	var got ovs.Port
	switch {
	case err == nil && results[changedBridge].Count == 0:
		return ovs.Port{}, errConflict // the bridge was deleted
	case err == nil:
		got, err = n.confirmPort(ctx, db, results[insertedInterface].UUID.GoUUID, want)
	case !ovs.IsUnavailable(err):
		return ovs.Port{}, err // the database rejected it
	}
	if err != nil && !errors.Is(err, errConflict) {
		return ovs.Port{}, n.removeUnconfirmed(ctx, want.Name, err)
	}
	return got, err
}

// confirmPort waits until vswitchd has assigned a number to the interface, or reported an error.
func (n *Native) confirmPort(ctx context.Context, db *database, uuid string, want ovs.Port) (ovs.Port, error) {
	var row *interfaceRow
	var exists bool
	err := db.await(ctx, uuid, func() bool {
		row, exists = rowAt[interfaceRow](db, tableInterface, uuid)
		return !exists || row.OFPort != nil || row.Error != nil
	})
	if err != nil {
		return ovs.Port{}, fmt.Errorf("wait for vswitchd: %w", err)
	}
	if !exists {
		return ovs.Port{}, errConflict // another client removed it
	}
	if refused := refusal(want, row.port()); refused != nil {
		return ovs.Port{}, refused
	}
	return row.port(), nil
}

// removeUnconfirmed removes a port that vswitchd did not confirm, and joins err with the failure to do so. It has a time limit of its own, because
// that of the caller may have passed, and connects again if necessary.
func (n *Native) removeUnconfirmed(ctx context.Context, name string, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.undo)
	defer cancel()
	db, undoErr := n.db.get(ctx)
	if undoErr == nil && ovs.IsUnavailable(err) {
		undoErr = db.sync(ctx) // the server may not have processed the addition yet
	}
	if undoErr == nil {
		undoErr = n.removePort(ctx, db, name)
	}
	if undoErr != nil {
		return errors.Join(err, fmt.Errorf("remove unconfirmed port %s: %w", name, undoErr))
	}
	return err
}

// correctPort changes an existing port as wanted.
func (n *Native) correctPort(ctx context.Context, db *database, is *interfaceRow, want ovs.Port) (ovs.Port, error) {
	if err := n.checkOwn(ctx, db, want.Name); err != nil {
		return ovs.Port{}, err
	}
	if is.fits(want) {
		return n.confirmPort(ctx, db, is.UUID, want)
	}
	results, cfg, err := db.change(ctx,
		ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: tableInterface, Where: whereUUID(is.UUID), Row: interfaceColumnsOf(want)})
	if err != nil {
		return ovs.Port{}, err
	}
	if results[0].Count == 0 {
		return ovs.Port{}, errConflict // the port was deleted
	}
	// Only the confirmation by vswitchd shows whether the number changes.
	if err := db.confirmed(ctx, cfg); err != nil {
		return ovs.Port{}, fmt.Errorf("wait for vswitchd: %w", err)
	}
	got, err := n.confirmPort(ctx, db, is.UUID, want)
	if ovs.IsPortError(err) {
		return ovs.Port{}, n.removeUnconfirmed(ctx, want.Name, err)
	}
	return got, err
}

// fits reports whether the row needs no change.
func (r *interfaceRow) fits(want ovs.Port) bool {
	return r.Type == want.Type && maps.Equal(r.Options, want.Options) && maps.Equal(r.ExternalIDs, want.ExternalIDs) &&
		(want.OFPort == 0 || orZero(r.OFPortRequest) == want.OFPort) &&
		(want.MTURequest == 0 || orZero(r.MTURequest) == want.MTURequest) &&
		(want.MAC == "" || orZero(r.MAC) == ovs.CanonicalMAC(want.MAC))
}

// interfaceColumnsOf returns the columns that a port sets. Maps are replaced as a whole.
func interfaceColumnsOf(p ovs.Port) ovsdb.Row {
	row := ovsdb.Row{"type": p.Type, "options": mapOf(p.Options), "external_ids": mapOf(p.ExternalIDs)}
	if p.OFPort != 0 {
		row["ofport_request"] = p.OFPort
	}
	if p.MTURequest != 0 {
		row["mtu_request"] = p.MTURequest
	}
	if p.MAC != "" {
		row["mac"] = ovs.CanonicalMAC(p.MAC)
	}
	return row
}

// DeletePort implements Interface. It does not wait for vswitchd; AddPort waits before it reuses the name.
func (n *Native) DeletePort(ctx context.Context, name string) error {
	if name == "" || name == n.bridge {
		return fmt.Errorf("delete port %q of bridge %s: not the name of a port that can be deleted", name, n.bridge)
	}
	err := within(ctx, n.timeout, n.db, func(ctx context.Context, db *database) error {
		return n.removePort(ctx, db, name)
	})
	if err != nil {
		return fmt.Errorf("delete port %s of bridge %s: %w", name, n.bridge, err)
	}
	return nil
}

// removePort deletes the port from the bridge, with which OVSDB deletes its rows.
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
	return db.recordRemoval(name, cfg)
}

// checkOwn returns an error if the port exists on another bridge. The tables of the copy change one after another: a mismatch is checked
// again after the copy is complete.
func (n *Native) checkOwn(ctx context.Context, db *database, name string) error {
	if n.owns(db, name) {
		return nil
	}
	if err := db.sync(ctx); err != nil {
		return err
	}
	if !n.owns(db, name) {
		return fmt.Errorf("the port belongs to a bridge other than %s", n.bridge)
	}
	return nil
}

// owns reports whether the port belongs to the bridge or does not exist.
func (n *Native) owns(db *database, name string) bool {
	port, ok := db.port(name)
	if !ok {
		return true
	}
	bridge, ok := db.bridge(n.bridge)
	return ok && slices.Contains(bridge.Ports, port.UUID)
}

// recordRemoval records that vswitchd has not closed the port yet.
func (db *database) recordRemoval(name string, cfg int) error {
	root, err := db.root()
	if err != nil {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	maps.DeleteFunc(db.removing, func(_ string, c int) bool { return c <= root.CurCfg })
	db.removing[name] = cfg
	return nil
}

// awaitRemoval waits until vswitchd has closed an earlier port of that name. Otherwise vswitchd might see deletion and addition as no change,
// and retain the open device.
func (db *database) awaitRemoval(ctx context.Context, name string) error {
	db.mu.Lock()
	cfg, ok := db.removing[name]
	db.mu.Unlock()
	if !ok {
		return nil
	}
	return db.confirmed(ctx, cfg)
}

// refusal returns the reason for which vswitchd failed to set the wanted port up, or nil. got is the port that it set up instead.
func refusal(want, got ovs.Port) *ovs.PortError {
	switch {
	case got.OFPort < 0 || got.Error != "":
		return &ovs.PortError{Port: want.Name, Reason: got.Error}
	case got.OFPort == 0:
		return &ovs.PortError{Port: want.Name, Reason: "vswitchd assigned no OpenFlow port number"}
	case want.OFPort != 0 && got.OFPort != want.OFPort:
		return &ovs.PortError{Port: want.Name, Reason: fmt.Sprintf("it got OpenFlow port %d, because %d is in use", got.OFPort, want.OFPort)}
	}
	return nil
}

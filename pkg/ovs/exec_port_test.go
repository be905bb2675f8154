package ovs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// ListPorts implements Interface.
func (e *Exec) ListPorts(ctx context.Context) ([]Port, error) {
	ports, err := e.readPorts(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the ports of bridge %s: %w", e.bridge, err)
	}
	return ports, nil
}

const interfaceColumns = "--columns=_uuid,name,type,options,ofport,mtu_request,mac,external_ids,error"

func (e *Exec) readPorts(ctx context.Context) ([]Port, error) {
	out, err := e.vsctl(ctx,
		"--", "--columns=ports", "find", "Bridge", "name="+e.bridge,
		"--", "--columns=_uuid,name,interfaces", "list", "Port",
		"--", interfaceColumns, "list", "Interface")
	if err != nil {
		return nil, err
	}
	tables, err := decodeTables(out, 3)
	if err != nil {
		return nil, err
	}
	if len(tables[0]) == 0 {
		return nil, fmt.Errorf("the bridge does not exist; EnsureBridge makes it")
	}
	return decodePorts(tables[0][0], tables[1], tables[2], e.bridge)
}

// decodePorts joins the three tables. A bond, which nobody here makes, shows its first interface.
func decodePorts(bridge row, portRows, interfaceRows []row, local string) ([]Port, error) {
	members, err := bridge.texts("ports")
	if err != nil {
		return nil, err
	}
	interfaces := make(map[string]row, len(interfaceRows))
	for _, r := range interfaceRows {
		id, err := r.text("_uuid")
		if err != nil {
			return nil, err
		}
		interfaces[id] = r
	}
	mine := make(map[string]bool, len(members))
	for _, id := range members {
		mine[id] = true
	}
	var ports []Port
	for _, r := range portRows {
		id, err := r.text("_uuid")
		if err != nil {
			return nil, err
		}
		name, err := r.text("name")
		if err != nil {
			return nil, err
		}
		if !mine[id] || name == local {
			continue
		}
		ids, err := r.texts("interfaces")
		if err != nil {
			return nil, err
		}
		if len(ids) == 0 || interfaces[ids[0]] == nil {
			return nil, fmt.Errorf("port %s has no interface", name)
		}
		p, err := decodeInterface(interfaces[ids[0]])
		if err != nil {
			return nil, fmt.Errorf("port %s: %w", name, err)
		}
		p.Name = name
		ports = append(ports, p)
	}
	slices.SortFunc(ports, func(a, b Port) int { return cmp.Compare(a.Name, b.Name) })
	return ports, nil
}

func decodeInterface(r row) (p Port, err error) {
	for _, c := range []struct {
		column string
		to     *string
	}{{"name", &p.Name}, {"type", &p.Type}, {"mac", &p.MAC}, {"error", &p.Error}} {
		if *c.to, err = r.text(c.column); err != nil {
			return p, err
		}
	}
	for _, c := range []struct {
		column string
		to     *int
	}{{"ofport", &p.OFPort}, {"mtu_request", &p.MTURequest}} {
		if *c.to, err = r.number(c.column); err != nil {
			return p, err
		}
	}
	if p.Options, err = r.pairs("options"); err != nil {
		return p, err
	}
	p.ExternalIDs, err = r.pairs("external_ids")
	return p, err
}

// AddPort implements Interface.
func (e *Exec) AddPort(ctx context.Context, p Port) (Port, error) {
	set, err := interfaceCommand(p)
	if err != nil {
		return Port{}, err
	}
	port, err := e.addPort(ctx, p, set)
	if err != nil {
		var refused *PortError
		if errors.As(err, &refused) {
			return Port{}, err // it says all
		}
		return Port{}, fmt.Errorf("add port %s to bridge %s: %w", p.Name, e.bridge, err)
	}
	return port, nil
}

func (e *Exec) addPort(ctx context.Context, p Port, set []string) (Port, error) {
	is, exists, err := e.readInterface(ctx, p.Name)
	if err != nil {
		return Port{}, err
	}
	add := slices.Concat([]string{"--", "--may-exist", "add-port", e.bridge, p.Name}, set)
	switch {
	case !exists:
		err = e.createPort(ctx, p.Name, add)
	case mustRemake(is, p):
		// In two transactions: vswitchd would take one for no change, and keep the device that it has open.
		if err = e.DeletePort(ctx, p.Name); err == nil {
			err = e.createPort(ctx, p.Name, add)
		}
	default:
		_, err = e.vsctl(ctx, add...)
	}
	if err != nil {
		return Port{}, err
	}
	return e.confirmPort(ctx, p)
}

// createPort adds a port that does not exist. One that vswitchd does not confirm in time is taken out of OVSDB again, so that
// it does not appear later.
func (e *Exec) createPort(ctx context.Context, name string, add []string) error {
	_, err := e.vsctl(ctx, add...)
	if !IsUnavailable(err) && ctx.Err() == nil {
		return err
	}
	undo := NewExec(e.bridge, e.runDir) // with its own time
	_, undoErr := undo.vsctl(context.WithoutCancel(ctx), "--no-wait", "--", "--if-exists", "del-port", e.bridge, name)
	if undoErr != nil {
		undoErr = fmt.Errorf("take back port %s: %w", name, undoErr)
	}
	return errors.Join(err, undoErr)
}

// readInterface returns the interface of that name, on whatever bridge it is.
func (e *Exec) readInterface(ctx context.Context, name string) (p Port, exists bool, err error) {
	out, err := e.vsctl(ctx, "--", interfaceColumns, "--if-exists", "list", "Interface", name)
	if err != nil {
		return Port{}, false, err
	}
	tables, err := decodeTables(out, 1)
	if err != nil || len(tables[0]) == 0 {
		return Port{}, false, err
	}
	p, err = decodeInterface(tables[0][0])
	return p, err == nil, err
}

// confirmPort reads the port that vswitchd has taken note of. One that it could not set up is removed.
func (e *Exec) confirmPort(ctx context.Context, want Port) (Port, error) {
	got, exists, err := e.readInterface(ctx, want.Name)
	if err != nil {
		return Port{}, err
	}
	if !exists {
		return Port{}, fmt.Errorf("somebody removed it meanwhile")
	}
	refused := refusal(want, got)
	if refused == nil {
		return got, nil
	}
	if err := e.DeletePort(ctx, want.Name); err != nil {
		return Port{}, errors.Join(refused, err)
	}
	return Port{}, refused
}

// DeletePort implements Interface.
func (e *Exec) DeletePort(ctx context.Context, name string) error {
	if name == "" || name == e.bridge {
		return fmt.Errorf("delete port %q of bridge %s: that is not a port of ours", name, e.bridge)
	}
	if _, err := e.vsctl(ctx, "--", "--if-exists", "del-port", e.bridge, name); err != nil {
		return fmt.Errorf("delete port %s of bridge %s: %w", name, e.bridge, err)
	}
	return nil
}

// interfaceCommand returns the ovs-vsctl command that sets the port's interface. Maps are replaced, so that no old key stays.
func interfaceCommand(p Port) ([]string, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	options, err := vsctlMap(p.Options)
	if err != nil {
		return nil, fmt.Errorf("port %s: options: %w", p.Name, err)
	}
	ids, err := vsctlMap(p.ExternalIDs)
	if err != nil {
		return nil, fmt.Errorf("port %s: external IDs: %w", p.Name, err)
	}
	typ, err := vsctlString(p.Type)
	if err != nil {
		return nil, fmt.Errorf("port %s: type: %w", p.Name, err)
	}
	args := []string{"--", "set", "Interface", p.Name, "type=" + typ, "options=" + options, "external_ids=" + ids}
	if p.OFPort != 0 {
		args = append(args, "ofport_request="+strconv.Itoa(p.OFPort))
	}
	if p.MTURequest != 0 {
		args = append(args, "mtu_request="+strconv.Itoa(p.MTURequest))
	}
	if p.MAC != "" {
		mac, err := parseMAC(p.MAC)
		if err != nil {
			return nil, fmt.Errorf("port %s: %w", p.Name, err)
		}
		args = append(args, fmt.Sprintf("mac=%q", mac))
	}
	return args, nil
}

// vsctlMap writes a map as ovs-vsctl reads it.
func vsctlMap(m map[string]string) (string, error) {
	var members []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		key, err := vsctlString(k)
		if err != nil {
			return "", err
		}
		value, err := vsctlString(m[k])
		if err != nil {
			return "", err
		}
		members = append(members, key+"="+value)
	}
	return "{" + strings.Join(members, ",") + "}", nil
}

package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// ListPorts implements Interface.
func (e *Exec) ListPorts(ctx context.Context) ([]ovs.Port, error) {
	ports, err := e.readPorts(ctx)
	if err != nil {
		return nil, fmt.Errorf("list ports of bridge %s: %w", e.bridge, err)
	}
	return ports, nil
}

const interfaceColumns = "--columns=_uuid,name,type,options,ofport,mtu_request,mac,external_ids,error"

func (e *Exec) readPorts(ctx context.Context) ([]ovs.Port, error) {
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
		return nil, fmt.Errorf("the bridge does not exist; EnsureBridge creates it")
	}
	return decodePorts(tables[0][0], tables[1], tables[2], e.bridge)
}

// decodePorts joins the three tables. Of a bond, which AddPort never creates, it returns the first interface.
func decodePorts(bridge row, portRows, interfaceRows []row, local string) ([]ovs.Port, error) {
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
	var ports []ovs.Port
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
	slices.SortFunc(ports, func(a, b ovs.Port) int { return cmp.Compare(a.Name, b.Name) })
	return ports, nil
}

func decodeInterface(r row) (p ovs.Port, err error) {
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
func (e *Exec) AddPort(ctx context.Context, p ovs.Port) (ovs.Port, error) {
	set, err := interfaceCommand(p)
	if err != nil {
		return ovs.Port{}, err
	}
	port, err := e.addPort(ctx, p, set)
	if err != nil {
		var rejected *ovs.PortError
		if errors.As(err, &rejected) {
			return ovs.Port{}, err // complete already
		}
		return ovs.Port{}, fmt.Errorf("add port %s to bridge %s: %w", p.Name, e.bridge, err)
	}
	return port, nil
}

func (e *Exec) addPort(ctx context.Context, p ovs.Port, set []string) (ovs.Port, error) {
	is, exists, err := e.readInterface(ctx, p.Name)
	if err != nil {
		return ovs.Port{}, err
	}
	add := slices.Concat([]string{"--", "--may-exist", "add-port", e.bridge, p.Name}, set)
	switch {
	case !exists:
		err = e.createPort(ctx, p.Name, add)
	case ovs.MustRecreate(is, p):
		// In two transactions: in a single one vswitchd would see no change, and retain the open device.
		if err = e.DeletePort(ctx, p.Name); err == nil {
			err = e.createPort(ctx, p.Name, add)
		}
	default:
		_, err = e.vsctl(ctx, add...)
	}
	if err != nil {
		return ovs.Port{}, err
	}
	return e.confirmPort(ctx, p)
}

// createPort adds a port that does not exist. If vswitchd does not confirm it in time, the port is removed from OVSDB, so that
// it does not appear later.
func (e *Exec) createPort(ctx context.Context, name string, add []string) error {
	_, err := e.vsctl(ctx, add...)
	if !ovs.IsUnavailable(err) && ctx.Err() == nil {
		return err
	}
	undo := NewExec(e.bridge, e.runDir) // with a time limit of its own
	_, undoErr := undo.vsctl(context.WithoutCancel(ctx), "--no-wait", "--", "--if-exists", "del-port", e.bridge, name)
	if undoErr != nil {
		undoErr = fmt.Errorf("remove unconfirmed port %s: %w", name, undoErr)
	}
	return errors.Join(err, undoErr)
}

// readInterface returns the interface of that name on any bridge.
func (e *Exec) readInterface(ctx context.Context, name string) (p ovs.Port, exists bool, err error) {
	out, err := e.vsctl(ctx, "--", interfaceColumns, "--if-exists", "list", "Interface", name)
	if err != nil {
		return ovs.Port{}, false, err
	}
	tables, err := decodeTables(out, 1)
	if err != nil || len(tables[0]) == 0 {
		return ovs.Port{}, false, err
	}
	p, err = decodeInterface(tables[0][0])
	return p, err == nil, err
}

// confirmPort reads the port after vswitchd has processed it. It removes a port that vswitchd could not set up.
func (e *Exec) confirmPort(ctx context.Context, want ovs.Port) (ovs.Port, error) {
	got, exists, err := e.readInterface(ctx, want.Name)
	if err != nil {
		return ovs.Port{}, err
	}
	if !exists {
		return ovs.Port{}, fmt.Errorf("another OVSDB client removed the port")
	}
	rejected := refusal(want, got)
	if rejected == nil {
		return got, nil
	}
	if err := e.DeletePort(ctx, want.Name); err != nil {
		return ovs.Port{}, errors.Join(rejected, err)
	}
	return ovs.Port{}, rejected
}

// DeletePort implements Interface.
func (e *Exec) DeletePort(ctx context.Context, name string) error {
	if name == "" || name == e.bridge {
		return fmt.Errorf("delete port %q of bridge %s: not the name of a port that can be deleted", name, e.bridge)
	}
	if _, err := e.vsctl(ctx, "--", "--if-exists", "del-port", e.bridge, name); err != nil {
		return fmt.Errorf("delete port %s of bridge %s: %w", name, e.bridge, err)
	}
	return nil
}

// interfaceCommand returns the ovs-vsctl command that sets the port's interface. Maps are replaced as a whole.
func interfaceCommand(p ovs.Port) ([]string, error) {
	if err := p.Validate(); err != nil {
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
		mac, err := net.ParseMAC(p.MAC)
		if err != nil {
			return nil, fmt.Errorf("port %s: %w", p.Name, err)
		}
		args = append(args, fmt.Sprintf("mac=%q", mac))
	}
	return args, nil
}

// vsctlMap returns a map in the syntax of ovs-vsctl.
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

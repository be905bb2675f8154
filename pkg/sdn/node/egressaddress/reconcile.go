package egressaddress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/neighbour"
)

// state is what Run knows of the egress IPs.
type state struct {
	placed        map[netip.Addr]placement
	reported      map[netip.Addr]string // the last problem; "": placed
	announcements map[netip.Addr]*announcement
}

// placement is the interface on which an egress IP is announced.
type placement struct {
	index int
	mac   string
}

func newState() state {
	return state{placed: map[netip.Addr]placement{}, reported: map[netip.Addr]string{}, announcements: map[netip.Addr]*announcement{}}
}

// reconcile places the desired egress IPs, and removes others. It continues after errors and joins them.
func (a *Addresses) reconcile(ctx context.Context) error {
	a.mu.Lock()
	desired := a.desired
	a.mu.Unlock()
	if desired == nil {
		return nil
	}
	a.watched.addresses.Store(&desired) // before the host is read: no change is missed
	h, err := readHost(ctx, a.options.Tun0, a.options.Set)
	if err != nil {
		return err
	}
	a.watchDevices(h)
	r := reconciliation{Addresses: a, host: h, logger: klog.FromContext(ctx), uplinks: map[int]error{}}
	var errs []error
	for _, addr := range sorted(h.leftovers()) {
		if !desired[addr] {
			errs = append(errs, r.unplace(ctx, addr))
		}
	}
	for addr := range a.state.reported {
		if !desired[addr] {
			a.state.remove(addr)
			delete(a.state.reported, addr)
		}
	}
	for _, addr := range sorted(desired) {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := r.reconcileAddress(ctx, addr)
		if !isRefused(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// reconciliation is one pass.
type reconciliation struct {
	*Addresses
	host    *host
	logger  klog.Logger
	uplinks map[int]error // results of SetUplink
}

// reconcileAddress places one egress IP, and reports its problem.
func (r reconciliation) reconcileAddress(ctx context.Context, addr netip.Addr) error {
	uplink, err := r.host.uplink(addr, r.options)
	if err == nil {
		err = r.place(ctx, addr, uplink)
	}
	if isRefused(err) {
		if err := r.unplace(ctx, addr); err != nil {
			return err
		}
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if before, known := r.state.reported[addr]; !known || before != text {
		r.state.reported[addr] = text
		r.options.Report(addr, err)
	}
	return err
}

// place adds what is missing of an egress IP.
func (r reconciliation) place(ctx context.Context, addr netip.Addr, uplink device) error {
	if r.host.tun0 == 0 {
		return fmt.Errorf("interface %s does not exist", r.options.Tun0)
	}
	err := r.uplinks[uplink.index]
	if _, done := r.uplinks[uplink.index]; !done {
		var changes []string
		changes, err = r.options.SetUplink(uplink.name)
		if len(changes) > 0 {
			r.logger.Info("Set sysctls for egress IPs", "interface", uplink.name, "changes", changes)
		}
		r.uplinks[uplink.index] = err
	}
	if err != nil {
		return fmt.Errorf("set sysctls of interface %s: %w", uplink.name, err)
	}
	if _, err := r.host.lookup(addr); err != nil {
		return err
	}
	addToSet := func(addr netip.Addr, _ device) (string, error) { return r.addToSet(ctx, addr) }
	for _, step := range []func(netip.Addr, device) (change string, err error){addToSet, r.addRoute, r.addNeighbour, r.addProxy} {
		change, err := step(addr, uplink)
		if err != nil {
			return err
		}
		if change != "" {
			r.logger.Info("Changed the host's forwarding of an egress IP", "egressIP", addr, "change", change)
		}
	}
	own, err := r.host.lookup(addr)
	if err == nil && !own {
		err = fmt.Errorf("the route to %s was deleted by another program", addr)
	}
	if err != nil {
		return err
	}
	now := placement{uplink.index, uplink.mac.String()}
	if before, ok := r.state.placed[addr]; !ok || before != now {
		r.state.placed[addr] = now
		r.state.schedule(addr, uplink)
	}
	return nil
}

func (r reconciliation) addToSet(ctx context.Context, addr netip.Addr) (change string, err error) {
	if r.host.set[addr] {
		return "", nil
	}
	return "", r.options.Set.Add(ctx, addr) // no change on a kernel without sets
}

func (r reconciliation) addRoute(addr netip.Addr, _ device) (change string, err error) {
	have, exists := r.host.routes[addr]
	if exists && have == (ownRoute{r.host.tun0, r.options.RouteMTU, netlink.SCOPE_LINK}) {
		return "", nil
	}
	route := netlink.Route{
		LinkIndex: r.host.tun0, Dst: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())},
		Scope: netlink.SCOPE_LINK, Protocol: hostnet.EgressRouteProtocol, MTU: r.options.RouteMTU,
	}
	add := netlink.RouteAdd // fails if another program's route exists
	if exists {
		add = netlink.RouteReplace
	}
	if err := add(&route); errors.Is(err, unix.EEXIST) {
		return "", &RefusedError{fmt.Sprintf("another program has added a route to %s; delete it, or choose another egress IP", addr)}
	} else if err != nil {
		return "", fmt.Errorf("add the route %s dev %s: %w", addr, r.options.Tun0, err)
	}
	return "route added", nil
}

func (r reconciliation) addNeighbour(addr netip.Addr, _ device) (change string, err error) {
	have, err := neighbour.Get(nil, r.host.tun0, addr)
	if err != nil {
		return "", fmt.Errorf("read the neighbour %s of %s: %w", addr, r.options.Tun0, err)
	}
	mac := config.MAC(addr)
	if have != nil && have.State == netlink.NUD_PERMANENT && bytes.Equal(have.HardwareAddr, mac) {
		return "", nil
	}
	want := netlink.Neigh{LinkIndex: r.host.tun0, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: mac}
	if err := netlink.NeighSet(&want); err != nil {
		return "", fmt.Errorf("add the neighbour %s of %s: %w", addr, r.options.Tun0, err)
	}
	return "neighbour added", nil
}

// addProxy adds the proxy neighbour of the uplink, after it has removed those of previous uplinks. One that another program has added serves as well.
func (r reconciliation) addProxy(addr netip.Addr, uplink device) (change string, err error) {
	for _, index := range r.host.proxied[addr] {
		if index == uplink.index {
			continue
		}
		if err := removeProxy(proxyKey{index, addr}); err != nil {
			return "", err
		}
		change = "proxy neighbour moved"
	}
	if _, ok := r.host.proxies[proxyKey{uplink.index, addr}]; ok {
		return change, nil
	}
	if err := addProxy(proxyKey{uplink.index, addr}); err != nil {
		return "", fmt.Errorf("add the proxy neighbour %s of %s: %w", addr, uplink.name, err)
	}
	return "proxy neighbour added to " + uplink.name, nil
}

// unplace removes the entries of an egress IP, if it has any.
func (r reconciliation) unplace(ctx context.Context, addr netip.Addr) error {
	r.state.remove(addr)
	if !r.host.has(addr) {
		return nil
	}
	if err := r.host.remove(ctx, addr, r.options.Set); err != nil {
		return err
	}
	r.logger.Info("Removed the host's forwarding of an egress IP", "egressIP", addr)
	return nil
}

// remove removes the entries of this package for the address.
func (h *host) remove(ctx context.Context, addr netip.Addr, set hostnet.EgressSet) error {
	for _, index := range h.proxied[addr] {
		if err := removeProxy(proxyKey{index, addr}); err != nil {
			return err
		}
	}
	if route, ok := h.routes[addr]; ok {
		if err := removeNeighbour(route.index, addr); err != nil {
			return err
		}
		if err := removeRoute(route.index, addr); err != nil {
			return err
		}
	}
	if h.set[addr] {
		return set.Remove(ctx, addr)
	}
	return nil
}

func removeNeighbour(index int, addr netip.Addr) error {
	have, err := neighbour.Get(nil, index, addr)
	if err != nil {
		return fmt.Errorf("read the neighbour %s: %w", addr, err)
	}
	if have == nil || !bytes.Equal(have.HardwareAddr, config.MAC(addr)) {
		return nil
	}
	if err := netlink.NeighDel(have); err != nil && !isMissing(err) {
		return fmt.Errorf("remove the neighbour %s: %w", addr, err)
	}
	return nil
}

func removeRoute(index int, addr netip.Addr) error {
	route := netlink.Route{
		LinkIndex: index, Dst: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())},
		Scope: netlink.SCOPE_LINK, Protocol: hostnet.EgressRouteProtocol, Table: unix.RT_TABLE_MAIN,
	}
	if err := netlink.RouteDel(&route); err != nil && !isMissing(err) {
		return fmt.Errorf("remove the route %s: %w", addr, err)
	}
	return nil
}

// isMissing reports whether an entry to be removed, or its interface, does not exist.
func isMissing(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)
}

func isRefused(err error) bool { return errors.As(err, new(*RefusedError)) }

func (s *state) remove(addr netip.Addr) {
	delete(s.placed, addr)
	delete(s.announcements, addr)
}

func sorted(addrs map[netip.Addr]bool) []netip.Addr {
	var all []netip.Addr
	for a := range addrs {
		all = append(all, a)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

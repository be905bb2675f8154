package hostnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
)

// Tun0Config is the wanted state of tun0 and of the host's routes into the pod network.
type Tun0Config struct {
	Subnets         []netip.Prefix // the node's own, masked, at least one; tun0 is the gateway of each, and has the first one's MAC
	ClusterNetworks []netip.Prefix
	ServiceNetwork  netip.Prefix
	MTU             linkmtu.MTU
	Sysctls         Sysctls
}

// Tun0 is the host's side of the port of that name.
type Tun0 struct {
	config Tun0Config
	mu     sync.Mutex // calls look and then change
	fault  fault
}

// NewTun0 returns a Tun0 that holds tun0 to the configuration.
func NewTun0(c Tun0Config) *Tun0 {
	return &Tun0{config: c}
}

// Sync makes tun0 right and returns what it had to change, for logging. Addresses and routes of tun0 that are not wanted
// are removed. An interface that has the name but not the MAC that the agent pinned is somebody else's: that
// is an error, and nothing is changed.
func (t *Tun0) Sync(ctx context.Context) (changes []string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	link, err := netlinksafe.LinkByName(Tun0Name)
	if err != nil {
		return nil, fmt.Errorf("find %s, which Open vSwitch should have made (`ovs-vsctl show` says why not): %w", Tun0Name, err)
	}
	if want, have := config.MAC(config.Gateway(t.config.Subnets[0])), link.Attrs().HardwareAddr; want != nil && !bytes.Equal(have, want) {
		return nil, fmt.Errorf("interface %s has the MAC %q, not the port's %q: if it belongs to something else, such as a VPN, rename that one", Tun0Name, have, want)
	}
	// In this order: settings before the interface can send, addresses before routes, which the kernel drops with an
	// interface's last address.
	for _, step := range []func(netlink.Link) ([]string, error){t.sysctls, t.setMTU, t.addresses, t.up, t.routes} {
		if err := ctx.Err(); err != nil {
			return changes, err
		}
		done, err := step(link)
		changes = append(changes, done...)
		if err != nil {
			return changes, err
		}
	}
	return changes, nil
}

// Run keeps tun0 right until the context ends: it syncs now, every interval, and as soon as the kernel reports a change
// that concerns tun0.
func (t *Tun0) Run(ctx context.Context, interval time.Duration) {
	keep(klog.NewContext(ctx, klog.FromContext(ctx).WithValues("part", Tun0Name)), interval, t.Sync, t.watch, &t.fault)
}

// Healthy returns what keeps Run from making tun0 right, if that lasts.
func (t *Tun0) Healthy() error { return t.fault.get() }

func (t *Tun0) sysctls(netlink.Link) (changes []string, err error) {
	var errs []error
	note := func(change string, err error) {
		if change != "" {
			changes = append(changes, change)
		}
		errs = append(errs, err)
	}
	for _, w := range ipv4Settings() {
		note(t.config.Sysctls.ensure(w))
	}
	for _, w := range neighbourSettings() {
		note(t.config.Sysctls.ensureIfThere(w))
	}
	if !slices.ContainsFunc(t.config.Subnets, func(s netip.Prefix) bool { return s.Addr().Is6() }) {
		note(t.config.Sysctls.ensureIfThere(noIPv6()))
	}
	return changes, errors.Join(errs...)
}

func (t *Tun0) up(link netlink.Link) (changes []string, err error) {
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil, nil
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set %s up: %w", Tun0Name, err)
	}
	return []string{"up"}, nil
}

func (t *Tun0) addresses(link netlink.Link) (changes []string, err error) {
	changes, err = t.addAddresses(link)
	if err != nil {
		return changes, err
	}
	removed, err := t.removeAddresses(link)
	changes = append(changes, removed...)
	if err != nil || len(removed) == 0 {
		return changes, err
	}
	// With a primary address go the secondary ones of its subnet, and one of them may have been ours.
	again, err := t.addAddresses(link)
	return append(changes, again...), err
}

func (t *Tun0) addAddresses(link netlink.Link) (changes []string, err error) {
	have, err := addressesOf(link)
	if err != nil {
		return nil, err
	}
	for _, a := range t.gateways() {
		if _, ok := have[a]; ok {
			continue
		}
		// The route to the node's subnet would be a second one beside the cluster network's.
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: toIPNet(a), Flags: unix.IFA_F_NOPREFIXROUTE}); err != nil {
			return changes, fmt.Errorf("add the address %s to %s: %w", a, Tun0Name, err)
		}
		changes = append(changes, fmt.Sprintf("address %s added", a))
	}
	return changes, nil
}

func (t *Tun0) removeAddresses(link netlink.Link) (changes []string, err error) {
	have, err := addressesOf(link)
	if err != nil {
		return nil, err
	}
	wanted := t.gateways()
	for a, raw := range have {
		if slices.Contains(wanted, a) || a.Addr().IsLinkLocalUnicast() && a.Addr().Is6() {
			continue
		}
		// EADDRNOTAVAIL: it went with its primary address.
		if err := netlink.AddrDel(link, &raw); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return changes, fmt.Errorf("remove the address %s from %s: %w", a, Tun0Name, err)
		}
		changes = append(changes, fmt.Sprintf("address %s removed", a))
	}
	return changes, nil
}

// gateways returns tun0's addresses, with the length of their subnet.
func (t *Tun0) gateways() []netip.Prefix {
	var all []netip.Prefix
	for _, s := range t.config.Subnets {
		all = append(all, netip.PrefixFrom(config.Gateway(s), s.Bits()))
	}
	return all
}

func addressesOf(link netlink.Link) (map[netip.Prefix]netlink.Addr, error) {
	addrs, err := netlinksafe.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", Tun0Name, err)
	}
	all := make(map[netip.Prefix]netlink.Addr, len(addrs))
	for _, a := range addrs {
		all[fromIPNet(a.IPNet)] = a
	}
	return all, nil
}

// routes adds before it removes, so that no destination is without a route in between.
func (t *Tun0) routes(link netlink.Link) (changes []string, err error) {
	have, err := netlinksafe.RouteList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the routes of %s: %w", Tun0Name, err)
	}
	wanted := t.wantedRoutes(link)
	for _, w := range wanted {
		if slices.ContainsFunc(have, func(h netlink.Route) bool { return sameRoute(h, w) }) {
			continue
		}
		if err := netlink.RouteReplace(&w); err != nil {
			return changes, fmt.Errorf("add the route %s dev %s: %w", w.Dst, Tun0Name, err)
		}
		changes = append(changes, fmt.Sprintf("route %s added", w.Dst))
	}
	for _, h := range have {
		if slices.ContainsFunc(wanted, func(w netlink.Route) bool { return sameRoute(h, w) || replaces(w, h) }) || t.kernels(h) {
			continue
		}
		// ESRCH: it went by itself in the meantime.
		if err := netlink.RouteDel(&h); err != nil && !errors.Is(err, unix.ESRCH) {
			return changes, fmt.Errorf("remove the route %s dev %s: %w", h.Dst, Tun0Name, err)
		}
		changes = append(changes, fmt.Sprintf("route %s removed", h.Dst))
	}
	return changes, nil
}

// wantedRoutes returns the routes in the form that OpenShift SDN gave them: the cluster network is on the link.
func (t *Tun0) wantedRoutes(link netlink.Link) []netlink.Route {
	var all []netlink.Route
	for _, c := range t.config.ClusterNetworks {
		all = append(all, netlink.Route{LinkIndex: link.Attrs().Index, Dst: toIPNet(c), Scope: netlink.SCOPE_LINK, MTU: t.config.MTU.Routes})
	}
	if s := t.config.ServiceNetwork; s.IsValid() {
		all = append(all, netlink.Route{LinkIndex: link.Attrs().Index, Dst: toIPNet(s), MTU: t.config.MTU.Routes})
	}
	return all
}

// sameRoute says whether a route of tun0 is as wanted. IPv6 knows no scopes, and gives metric 1024 for none.
func sameRoute(have, want netlink.Route) bool {
	dst := fromIPNet(have.Dst)
	return dst == fromIPNet(want.Dst) && have.Type == unix.RTN_UNICAST && have.Gw == nil && have.Via == nil && have.Src == nil && have.MTU == want.MTU &&
		(dst.Addr().Is6() || have.Scope == want.Scope && have.Priority == 0 && have.Tos == 0)
}

// replaces says whether w, once written, took the place of h: they have the same key in the kernel.
func replaces(w, h netlink.Route) bool {
	return fromIPNet(w.Dst) == fromIPNet(h.Dst) && h.Priority == 0 && h.Tos == 0
}

// kernels says whether the kernel made the route and it may stay. Of an address that was added without
// IFA_F_NOPREFIXROUTE the kernel made the route to the node's subnet, which goes.
func (t *Tun0) kernels(r netlink.Route) bool {
	return r.Protocol == unix.RTPROT_KERNEL && !slices.Contains(t.config.Subnets, fromIPNet(r.Dst))
}

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
	"sync/atomic"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
)

// Tun0Config is the wanted state of tun0 and of the host's routes to the pod network.
type Tun0Config struct {
	Subnets         []netip.Prefix // the node's own, masked, at least one; tun0 is the gateway of each, and has the first one's MAC
	ClusterNetworks []netip.Prefix
	ServiceNetwork  netip.Prefix
	MTU             linkmtu.MTU
	Uplink          string // the interface with the node's address; empty: unknown
	Sysctls         Sysctls

	// ServiceNextHop is the IPv4 next hop of the route to the service network, for --service-proxy=ovs; zero: the service network is on-link, and the host
	// resolves each service's address. ServiceNextHopMAC is its MAC.
	ServiceNextHop    netip.Addr
	ServiceNextHopMAC net.HardwareAddr
	// ServiceOutside is another IPv4 address behind ServiceNextHop: the source of packets that hosts outside send to the host through a service.
	ServiceOutside netip.Addr
}

// Tun0 reconciles the host's interface tun0.
type Tun0 struct {
	config Tun0Config
	mu     sync.Mutex // held by Sync and PrepareMTU
	// neighboursListed is set once Sync has removed the permanent neighbours of a previous agent. Guarded by mu.
	neighboursListed bool
	watchedUplinks   atomic.Pointer[[]int] // indexes of interfaces; nil before the first Sync

	status syncStatus
}

// NewTun0 returns a Tun0 with the configuration.
func NewTun0(c Tun0Config) *Tun0 {
	return &Tun0{config: c}
}

// Sync corrects tun0 and returns the changes, for logging. It removes other addresses and routes of tun0, and at first
// other permanent IPv4 neighbours. An interface with the name
// but another MAC than the port's belongs to another program: that is an error, and nothing is changed. The error is a *SysctlError if only sysctls failed.
func (t *Tun0) Sync(ctx context.Context) (changes []string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	link, err := netlinksafe.LinkByName(Tun0Name)
	if err != nil {
		return nil, fmt.Errorf("find %s, a port of Open vSwitch (see `ovs-vsctl show`): %w", Tun0Name, err)
	}
	if want, have := config.MAC(config.Gateway(t.config.Subnets[0])), link.Attrs().HardwareAddr; want != nil && !bytes.Equal(have, want) {
		return nil, fmt.Errorf("interface %s has MAC %q, want %q; if it belongs to another program, such as a VPN, rename it", Tun0Name, have, want)
	}
	// In this order: sysctls before the interface can send, addresses before routes, which the kernel deletes with an
	// interface's last address, and the next hop before the route that uses it. A sysctl that can't be written does not stop the other steps.
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	changes, sysctlErr := t.sysctls()
	for _, step := range []func(netlink.Link) ([]string, error){t.setMTU, t.addresses, t.up, t.nextHop, t.routes, t.staleNeighbours} {
		if err := ctx.Err(); err != nil {
			return changes, err
		}
		done, err := step(link)
		changes = append(changes, done...)
		if err != nil {
			return changes, errors.Join(err, sysctlErr)
		}
	}
	if sysctlErr != nil {
		return changes, &SysctlError{sysctlErr}
	}
	return changes, nil
}

// Run calls Sync until the context ends: at once, every interval, and when the kernel reports a relevant change.
func (t *Tun0) Run(ctx context.Context, interval time.Duration) {
	syncLoop(klog.NewContext(ctx, klog.FromContext(ctx).WithValues("part", Tun0Name)), interval, t.Sync, t.watch, &t.status)
}

// Healthy returns the persistent failure of Run, or nil. It is safe for concurrent use.
func (t *Tun0) Healthy() error { return t.status.err() }

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
	// The kernel deletes secondary addresses with the primary one of their subnet: a wanted address may be missing now.
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
		// No route to the node's subnet: the cluster network's includes it.
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
		// EADDRNOTAVAIL: the kernel deleted it with its primary address.
		if err := netlink.AddrDel(link, &raw); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return changes, fmt.Errorf("remove the address %s from %s: %w", a, Tun0Name, err)
		}
		changes = append(changes, fmt.Sprintf("address %s removed", a))
	}
	return changes, nil
}

// gateways returns tun0's addresses, with the prefix length of their subnet.
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

// routes adds routes before it removes others, so that each destination has a route at any time.
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
		if slices.ContainsFunc(wanted, func(w netlink.Route) bool { return sameRoute(h, w) || replaces(w, h) }) || t.isKernelRoute(h) || isEgressRoute(h) {
			continue
		}
		// ESRCH: it was deleted in the meantime.
		if err := netlink.RouteDel(&h); err != nil && !errors.Is(err, unix.ESRCH) {
			return changes, fmt.Errorf("remove the route %s dev %s: %w", h.Dst, Tun0Name, err)
		}
		changes = append(changes, fmt.Sprintf("route %s removed", h.Dst))
	}
	return changes, nil
}

// wantedRoutes returns the same routes as OpenShift SDN: the cluster network is on-link, and so is the service network without a next hop. The next hop's
// route precedes the one that uses it.
func (t *Tun0) wantedRoutes(link netlink.Link) []netlink.Route {
	var all []netlink.Route
	for _, c := range t.config.ClusterNetworks {
		all = append(all, netlink.Route{LinkIndex: link.Attrs().Index, Dst: toIPNet(c), Scope: netlink.SCOPE_LINK, MTU: t.config.MTU.Routes})
	}
	s, hop := t.config.ServiceNetwork, t.config.ServiceNextHop
	if !s.IsValid() {
		return all
	}
	toServices := netlink.Route{LinkIndex: link.Attrs().Index, Dst: toIPNet(s), MTU: t.config.MTU.Routes}
	if hop.IsValid() {
		all = append(all, netlink.Route{LinkIndex: link.Attrs().Index, Dst: toIPNet(hostPrefix(hop)), Scope: netlink.SCOPE_LINK, MTU: t.config.MTU.Routes})
		toServices.Gw, toServices.Flags = hop.AsSlice(), int(netlink.FLAG_ONLINK)
		toOutside := toServices
		toOutside.Dst = toIPNet(hostPrefix(t.config.ServiceOutside))
		all = append(all, toOutside)
	}
	return append(all, toServices)
}

// sameRoute reports whether a route of tun0 equals the wanted one. IPv6 has no scopes, and uses metric 1024 for none.
func sameRoute(have, want netlink.Route) bool {
	dst := fromIPNet(have.Dst)
	const onLink = int(netlink.FLAG_ONLINK)
	return dst == fromIPNet(want.Dst) && have.Type == unix.RTN_UNICAST && have.Gw.Equal(want.Gw) && have.Flags&onLink == want.Flags&onLink &&
		have.Via == nil && have.Src == nil && have.MTU == want.MTU &&
		(dst.Addr().Is6() || have.Scope == want.Scope && have.Priority == 0 && have.Tos == 0)
}

// replaces reports whether the kernel replaced h when w was added: they have the same key.
func replaces(w, h netlink.Route) bool {
	return fromIPNet(w.Dst) == fromIPNet(h.Dst) && h.Priority == 0 && h.Tos == 0
}

// isEgressRoute reports whether the route is one to an egress IP, which package egressaddress manages.
func isEgressRoute(r netlink.Route) bool { return r.Protocol == EgressRouteProtocol }

// isKernelRoute reports whether the kernel added the route, except for that to the node's subnet, which it adds with an address without
// IFA_F_NOPREFIXROUTE, and which is removed.
func (t *Tun0) isKernelRoute(r netlink.Route) bool {
	return r.Protocol == unix.RTPROT_KERNEL && !slices.Contains(t.config.Subnets, fromIPNet(r.Dst))
}

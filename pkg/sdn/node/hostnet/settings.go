package hostnet

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

// sysctls restores the sysctls of the table, except for those of pods' interfaces. It continues after errors and joins them.
func (t *Tun0) sysctls() (changes []string, err error) {
	uplinks, err := t.uplinks()
	errs := []error{err}
	devices := map[sysctl.Scope][]string{sysctl.ScopeHost: {""}, sysctl.ScopeTun0: {Tun0Name}, sysctl.ScopeUplink: uplinks}
	hasIPv6 := slices.ContainsFunc(t.config.Subnets, func(s netip.Prefix) bool { return s.Addr().Is6() })
	for _, s := range sysctl.Table() {
		if s.IPv4Only && hasIPv6 {
			continue
		}
		for _, device := range devices[s.Scope] {
			change, err := t.config.Sysctls.ensure(s, device)
			if s.Scope == sysctl.ScopeUplink && errors.Is(err, fs.ErrNotExist) {
				continue // the interface was deleted
			}
			if change != "" {
				changes = append(changes, change)
			}
			errs = append(errs, err)
		}
	}
	return changes, errors.Join(errs...)
}

// uplinks returns the names of the interfaces by which packets of other networks arrive: that with the node's address, and those of the default routes of the
// lowest metric. Others may be of a network in which the host must not forward. It updates those whose sysctls are watched.
func (t *Tun0) uplinks() (names []string, err error) {
	var indexes []int
	add := func(link netlink.Link, err error) {
		if err != nil || isOwnInterface(link.Attrs().Name) || slices.Contains(indexes, link.Attrs().Index) {
			return // a route without an interface, or the interface was deleted
		}
		names, indexes = append(names, link.Attrs().Name), append(indexes, link.Attrs().Index)
	}
	if t.config.Uplink != "" {
		add(netlinksafe.LinkByName(t.config.Uplink))
	}
	routes, err := netlinksafe.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_DST)
	if err != nil {
		err = fmt.Errorf("list the host's default routes: %w", err)
	}
	for _, r := range routes {
		if slices.ContainsFunc(routes, func(other netlink.Route) bool { return other.Priority < r.Priority }) {
			continue
		}
		add(netlink.LinkByIndex(r.LinkIndex))
		for _, hop := range r.MultiPath {
			add(netlink.LinkByIndex(hop.LinkIndex))
		}
	}
	t.watchedUplinks.Store(&indexes)
	return names, err
}

// isUplink reports whether the interface was an uplink in the last Sync.
func (t *Tun0) isUplink(index int) bool {
	indexes := t.watchedUplinks.Load()
	return indexes != nil && slices.Contains(*indexes, index)
}

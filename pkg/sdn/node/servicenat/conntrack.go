package servicenat

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostconntrack"
)

// changedKeys are the frontends of UDP whose target changed.
type changedKeys map[key]struct{}

// target returns to which address connections are translated; invalid: to none, as without a frontend.
func (f *Frontend) target() netip.AddrPort {
	if f == nil || f.Verdict != endpoints.Forward {
		return netip.AddrPort{}
	}
	return f.To
}

// add adds a frontend of UDP if its target differs from the previous one.
func (all changedKeys) add(k key, old, current *Frontend) {
	if k.protocol == corev1.ProtocolUDP && old.target() != current.target() {
		all[k] = struct{}{}
	}
}

// flushUDP deletes connections of UDP that the rules would translate to another address. A client that sends continuously would retain its previous entry. Without the
// node's addresses, which distinguish node ports, and soon after a flush, a later round flushes: each lists the host's whole conntrack table.
func (w *writer) flushUDP(ctx context.Context, changed changedKeys) {
	maps.Copy(w.unflushed, changed)
	started := w.now()
	if len(w.unflushed) == 0 || started.Before(w.flushAt) {
		return
	}
	local, err := w.localAddrs()
	if err == nil {
		err = w.flush(w.stale(w.unflushed, local))
	}
	ended := w.now()
	w.flushAt = ended.Add(max(minFlushInterval, flushShare*ended.Sub(started)))
	if w.flushFailure.Set(err) {
		klog.FromContext(ctx).Error(err, "Failed to flush UDP connections of services", "effect", "clients that send continuously do not reach changed services",
			"retryAfter", checkPeriod)
	}
	if err != nil {
		w.flushAt = ended.Add(checkPeriod)
		if len(w.unflushed) > maxUnflushed { // the kernel may never flush
			w.unflushed = changedKeys{}
		}
		return
	}
	w.unflushed = changedKeys{}
}

// invalidate makes the next round replace the table. Until then each frontend may change.
func (w *writer) invalidate() {
	for k, f := range w.written {
		w.unflushed.add(k, f, nil)
	}
	w.written = nil
}

// stale returns a filter of connections to the changed frontends whose translation differs. Those that other programs have translated remain, and those that the rules
// do not translate: of pods, and of the node to an address of a tenant.
func (w *writer) stale(changed changedKeys, local []netip.Addr) hostconntrack.Filter {
	return func(c *netlink.ConntrackFlow) bool {
		if c.Forward.Protocol != unix.IPPROTO_UDP {
			return false
		}
		to := netip.AddrPortFrom(hostconntrack.Addr(c.Forward.DstIP), c.Forward.DstPort)
		translated := netip.AddrPortFrom(hostconntrack.Addr(c.Reverse.SrcIP), c.Reverse.SrcPort)
		wanted, ok := w.wanted(to, changed, slices.Contains(local, to.Addr()))
		if !ok || translated == wanted.target() {
			return false
		}
		if w.options.ServiceNetwork.Contains(translated.Addr()) {
			return true
		}
		from := hostconntrack.Addr(c.Forward.SrcIP)
		if slices.ContainsFunc(w.options.ClusterNetworks, func(p netip.Prefix) bool { return p.Contains(from) }) {
			return false
		}
		if wanted != nil && wanted.TenantAddress && (slices.Contains(local, from) || slices.Contains(local, to.Addr())) {
			return false
		}
		return translated == to && wanted.target().IsValid()
	}
}

// wanted returns the frontend of UDP to an address; nil: none. ok is false if no frontend on which this depends has changed. Node ports precede addresses. They may
// have answered at other addresses before the agent was started.
func (w *writer) wanted(to netip.AddrPort, changed changedKeys, isLocal bool) (wanted *Frontend, ok bool) {
	keys := []key{{to.Addr(), corev1.ProtocolUDP, to.Port()}}
	if isLocal {
		keys = []key{{protocol: corev1.ProtocolUDP, port: to.Port()}, keys[0]}
	}
	for _, k := range keys {
		_, isChanged := changed[k]
		ok = ok || isChanged
		if f := w.written[k]; f != nil && (k.addr.IsValid() || w.options.servesNodePorts(to.Addr())) {
			return f, ok
		}
	}
	return nil, ok
}

// nodeAddrs returns the node's IPv4 addresses, except of 127.0.0.0/8.
func nodeAddrs() ([]netip.Addr, error) {
	all, err := hostconntrack.LocalAddrs()
	return slices.DeleteFunc(all, netip.Addr.IsLoopback), err
}

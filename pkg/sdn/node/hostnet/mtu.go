package hostnet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
)

// minMTU is the size that each IPv4 host must accept without fragmentation, in bytes (RFC 791, section 3.1).
const minMTU = 576

// MTU returns the MTU of the pod network's interfaces and of its routes, in bytes. configured is the MTU of the interfaces; 0: the largest that
// the underlay can carry. routable is the MTU of the routes; 0: that of the interfaces. A value that would cause fragmentation, or that is
// too small for IPv4, is an error.
//
// The overhead of VXLAN is the inner Ethernet header and the outer IPv4, UDP and VXLAN headers (RFC 7348, section 5). The outer
// Ethernet header is not part of the underlay's MTU.
func MTU(underlay Underlay, configured, routable int) (linkmtu.MTU, error) {
	largest := underlay.MTU - config.VXLANOverhead
	mtu := configured
	if configured == 0 {
		mtu = largest
	}
	switch {
	case mtu > largest:
		return linkmtu.MTU{}, fmt.Errorf("MTU %d is too large: interface %s has MTU %d and VXLAN needs %d bytes; set at most %d, or raise the MTU of %s",
			configured, underlay.Name, underlay.MTU, config.VXLANOverhead, largest, underlay.Name)
	case mtu < minMTU && configured == 0:
		return linkmtu.MTU{}, fmt.Errorf("interface %s has MTU %d, which leaves %d bytes with VXLAN: IPv4 needs %d; raise the MTU of %s, or choose another interface with --iface",
			underlay.Name, underlay.MTU, largest, minMTU, underlay.Name)
	case mtu < minMTU:
		return linkmtu.MTU{}, fmt.Errorf("MTU %d is too small: IPv4 needs at least %d", configured, minMTU)
	case routable > mtu:
		return linkmtu.MTU{}, fmt.Errorf("routable MTU %d is too large: the interfaces of pods have MTU %d; set at most that, or raise the MTU first", routable, mtu)
	case routable != 0 && routable < minMTU:
		return linkmtu.MTU{}, fmt.Errorf("routable MTU %d is too small: IPv4 needs at least %d", routable, minMTU)
	}
	return linkmtu.MTU{Link: mtu, Routes: routable}, nil
}

// PrepareMTU lowers the MTU of tun0's routes before Open vSwitch sets that of tun0, if tun0 exists. It returns the changes, for logging. Sync does
// the rest.
func (t *Tun0) PrepareMTU(ctx context.Context) (changes []string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	link, err := netlinksafe.LinkByName(Tun0Name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", Tun0Name, err)
	}
	return t.changeMTU(link, linkmtu.Change.Prepare)
}

func (t *Tun0) setMTU(link netlink.Link) (changes []string, err error) {
	return t.changeMTU(link, linkmtu.Change.Apply)
}

func (t *Tun0) changeMTU(link netlink.Link, do func(linkmtu.Change) ([]string, error)) (changes []string, err error) {
	h, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	wanted := t.wantedRoutes(link)
	return do(linkmtu.Change{
		Netlink: h, Link: link, Want: t.config.MTU,
		Selects: func(r netlink.Route) bool {
			return slices.ContainsFunc(wanted, func(w netlink.Route) bool {
				w.MTU = r.MTU
				return sameRoute(r, w)
			})
		},
	})
}

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

// minMTU is what every IPv4 host must be able to receive in one piece, in bytes (RFC 791, section 3.1).
const minMTU = 576

// MTU returns what the interfaces of the pod network take and what is sent through them. The former is as given in bytes, or the
// most that the underlay carries if given is 0; the latter is routable in bytes, or the same if that is 0. A given value
// that would have to be fragmented, or that is too small for IPv4, is an error.
//
// What VXLAN takes is the inner Ethernet header and the outer IPv4, UDP and VXLAN headers (RFC 7348, section 5). The outer
// Ethernet header is not part of the underlay's MTU.
func MTU(underlay Underlay, given, routable int) (linkmtu.MTU, error) {
	most := underlay.MTU - config.VXLANOverhead
	mtu := given
	if given == 0 {
		mtu = most
	}
	switch {
	case mtu > most:
		return linkmtu.MTU{}, fmt.Errorf("MTU %d is too large: interface %s has %d, of which VXLAN takes %d: give at most %d, or raise the MTU of %s",
			given, underlay.Name, underlay.MTU, config.VXLANOverhead, most, underlay.Name)
	case mtu < minMTU && given == 0:
		return linkmtu.MTU{}, fmt.Errorf("interface %s has MTU %d, of which VXLAN leaves %d: IPv4 needs %d: raise the MTU of %s, or choose another interface with --iface",
			underlay.Name, underlay.MTU, most, minMTU, underlay.Name)
	case mtu < minMTU:
		return linkmtu.MTU{}, fmt.Errorf("MTU %d is too small: IPv4 needs at least %d", given, minMTU)
	case routable > mtu:
		return linkmtu.MTU{}, fmt.Errorf("routable MTU %d is too large: the interfaces of pods take %d: give at most that, or raise the MTU first", routable, mtu)
	case routable != 0 && routable < minMTU:
		return linkmtu.MTU{}, fmt.Errorf("routable MTU %d is too small: IPv4 needs at least %d", routable, minMTU)
	}
	return linkmtu.MTU{Link: mtu, Routes: routable}, nil
}

// PrepareMTU makes tun0's routes ready for the MTU that somebody else, Open vSwitch, is about to give tun0, if there is one already.
// It returns what it had to change, for logging. Sync does the rest.
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
		Ours: func(r netlink.Route) bool {
			return slices.ContainsFunc(wanted, func(w netlink.Route) bool {
				w.MTU = r.MTU
				return sameRoute(r, w)
			})
		},
	})
}

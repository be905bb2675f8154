package neighbour

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

func TestGet(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	netns, err := ns.TempNetNS()
	if err != nil {
		t.Fatal(err)
	}
	defer netns.Close()
	err = netns.Do(func(ns.NetNS) error {
		addr, mac := netip.MustParseAddr("169.254.0.11"), net.HardwareAddr{0x0a, 0x58, 0xa9, 0xfe, 0, 0x0b}
		link := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TAP}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		index := link.Attrs().Index
		if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: mac}); err != nil {
			return err
		}
		for name, get := range map[string]func(Sockets, int, netip.Addr) (*netlink.Neigh, error){"Get": Get, "find": find, "search": search} {
			got, err := get(nil, index, addr)
			if err != nil || got == nil || got.HardwareAddr.String() != mac.String() || got.State != netlink.NUD_PERMANENT {
				t.Errorf("%s: got %+v, error %v, want the permanent neighbour %s", name, got, err, mac)
			}
			if got, err = get(nil, index, addr.Next()); err != nil || got != nil {
				t.Errorf("%s of a missing neighbour: got %+v, error %v, want none", name, got, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

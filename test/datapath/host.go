package datapath

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

// Host is a network namespace with an address.
type Host struct {
	NS   ns.NetNS
	Addr netip.Addr
}

func newHost(t testing.TB, addr netip.Addr) *Host {
	t.Helper()
	netns, err := ns.TempNetNS()
	if err != nil {
		t.Fatalf("new network namespace: %v", err)
	}
	t.Cleanup(func() { netns.Close() })
	h := &Host{NS: netns, Addr: addr}
	h.Sh(t, "ip link set lo up")
	return h
}

// veth joins two hosts by a pair of devices.
func (h *Host) veth(t testing.TB, name string, peer *Host, peerName string, mtu int) {
	t.Helper()
	err := h.NS.Do(func(ns.NetNS) error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}, PeerName: peerName, PeerNamespace: netlink.NsFd(int(peer.NS.Fd())), PeerMTU: uint32(mtu),
		})
	})
	if err != nil {
		t.Fatalf("veth %s to %s: %v", name, peerName, err)
	}
}

// Sh runs shell commands in the host's network namespace and returns what they print. A command that fails ends the test.
func (h *Host) Sh(t testing.TB, commands ...string) string {
	t.Helper()
	var out []byte
	err := h.NS.Do(func(ns.NetNS) (err error) {
		out, err = exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-ec", strings.Join(commands, "\n")).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(commands, "; "), err, out)
	}
	return string(out)
}

// RouteTo makes the host send packets for a node's pods to that node, until the test ends.
func (h *Host) RouteTo(t testing.TB, n *Node) {
	t.Helper()
	route := fmt.Sprintf("%s via %s", n.Subnet, n.VTEP)
	h.Sh(t, "ip route add "+route)
	t.Cleanup(func() { h.Sh(t, "ip route del "+route) })
}

//go:build guest

package hostnet

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// With the agent's thresholds the neighbour table has room for an address scan of a pod, and with the kernel's default ones it has not. All network
// namespaces share the table and its thresholds, so the test runs in the virtual machine only.
func TestNeighbourTableThresholds(t *testing.T) {
	const scanned = 5000
	// refused returns the number of addresses that did not fit in the table.
	refused := func(t *testing.T) int {
		netns := inNetNS(t)
		sh(t, "ip link add eth0 type dummy && ip link set eth0 arp on up && ip addr add 10.128.0.2/14 dev eth0")
		pod := udp(t, netns, "10.128.0.2:5000")
		for i := range scanned {
			to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 129, byte(i / 250), byte(1 + i%250)}), 9)
			if _, err := pod.WriteToUDPAddrPort([]byte("x"), to); err != nil && !errors.Is(err, unix.ENOBUFS) {
				t.Fatal(err)
			}
		}
		return scanned - strings.Count(sh(t, "ip neigh show dev eth0 nud all"), "10.129.")
	}
	host, err := ns.GetNS("/proc/1/ns/net")
	must(t, err)
	defer host.Close()
	t.Run("the kernel's thresholds", func(t *testing.T) {
		if got := refused(t); got < scanned/2 {
			t.Errorf("got %d of %d addresses refused, want at least half: the test has no effect", got, scanned)
		}
	})
	must(t, host.Do(func(ns.NetNS) error {
		for _, w := range neighbourSettings() {
			change, err := Sysctls{}.ensure(w, "")
			if err != nil {
				return err
			}
			t.Log(change)
		}
		return nil
	}))
	t.Run("the agent's thresholds", func(t *testing.T) {
		if got := refused(t); got != 0 {
			t.Errorf("got %d of %d addresses refused, want 0", got, scanned)
		}
	})
}

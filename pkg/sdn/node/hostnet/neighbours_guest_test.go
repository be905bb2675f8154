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

// The machine's neighbour table has room for the sweep of a pod with the thresholds that the agent sets, and not with the kernel's. The
// sweep is the pod's own: the table is one for all network namespaces. The thresholds are the machine's: only the guest is free to change them.
func TestNeighbourTableHasRoom(t *testing.T) {
	const swept = 5000
	// refused is how many addresses the kernel had no room for.
	refused := func(t *testing.T) int {
		netns := inNetNS(t)
		sh(t, "ip link add eth0 type dummy && ip link set eth0 arp on up && ip addr add 10.128.0.2/14 dev eth0")
		pod := udp(t, netns, "10.128.0.2:5000")
		for i := range swept {
			to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 129, byte(i / 250), byte(1 + i%250)}), 9)
			if _, err := pod.WriteToUDPAddrPort([]byte("x"), to); err != nil && !errors.Is(err, unix.ENOBUFS) {
				t.Fatal(err)
			}
		}
		return swept - strings.Count(sh(t, "ip neigh show dev eth0 nud all"), "10.129.")
	}
	machine, err := ns.GetNS("/proc/1/ns/net")
	must(t, err)
	defer machine.Close()
	t.Run("the kernel's thresholds", func(t *testing.T) {
		if got := refused(t); got < swept/2 {
			t.Errorf("the kernel refused %d of %d addresses: nothing was tried", got, swept)
		}
	})
	must(t, machine.Do(func(ns.NetNS) error {
		for _, w := range neighbourSettings() {
			change, err := Sysctls{}.ensure(w)
			if err != nil {
				return err
			}
			t.Log(change)
		}
		return nil
	}))
	t.Run("the agent's thresholds", func(t *testing.T) {
		if got := refused(t); got != 0 {
			t.Errorf("the kernel refused %d of %d addresses, want 0", got, swept)
		}
	})
}

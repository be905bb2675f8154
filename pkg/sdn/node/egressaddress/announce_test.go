package egressaddress

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/tier"
)

// capture is a packet socket for ARP on eth0 of a namespace.
type capture struct{ fd int }

func newCapture(t *testing.T, netns ns.NetNS) capture {
	t.Helper()
	var c capture
	must(t, netns.Do(func(ns.NetNS) (err error) {
		const arp = unix.ETH_P_ARP>>8 | unix.ETH_P_ARP&0xff<<8 // in network byte order
		if c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, arp); err != nil {
			return err
		}
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: arp, Ifindex: link.Index})
	}))
	t.Cleanup(func() { _ = unix.Close(c.fd) })
	return c
}

// wantAnnouncements waits until both forms were received the number of times since the last call.
func (c capture) wantAnnouncements(t *testing.T, addr string, mac net.HardwareAddr, times int) {
	t.Helper()
	ip := netip.MustParseAddr(addr).AsSlice()
	got := map[uint16]int{}
	frame := make([]byte, 1500)
	eventually(t, func() error {
		for {
			length, _, err := unix.Recvfrom(c.fd, frame, 0)
			if err != nil {
				break
			}
			const size = 42 // Ethernet and ARP
			if f := frame[:length]; length >= size && bytes.Equal(f[28:32], ip) && bytes.Equal(f[38:42], ip) &&
				bytes.Equal(f[:6], []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}) && bytes.Equal(f[6:12], mac) && bytes.Equal(f[22:28], mac) {
				got[uint16(f[20])<<8|uint16(f[21])]++
			}
		}
		if got[arpRequest] < times || got[arpReply] < times {
			return fmt.Errorf("gratuitous ARP of %s: got %d requests and %d replies, want %d of each", addr, got[arpRequest], got[arpReply], times)
		}
		return nil
	})
	if got[arpRequest] != times || got[arpReply] != times {
		t.Errorf("gratuitous ARP of %s: got %d requests and %d replies, want %d of each", addr, got[arpRequest], got[arpReply], times)
	}
}

func uplinkMAC(t *testing.T) net.HardwareAddr {
	t.Helper()
	link, err := net.InterfaceByName("eth0")
	must(t, err)
	return link.HardwareAddr
}

// An egress IP is announced when it is placed, when the uplink gets another MAC, and when its link comes up.
func TestAddresses_announced(t *testing.T) {
	tier.Parallel(t)
	n := newNode(t)
	seen := newCapture(t, n.outside)
	n.start(t, n.options(), egressIP)
	seen.wantAnnouncements(t, egressIP, uplinkMAC(t), announceRounds)

	sh(t, "ip link set eth0 address 02:00:00:00:00:77")
	seen.wantAnnouncements(t, egressIP, net.HardwareAddr{2, 0, 0, 0, 0, 0x77}, announceRounds)

	n.in(t, n.outside, "ip link set eth0 down")
	eventually(t, func() error {
		if got := sh(t, "ip -o link show eth0"); !bytes.Contains([]byte(got), []byte("NO-CARRIER")) {
			return fmt.Errorf("link of the uplink: got %q, want NO-CARRIER", got)
		}
		return nil
	})
	n.in(t, n.outside, "ip link set eth0 up")
	seen.wantAnnouncements(t, egressIP, uplinkMAC(t), announceRounds)
}

// A neighbour's cache is updated by the announcement: it sends no packets to the node that had the egress IP before.
func TestAddresses_announcementUpdatesNeighbours(t *testing.T) {
	n := newNode(t)
	n.in(t, n.outside, "sysctl -qw net.ipv4.neigh.eth0.locktime=0; ip neigh add "+egressIP+" lladdr 02:00:00:00:00:99 dev eth0 nud stale")
	n.start(t, n.options(), egressIP)
	eventually(t, func() error {
		if got := n.in(t, n.outside, "ip neigh show "+egressIP); !bytes.Contains([]byte(got), []byte(uplinkMAC(t).String())) {
			return fmt.Errorf("neighbour: got %q, want %s", got, uplinkMAC(t))
		}
		return nil
	})
}

func TestGratuitousARP(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	got := fmt.Sprintf("%x", gratuitousARP(arpReply, netip.MustParseAddr("192.0.2.50"), mac))
	const want = "ffffffffffff020000000001" + "0806" + "0001080006040002" + "020000000001c0000232" + "020000000001c0000232"
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestState_nextAnnouncement(t *testing.T) {
	s := newState()
	if got := s.nextAnnouncement(time.Now()); got >= 0 {
		t.Errorf("without announcements: got %v, want none", got)
	}
	now := time.Now()
	s.announcements[netip.MustParseAddr("192.0.2.50")] = &announcement{due: now.Add(2 * time.Second)}
	s.announcements[netip.MustParseAddr("192.0.2.51")] = &announcement{due: now.Add(time.Second)}
	if got := s.nextAnnouncement(now); got != time.Second {
		t.Errorf("got %v, want 1s", got)
	}
}

package egressaddress

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const (
	// announceRounds are the rounds in which an egress IP is announced, with defaultAnnounceInterval between them: frames can be lost, and a switch's port may not
	// forward at once after its link came up.
	announceRounds          = 3
	defaultAnnounceInterval = 900 * time.Millisecond

	macLength = 6

	arpRequest, arpReply = 1, 2 // operations of RFC 826
)

// announcement is a series of gratuitous ARP.
type announcement struct {
	index int // of the uplink
	mac   net.HardwareAddr
	due   time.Time
	left  int // rounds
}

// schedule starts the announcements of an egress IP.
func (s *state) schedule(addr netip.Addr, uplink device) {
	s.announcements[addr] = &announcement{index: uplink.index, mac: uplink.mac, due: time.Now(), left: announceRounds}
}

// nextAnnouncement returns the time until the next announcement; negative: none is scheduled.
func (s *state) nextAnnouncement(now time.Time) time.Duration {
	next := time.Duration(-1)
	for _, a := range s.announcements {
		if d := max(a.due.Sub(now), 0); next < 0 || d < next {
			next = d
		}
	}
	return next
}

// announce sends the announcements that are due.
func (a *Addresses) announce(ctx context.Context, now time.Time) {
	sockets := map[int]int{} // by the index of the interface
	defer func() {
		for _, fd := range sockets {
			_ = unix.Close(fd)
		}
	}()
	for addr, n := range a.state.announcements {
		if n.due.After(now) {
			continue
		}
		n.due = now.Add(a.announceInterval)
		if n.left--; n.left == 0 {
			delete(a.state.announcements, addr)
		}
		if err := sendGratuitous(sockets, addr, n); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to announce an egress IP", "egressIP", addr, "left", n.left)
		}
	}
}

// sendGratuitous sends both forms: some hosts update their entries after requests only, some after replies only.
func sendGratuitous(sockets map[int]int, addr netip.Addr, n *announcement) error {
	fd, ok := sockets[n.index]
	if !ok {
		var err error
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil { // 0: it receives nothing
			return fmt.Errorf("open packet socket: %w", err)
		}
		sockets[n.index] = fd
	}
	to := unix.SockaddrLinklayer{Ifindex: n.index, Halen: macLength}
	for i := range macLength {
		to.Addr[i] = 0xff
	}
	for _, operation := range []uint16{arpRequest, arpReply} {
		if err := unix.Sendto(fd, gratuitousARP(operation, addr, n.mac), 0, &to); err != nil {
			return fmt.Errorf("send gratuitous ARP: %w", err)
		}
	}
	return nil
}

// gratuitousARP returns a broadcast frame with the address as that of sender and target (RFC 5227, section 3, and RFC 5944, section 4.6).
func gratuitousARP(operation uint16, addr netip.Addr, mac net.HardwareAddr) []byte {
	const ethernet, ipv4 = 1, unix.ETH_P_IP
	frame := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	frame = append(frame, mac...)
	frame = binary.BigEndian.AppendUint16(frame, unix.ETH_P_ARP)
	frame = binary.BigEndian.AppendUint16(frame, ethernet)
	frame = binary.BigEndian.AppendUint16(frame, ipv4)
	frame = append(frame, macLength, net.IPv4len)
	frame = binary.BigEndian.AppendUint16(frame, operation)
	frame = append(frame, mac...)
	frame = append(frame, addr.AsSlice()...)
	target := make(net.HardwareAddr, macLength) // ignored in a request
	if operation == arpReply {
		target = mac
	}
	frame = append(frame, target...)
	return append(frame, addr.AsSlice()...)
}

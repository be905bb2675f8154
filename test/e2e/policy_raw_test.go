package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// hearRaw reports all packets of an IP protocol that arrive at an end, without their header.
func hearRaw(t *testing.T, at end, protocol int, heard func(from netip.Addr, packet []byte)) net.PacketConn {
	t.Helper()
	conn, err := at.NetNS.ListenPacket(fmt.Sprintf("ip4:%d", protocol), at.Addr.String())
	if err != nil {
		t.Fatal(err)
	}
	var hearing sync.WaitGroup
	hearing.Go(func() {
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if addr, ok := netip.AddrFromSlice(addrOf(from)); err == nil && ok {
				heard(addr.Unmap(), buffer[:n])
			}
		}
	})
	t.Cleanup(func() { conn.Close(); hearing.Wait() })
	return conn
}

func addrOf(from net.Addr) net.IP {
	if addr, ok := from.(*net.IPAddr); ok {
		return addr.IP
	}
	return nil
}

// readSegment reads what the prober sends, and the answers to it. An echo has its round in its data.
func readSegment(protocol int, packet []byte) (source, destination uint16, asks, ok bool) {
	if len(packet) < 8 {
		return 0, 0, false, false
	}
	source, destination = binary.BigEndian.Uint16(packet), binary.BigEndian.Uint16(packet[2:])
	asks, ok = destination < firstRound, true
	switch {
	case protocol == wire.ProtocolICMP && len(packet) == 10:
		round := binary.BigEndian.Uint16(packet[8:])
		switch packet[0] {
		case 8: // echo request
			return round, 0, true, true
		case 0:
			return 0, round, false, true
		}
		return 0, 0, false, false
	case protocol == wire.ProtocolICMP:
		return 0, 0, false, false
	case protocol == wire.ProtocolTCP: // the kernel ends what it did not begin with a RST
		flags := packet[13]
		ok = asks && flags == wire.TCPSYN || !asks && flags == wire.TCPSYN|wire.TCPACK
	}
	return source, destination, asks, ok
}

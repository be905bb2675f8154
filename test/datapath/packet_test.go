package datapath_test

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// icmpCode is a code of ICMP's type 3, destination unreachable (RFC 792).
type icmpCode byte

const (
	portUnreachable     icmpCode = 3
	fragmentationNeeded icmpCode = 4
)

// icmpError is an ICMP error about a UDP packet.
func icmpError(code icmpCode, from, to netip.AddrPort, payload []byte) []byte {
	big := binary.BigEndian
	datagram := big.AppendUint16(nil, from.Port())
	datagram = big.AppendUint16(datagram, to.Port())
	datagram = big.AppendUint16(datagram, uint16(8+len(payload)))
	datagram = append(datagram, 0, 0) // no checksum
	datagram = append(datagram, payload...)

	header := []byte{0x45, 0}
	header = big.AppendUint16(header, uint16(20+len(datagram)))
	header = append(header, 0, 0, 0, 0, 64, udp, 0, 0)
	header = append(header, from.Addr().AsSlice()...)
	header = append(header, to.Addr().AsSlice()...)
	big.PutUint16(header[10:], checksum(header))

	message := append([]byte{3, byte(code), 0, 0, 0, 0, 0, 0}, header...)
	message = append(message, datagram...)
	big.PutUint16(message[2:], checksum(message))
	return message
}

// checksum is RFC 1071's.
func checksum(b []byte) uint16 {
	var sum uint32
	for i, octet := range b {
		if i%2 == 0 {
			sum += uint32(octet) << 8
		} else {
			sum += uint32(octet)
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// sctpInit is an SCTP packet with an INIT chunk (RFC 9260, 3.3.2), which ends in the message.
func sctpInit(from, to uint16, message []byte) []byte {
	for len(message)%4 != 0 {
		message = append([]byte{' '}, message...)
	}
	big := binary.BigEndian
	p := big.AppendUint16(nil, from)
	p = big.AppendUint16(p, to)
	p = append(p, 0, 0, 0, 0, 0, 0, 0, 0) // verification tag, which INIT has not, and checksum
	p = append(p, 1, 0)                   // INIT
	p = big.AppendUint16(p, uint16(20+4+len(message)))
	p = append(p, 0, 0, 0, 1, 0, 0, 0xff, 0xff, 0, 1, 0, 1, 0, 0, 0, 1) // tag, window, streams, first TSN
	p = append(p, 0x80, 1)                                              // a parameter to be skipped
	p = big.AppendUint16(p, uint16(4+len(message)))
	p = append(p, message...)
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}

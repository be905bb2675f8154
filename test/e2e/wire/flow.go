package wire

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Flow is the sender of a frame on its link, and the addresses and ports of its packet.
type Flow struct {
	From     net.HardwareAddr
	Src, Dst netip.AddrPort
}

// ParseFlow returns the flow of a frame with TCP or UDP over IPv4. It reports false for other frames, and for all fragments but the first.
func ParseFlow(frame []byte) (f Flow, ok bool) {
	const ethernet, ipv4, ports, fragmentOffset = 14, 20, 4, 0x1fff
	if len(frame) < ethernet+ipv4 || binary.BigEndian.Uint16(frame[12:]) != TypeIPv4 {
		return f, false
	}
	packet := frame[ethernet:]
	header := int(packet[0]&0xf) * 4
	isKnown := packet[9] == ProtocolTCP || packet[9] == ProtocolUDP
	if !isKnown || binary.BigEndian.Uint16(packet[6:])&fragmentOffset != 0 || len(packet) < header+ports {
		return f, false
	}
	src, dst := netip.AddrFrom4([4]byte(packet[12:16])), netip.AddrFrom4([4]byte(packet[16:20]))
	return Flow{
		From: net.HardwareAddr(frame[6:12]),
		Src:  netip.AddrPortFrom(src, binary.BigEndian.Uint16(packet[header:])),
		Dst:  netip.AddrPortFrom(dst, binary.BigEndian.Uint16(packet[header+2:])),
	}, true
}

package podinterface

import (
	"encoding/binary"
	"net/netip"
)

// The range of OpenFlow port numbers that pods request. Open vSwitch never assigns them to a port without a request
// (ovs-vswitchd.conf.db(5), "OpenFlow Port Number").
const (
	FirstOFPort = 0x8000
	LastOFPort  = 0xfeff // OFPP_MAX is 0xff00 (OpenFlow 1.0, 5.2.1)
)

// maxHostBits is the number of host bits of the largest subnet for whose addresses the range suffices.
const maxHostBits = 15

// OFPort returns the OpenFlow port number of the address, unique in the node's subnets, or 0 if the range does not suffice.
func OFPort(addr netip.Addr, subnets []netip.Prefix) int {
	number := FirstOFPort
	for _, subnet := range subnets {
		if subnet.Addr().BitLen() != addr.BitLen() {
			continue
		}
		hostBits := addr.BitLen() - subnet.Bits()
		if hostBits > maxHostBits {
			return 0
		}
		size := 1 << hostBits
		if subnet.Contains(addr) {
			bytes := addr.AsSlice()
			number += int(binary.BigEndian.Uint16(bytes[len(bytes)-2:])) & (size - 1)
			if number > LastOFPort {
				return 0
			}
			return number
		}
		number += size
	}
	return 0
}

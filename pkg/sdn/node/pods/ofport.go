package pods

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// The range of OpenFlow port numbers that pods request. Open vSwitch never assigns them to a port without a request
// (ovs-vswitchd.conf.db(5), "OpenFlow Port Number").
const (
	firstOFPort = 0x8000
	lastOFPort  = 0xfeff // OFPP_MAX is 0xff00 (OpenFlow 1.0, 5.2.1)
)

// maxHostBits is the number of host bits of the largest subnet for whose addresses the range suffices.
const maxHostBits = 15

// ofportOf returns the OpenFlow port number of the address, unique in the node's subnets, or 0 if the range does not suffice.
func ofportOf(addr netip.Addr, subnets []netip.Prefix) int {
	number := firstOFPort
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
			if number > lastOFPort {
				return 0
			}
			return number
		}
		number += size
	}
	return 0
}

// freeOFPort returns the port number to request, or 0 if another port has it: one of another program, or one from a time when the node had
// other subnets. Flows may use the number before the port exists: no other ADD requests it while the pod has the addresses.
func (m *Manager) freeOFPort(ctx context.Context, addrs []netip.Addr) (int, error) {
	number := ofportOf(addrs[0], m.Subnets)
	if number == 0 {
		return 0, nil
	}
	ports, err := m.bridge.ListPorts(ctx)
	if err != nil {
		return 0, fmt.Errorf("find a free OpenFlow port number: %w", err)
	}
	if slices.ContainsFunc(ports, func(p ovs.Port) bool { return p.OFPort == number }) {
		return 0, nil
	}
	return number, nil
}

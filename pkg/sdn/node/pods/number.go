package pods

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// The OpenFlow port numbers that pods ask for. Open vSwitch gives none of them to a port that asks for none
// (ovs-vswitchd.conf.db(5), "OpenFlow Port Number").
const (
	firstNumber = 0x8000
	lastNumber  = 0xfeff // OFPP_MAX is 0xff00 (OpenFlow 1.0, 5.2.1)
)

// maxHostBits is of the largest subnet whose addresses have a number each.
const maxHostBits = 15

// numberOf is the OpenFlow port number of the address, which no other address of the node's subnets has; 0 if there is none for it.
func numberOf(addr netip.Addr, subnets []netip.Prefix) int {
	number := firstNumber
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
			if number > lastNumber {
				return 0
			}
			return number
		}
		number += size
	}
	return 0
}

// freeNumber returns the number to ask for, 0 if it can't be had. Flows may have it before the port has: while the addresses are the pod's
// no other ADD asks for it, but ports that are there may have it, from a time when the node had other subnets, or from somebody else.
func (m *Manager) freeNumber(ctx context.Context, addrs []netip.Addr) (int, error) {
	number := numberOf(addrs[0], m.Subnets)
	if number == 0 {
		return 0, nil
	}
	ports, err := m.bridge.ListPorts(ctx)
	if err != nil {
		return 0, fmt.Errorf("look for a free port number: %w", err)
	}
	if slices.ContainsFunc(ports, func(p ovs.Port) bool { return p.OFPort == number }) {
		return 0, nil
	}
	return number, nil
}

package policy

import (
	"math/bits"

	corev1 "k8s.io/api/core/v1"
)

// PortMatch matches the destination ports of a protocol that equal Port in the bits of Mask; Mask 0 matches all ports.
type PortMatch struct {
	Protocol corev1.Protocol
	Port     uint16
	Mask     uint16
}

const exactPort uint16 = 0xffff

// portRange returns the fewest masks that match the ports from first to last, both included: at most 30.
func portRange(protocol corev1.Protocol, first, last uint16) []PortMatch {
	var out []PortMatch
	for next := uint32(first); next <= uint32(last); {
		// The largest aligned block that begins here and ends at the last port or before.
		size := uint32(1) << min(bits.TrailingZeros32(next|1<<16), bits.Len32(uint32(last)-next+1)-1)
		out = append(out, PortMatch{protocol, uint16(next), uint16(1<<16 - size)}) //nolint:gosec // both are below 1<<16
		next += size
	}
	return out
}

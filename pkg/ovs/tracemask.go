package ovs

import (
	"encoding/binary"
	"maps"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// bits is the value of a field, and which of its bits are matched.
type bits struct{ value, mask uint64 }

func (b bits) match(value uint64) bool { return value&b.mask == b.value&b.mask }

// variableFields are those in which packets of a megaflow may differ, as reports name them.
func variableFields() []string { return []string{"dl_src", "dl_dst", "nw_src", "nw_dst", "tp_dst"} }

// fields returns the variable fields of the packet, as reports print them.
func (p TracePacket) fields() map[string]string {
	return map[string]string{
		"dl_src": p.EthSource.String(), "dl_dst": p.EthDest.String(), "nw_src": p.Source.String(), "nw_dst": p.Dest.String(), "tp_dst": strconv.Itoa(int(p.DestPort)),
	}
}

// exactBits returns all bits of the variable fields of a packet.
func exactBits(packet map[string]string) map[string]bits {
	all := map[string]bits{}
	for _, field := range variableFields() {
		if value, ok := fieldValue(packet[field]); ok {
			all[field] = bits{value, math.MaxUint64}
		}
	}
	return all
}

// matchedBits returns what a megaflow matches of the variable fields: those that it does not have are not matched. A form that is unknown is all bits.
func matchedBits(megaflow map[string]string, exact map[string]bits) map[string]bits {
	all := map[string]bits{}
	for field, whole := range exact {
		all[field] = whole
		text := megaflow[field]
		if text == "" {
			all[field] = bits{}
			continue
		}
		value, mask, isMasked := strings.Cut(text, "/")
		v, isValue := fieldValue(value)
		m, isMask := uint64(math.MaxUint64), true
		if isMasked {
			m, isMask = maskValue(mask)
		}
		if isValue && isMask {
			all[field] = bits{v, m}
		}
	}
	return all
}

// fieldValue parses an IPv4 address, a MAC or a port, such as 10.128.0.5, 0a:58:0a:80:00:05, 80 or 0x50.
func fieldValue(text string) (uint64, bool) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Is4() {
		a := addr.As4()
		return uint64(binary.BigEndian.Uint32(a[:])), true
	}
	if mac, err := net.ParseMAC(text); err == nil && len(mac) == 6 {
		return binary.BigEndian.Uint64(append([]byte{0, 0}, mac...)), true
	}
	n, err := strconv.ParseUint(text, 0, 16)
	return n, err == nil
}

// maskValue parses a mask: 23, 0.0.31.255, ff:ff:ff:00:00:00 or 0xfff0.
func maskValue(text string) (uint64, bool) {
	if length, err := strconv.ParseUint(text, 10, 8); err == nil {
		return math.MaxUint32 << (32 - min(length, 32)) & math.MaxUint32, length <= 32
	}
	return fieldValue(text)
}

// For returns the trace of a packet that differs from this one's at most in its addresses and its destination port. It returns false if the packet may take another path:
// if a flow that was looked up distinguishes the two, or an action changed what differs, or vswitchd ended the evaluation.
func (t *Trace) For(packet TracePacket) (*Trace, bool) {
	changes := map[string]string{}
	for field, value := range packet.fields() {
		if len(t.Passes) == 0 || t.Passes[0].Start[field] != value {
			changes[field] = value
		}
	}
	other := &Trace{Passes: make([]TracePass, len(t.Passes)), Forks: t.Forks}
	for i, pass := range t.Passes {
		for field, value := range changes {
			number, isValue := fieldValue(value)
			matched, isKnown := pass.megaflow[field]
			before := t.Passes[0].Start[field]
			if !isValue || !isKnown || !matched.match(number) || pass.Failure != "" || pass.Start[field] != before || pass.End[field] != before {
				return nil, false
			}
		}
		pass.Start, pass.End = withFields(pass.Start, changes), withFields(pass.End, changes)
		other.Passes[i] = pass
	}
	return other, len(t.Passes) > 0
}

func withFields(fields, changes map[string]string) map[string]string {
	fields = maps.Clone(fields)
	maps.Copy(fields, changes)
	return fields
}

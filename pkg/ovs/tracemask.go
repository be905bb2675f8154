package ovs

import (
	"encoding/binary"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Fields in which the packets of a megaflow may differ, as reports name them.
const (
	sourceField   = "nw_src"
	destField     = "nw_dst"
	destPortField = "tp_dst"
)

// bits is the value of a field, and which of its bits are matched.
type bits struct{ value, mask uint32 }

func (b bits) match(value uint32) bool { return value&b.mask == b.value&b.mask }

// exactBits returns all bits of the variable fields of a packet.
func exactBits(packet map[string]string) map[string]bits {
	all := map[string]bits{}
	for _, field := range []string{sourceField, destField, destPortField} {
		if value, ok := fieldValue(packet[field]); ok {
			all[field] = bits{value, math.MaxUint32}
		}
	}
	return all
}

// matchedBits returns what a megaflow matches of the variable fields: those that it does not have are not matched. A form that is unknown is all bits.
func matchedBits(megaflow map[string]string, exact map[string]bits) map[string]bits {
	all := map[string]bits{}
	for field, whole := range exact {
		text := megaflow[field]
		if text == "" {
			all[field] = bits{}
			continue
		}
		value, mask, isMasked := strings.Cut(text, "/")
		b := bits{mask: math.MaxUint32}
		var isValue, isMask bool
		b.value, isValue = fieldValue(value)
		if isMask = !isMasked; isMasked {
			b.mask, isMask = maskValue(mask)
		}
		if !isValue || !isMask {
			b = whole
		}
		all[field] = b
	}
	return all
}

// fieldValue parses an IPv4 address or a port, such as 10.128.0.5, 80 or 0x50.
func fieldValue(text string) (uint32, bool) {
	if addr, err := netip.ParseAddr(text); err == nil {
		if !addr.Is4() {
			return 0, false
		}
		a := addr.As4()
		return binary.BigEndian.Uint32(a[:]), true
	}
	n, err := strconv.ParseUint(text, 0, 16)
	return uint32(n), err == nil
}

// maskValue parses a mask: 23, 0.0.31.255 or 0xfff0.
func maskValue(text string) (uint32, bool) {
	if length, err := strconv.Atoi(text); err == nil {
		return uint32(math.MaxUint32 << (32 - length) & math.MaxUint32), length >= 0 && length <= 32
	}
	return fieldValue(text)
}

// For returns the trace of a packet that differs from this one's at most in its addresses and its destination port. It returns false if the packet may take another path:
// if a flow that was looked up distinguishes the two, or an action changed what differs, or vswitchd ended the evaluation.
func (t *Trace) For(source, dest netip.Addr, destPort uint16) (*Trace, bool) {
	if len(t.Passes) == 0 {
		return nil, false
	}
	changes := map[string]string{}
	for field, value := range map[string]string{sourceField: source.String(), destField: dest.String(), destPortField: strconv.Itoa(int(destPort))} {
		before, ok := t.Passes[0].Start[field]
		if !ok {
			return nil, false
		}
		if before == value {
			continue
		}
		changes[field] = value
		isChangeable := func(p TracePass) bool {
			number, ok := fieldValue(value)
			return ok && p.Failure == "" && p.Start[field] == before && p.End[field] == before && p.megaflow[field].match(number)
		}
		if !slices.ContainsFunc(t.Passes, func(p TracePass) bool { return !isChangeable(p) }) {
			continue
		}
		return nil, false
	}
	other := &Trace{Passes: slices.Clone(t.Passes), Forks: t.Forks}
	for i := range other.Passes {
		p := &other.Passes[i]
		p.Start, p.End = withFields(p.Start, changes), withFields(p.End, changes)
	}
	return other, true
}

func withFields(fields, changes map[string]string) map[string]string {
	fields = maps.Clone(fields)
	maps.Copy(fields, changes)
	return fields
}

package openflow

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// maxValue is the size in bytes of the widest field, an IPv6 address.
const maxValue = 16

// Value is the value or mask of a field: a number of up to 128 bits.
type Value struct {
	Hi, Lo uint64
}

// ones returns a Value with the lowest n bits set, n <= 128.
func ones(n int) Value {
	switch {
	case n >= 128:
		return Value{Hi: ^uint64(0), Lo: ^uint64(0)}
	case n >= 64:
		return Value{Hi: 1<<(n-64) - 1, Lo: ^uint64(0)}
	}
	return Value{Lo: 1<<n - 1}
}

func (v Value) isZero() bool        { return v.Hi|v.Lo == 0 }
func (v Value) and(w Value) Value   { return Value{v.Hi & w.Hi, v.Lo & w.Lo} }
func (v Value) or(w Value) Value    { return Value{v.Hi | w.Hi, v.Lo | w.Lo} }
func (v Value) minus(w Value) Value { return Value{v.Hi &^ w.Hi, v.Lo &^ w.Lo} }

func (v Value) shl(n uint) Value {
	if n >= 64 {
		return Value{Hi: v.Lo << (n - 64)}
	}
	return Value{Hi: v.Hi<<n | v.Lo>>(64-n), Lo: v.Lo << n}
}

func (v Value) shr(n uint) Value {
	if n >= 64 {
		return Value{Lo: v.Hi >> (n - 64)}
	}
	return Value{Hi: v.Hi >> n, Lo: v.Lo>>n | v.Hi<<(64-n)}
}

// len returns the number of bits without leading zeros.
func (v Value) len() int {
	if v.Hi != 0 {
		return 64 + bits.Len64(v.Hi)
	}
	return bits.Len64(v.Lo)
}

// prefixLen returns the number of leading ones in a mask of the given width, and whether only zeros follow them.
func (v Value) prefixLen(width int) (int, bool) {
	n := bits.OnesCount64(v.Hi) + bits.OnesCount64(v.Lo)
	return n, v == ones(n).shl(uint(width-n))
}

// bytesOrString is the type of wire data: messages are []byte, canonical matches are strings.
type bytesOrString interface{ ~[]byte | ~string }

// valueOf decodes a big-endian number of at most 16 bytes.
func valueOf[T bytesOrString](b T) Value {
	var v Value
	n := max(len(b)-8, 0)
	for i := range n {
		v.Hi = v.Hi<<8 | uint64(b[i])
	}
	for i := n; i < len(b); i++ {
		v.Lo = v.Lo<<8 | uint64(b[i])
	}
	return v
}

// appendValue appends the lowest n bytes of v in big-endian order, n <= 16.
func appendValue(b []byte, v Value, n int) []byte {
	var full [maxValue]byte
	binary.BigEndian.PutUint64(full[:], v.Hi)
	binary.BigEndian.PutUint64(full[8:], v.Lo)
	return append(b, full[maxValue-n:]...)
}

// appendHex appends the number as C's %#x prints it: zero has no prefix.
func appendHex(b []byte, v Value) []byte {
	if v.isZero() {
		return append(b, '0')
	}
	return appendHexPrefixed(b, v)
}

// appendHexPrefixed appends the number in hexadecimal, always with the prefix 0x.
func appendHexPrefixed(b []byte, v Value) []byte {
	b = append(b, "0x"...)
	if v.Hi == 0 {
		return strconv.AppendUint(b, v.Lo, 16)
	}
	b = strconv.AppendUint(b, v.Hi, 16)
	return appendPaddedHex(b, v.Lo, 16)
}

// appendPaddedHex appends n in hexadecimal, padded with zeros to the number of digits.
func appendPaddedHex(b []byte, n uint64, digits int) []byte {
	for d := digits - 1; d > 0 && n>>(4*d) == 0; d-- {
		b = append(b, '0')
	}
	return strconv.AppendUint(b, n, 16)
}

// parseValue parses a decimal or 0x number of up to 128 bits. Other leading zeros are errors, because ovs-ofctl parses them as octal.
func parseValue(s string, width int) (Value, error) {
	var v Value
	hex, isHex := strings.CutPrefix(s, "0x")
	switch {
	case !isHex:
		n, err := parseUint(s, min(width, 64))
		return Value{Lo: n}, err
	case hex == "":
		return v, fmt.Errorf("%q is not a number", s)
	}
	for _, c := range []byte(hex) {
		d, ok := hexDigit(c)
		if !ok {
			return v, fmt.Errorf("%q is not a number", s)
		}
		if v.len() > width-4 && v.shl(4).or(Value{Lo: uint64(d)}).minus(ones(width)) != (Value{}) || v.len() > 124 {
			return v, fmt.Errorf("%s does not fit into %d bits", s, width)
		}
		v = v.shl(4).or(Value{Lo: uint64(d)})
	}
	return v, nil
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// parseUint parses a decimal or 0x number of up to 64 bits.
func parseUint(s string, width int) (uint64, error) {
	digits, base := s, 10
	if h, ok := strings.CutPrefix(s, "0x"); ok {
		digits, base = h, 16
	} else if len(s) > 1 && s[0] == '0' {
		return 0, fmt.Errorf("%q: write a number in decimal or with 0x", s)
	}
	n, err := strconv.ParseUint(digits, base, width)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("%s does not fit into %d bits", s, width)
	case err != nil:
		return 0, fmt.Errorf("%q is not a number", s)
	}
	return n, nil
}

package openflow

import (
	"encoding/binary"
	"fmt"
)

// maxMessage is the maximum of a 16-bit length field, as in the headers of messages, actions and instructions.
const maxMessage = 1<<16 - 1

// align8 is the alignment of actions, instructions, matches and properties (OpenFlow 1.4.1, 7).
const align8 = 8

func roundUp8(n int) int { return (n + align8 - 1) &^ (align8 - 1) }

// pad8 appends zeros until the data from start on is a multiple of 8 bytes long.
func pad8(b []byte, start int) []byte {
	for (len(b)-start)%align8 != 0 {
		b = append(b, 0)
	}
	return b
}

// zeros appends n zero bytes.
func zeros(b []byte, n int) []byte {
	for range n {
		b = append(b, 0)
	}
	return b
}

// putLength writes the length of the data from start on to the 16 bits at offset at.
func putLength(b []byte, start, at int) error {
	n := len(b) - start
	if n > maxMessage {
		return fmt.Errorf("%d bytes exceed a 16-bit length field", n)
	}
	binary.BigEndian.PutUint16(b[at:], uint16(n))
	return nil
}

func u16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
func u32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }
func u64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

func put16(b []byte, n uint16) []byte { return binary.BigEndian.AppendUint16(b, n) }
func put32(b []byte, n uint32) []byte { return binary.BigEndian.AppendUint32(b, n) }
func put64(b []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(b, n) }

// short returns the error for a part of a message that is shorter than its fixed length.
func short(part string, got, want int) error {
	return fmt.Errorf("%s: %d bytes, at least %d expected", part, got, want)
}

// tlv cuts the first element off a list of elements with a 16-bit length at offset at. ok is false if the length is less than smallest,
// not a multiple of 8, or greater than that of b.
func tlv(b []byte, at, smallest int) (element, rest []byte, ok bool) {
	if len(b) < smallest {
		return nil, b, false
	}
	n := int(u16(b[at:]))
	if n < smallest || n%align8 != 0 || n > len(b) {
		return nil, b, false
	}
	return b[:n], b[n:], true
}

// allZero reports whether reserved bytes are zero; an action with other reserved bytes is treated as unsupported.
func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// property cuts the first property off a list; its length does not include the padding that follows it
// (OpenFlow 1.4.1, 7.2.1).
func property(b []byte) (typ uint16, payload, rest []byte, ok bool) {
	if len(b) < 4 {
		return 0, nil, b, false
	}
	n := int(u16(b[2:]))
	if n < 4 || n > len(b) {
		return 0, nil, b, false
	}
	return u16(b), b[4:n], b[min(roundUp8(n), len(b)):], true
}

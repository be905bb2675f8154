package pcapng

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrFormat is the error of content that is no file of a Writer.
var ErrFormat = errors.New("invalid pcapng file")

func formatf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrFormat}, args...)...)
}

// Block is a block of a file.
type Block struct {
	Raw        []byte      // the whole block, valid until the next one is read
	Packet     *Packet     // nil for other blocks; its Data is part of Raw
	Statistics *Statistics // nil for other blocks
}

// Reader reads a file, whose content it does not trust.
type Reader struct {
	r       io.Reader
	raw     []byte
	isBegun bool
}

// NewReader returns a reader of a file.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Next returns the next block. The error is io.EOF after the last one, io.ErrUnexpectedEOF within a block, or wraps ErrFormat.
func (f *Reader) Next() (*Block, error) {
	f.raw = append(f.raw[:0], make([]byte, blockHead)...)
	if _, err := io.ReadFull(f.r, f.raw); err != nil {
		return nil, err
	}
	kind, length := binary.LittleEndian.Uint32(f.raw), binary.LittleEndian.Uint32(f.raw[4:])
	if f.isBegun == (kind == blockSection) {
		return nil, formatf("it does not consist of one section")
	}
	if length < blockHead+blockTail || length > maxBlock || length%4 != 0 {
		return nil, formatf("a block of %d bytes", length)
	}
	f.raw = append(f.raw, make([]byte, length-blockHead)...)
	if _, err := io.ReadFull(f.r, f.raw[blockHead:]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if binary.LittleEndian.Uint32(f.raw[length-blockTail:]) != length {
		return nil, formatf("the two lengths of a block differ")
	}
	f.isBegun = true
	return parse(kind, f.raw)
}

func parse(kind uint32, raw []byte) (b *Block, err error) {
	b, body := &Block{Raw: raw}, raw[blockHead:len(raw)-blockTail]
	switch kind {
	case blockSection:
		if len(body) < sectionBody || binary.LittleEndian.Uint32(body) != byteOrderMagic || binary.LittleEndian.Uint16(body[4:]) != majorVersion {
			err = formatf("the section is not little-endian, or of another version")
		}
	case blockInterface:
		if len(body) < interfaceBody || binary.LittleEndian.Uint16(body) != linkTypeEthernet {
			err = formatf("an interface without Ethernet")
		}
	case blockPacket:
		b.Packet, err = parsePacket(body)
	case blockStatistics:
		b.Statistics, err = parseStatistics(body)
	default: // such as names for addresses, which programs would show
		err = formatf("a block of an unexpected type")
	}
	return b, err
}

func parsePacket(body []byte) (*Packet, error) {
	if len(body) < packetBody {
		return nil, formatf("a packet of %d bytes", len(body))
	}
	length := binary.LittleEndian.Uint32(body[12:])
	if length > MaxPacket || pad(int(length)) > len(body)-packetBody {
		return nil, formatf("a packet with %d captured bytes", length)
	}
	p := &Packet{Time: timeOf(body[4:]), Length: binary.LittleEndian.Uint32(body[16:]), Data: body[packetBody : packetBody+int(length)]}
	return p, eachOption(body[packetBody+pad(int(length)):], func(code uint16, value []byte) {
		if code == packetFlags && len(value) == 4 {
			p.Direction = Direction(binary.LittleEndian.Uint32(value) & directionMask)
		}
	})
}

func parseStatistics(body []byte) (*Statistics, error) {
	if len(body) < statisticsBody {
		return nil, formatf("statistics of %d bytes", len(body))
	}
	s := &Statistics{Time: timeOf(body[4:])}
	return s, eachOption(body[statisticsBody:], func(code uint16, value []byte) {
		switch {
		case code == optionComment:
			s.Comment = string(value)
		case len(value) != timestampLength:
		case code == statisticsStart:
			s.Start = timeOf(value)
		case code == statisticsReceived:
			s.Received = binary.LittleEndian.Uint64(value)
		case code == statisticsOSDrop:
			s.Dropped = binary.LittleEndian.Uint64(value)
		case code == statisticsDelivered:
			s.Delivered = binary.LittleEndian.Uint64(value)
		}
	})
}

// timeOf returns a time, whose upper 32 bits are the first ones.
func timeOf(b []byte) time.Time {
	return time.Unix(0, int64(uint64(binary.LittleEndian.Uint32(b))<<32|uint64(binary.LittleEndian.Uint32(b[4:])))) //nolint:gosec // any time
}

func eachOption(options []byte, see func(code uint16, value []byte)) error {
	for len(options) > 0 {
		if len(options) < optionHead {
			return formatf("an option of %d bytes", len(options))
		}
		code, length := binary.LittleEndian.Uint16(options), int(binary.LittleEndian.Uint16(options[2:]))
		if options = options[optionHead:]; code == optionEnd {
			return nil
		}
		if pad(length) > len(options) {
			return formatf("an option of %d bytes in %d", length, len(options))
		}
		see(code, options[:length])
		options = options[pad(length):]
	}
	return nil
}

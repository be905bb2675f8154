package pcapng

import (
	"encoding/binary"
	"io"
	"math"
	"time"
)

// Writer writes a file. After an error it must not be used.
type Writer struct {
	w       io.Writer
	block   []byte // is reused
	written int64
}

// NewWriter writes the begin of a file.
func NewWriter(w io.Writer, i Interface) (*Writer, error) {
	f := &Writer{w: w}
	f.begin(blockSection)
	f.uint32(byteOrderMagic)
	f.uint32(majorVersion) // and the minor one, 0
	f.uint32(math.MaxUint32)
	f.uint32(math.MaxUint32) // the length of the section is not known
	f.text(sectionApplication, i.Application)
	if err := f.end(); err != nil {
		return nil, err
	}
	f.begin(blockInterface)
	f.uint32(linkTypeEthernet)
	f.uint32(i.SnapLength)
	f.text(interfaceName, i.Name)
	f.option(interfaceResolution, []byte{nanoseconds})
	if i.Filter != "" {
		f.text(interfaceFilter, "\x00"+i.Filter) // 0: the filter is text
	}
	return f, f.end()
}

// Written returns the size of the file.
func (f *Writer) Written() int64 { return f.written }

// WritePacket writes a packet.
func (f *Writer) WritePacket(p Packet) error {
	f.begin(blockPacket)
	f.uint32(0) // the interface
	f.timestamp(p.Time)
	f.uint32(uint32(len(p.Data))) //nolint:gosec // at most some 64 KiB
	f.uint32(p.Length)
	f.bytes(p.Data)
	f.option(packetFlags, binary.LittleEndian.AppendUint32(nil, uint32(p.Direction)))
	return f.end()
}

// WriteStatistics writes counters.
func (f *Writer) WriteStatistics(s Statistics) error {
	f.begin(blockStatistics)
	f.uint32(0) // the interface
	f.timestamp(s.Time)
	for _, o := range []struct {
		code  uint16
		value time.Time
	}{{statisticsStart, s.Start}, {statisticsEnd, s.Time}} {
		f.head(o.code, timestampLength)
		f.timestamp(o.value)
	}
	for _, o := range []struct {
		code  uint16
		value uint64
	}{
		// As dumpcap writes them: Wireshark shows isb_ifdrop.
		{statisticsReceived, s.Received}, {statisticsIfDrop, s.Dropped}, {statisticsOSDrop, s.Dropped}, {statisticsDelivered, s.Delivered},
	} {
		f.option(o.code, binary.LittleEndian.AppendUint64(nil, o.value))
	}
	if s.Comment != "" {
		f.text(optionComment, s.Comment)
	}
	return f.end()
}

func (f *Writer) begin(kind uint32) {
	f.block = f.block[:0]
	f.uint32(kind)
	f.uint32(0) // the length, which end sets
}

// end writes the block.
func (f *Writer) end() error {
	f.head(optionEnd, 0)
	length := uint32(len(f.block) + blockTail) //nolint:gosec // at most some 64 KiB
	f.uint32(length)
	binary.LittleEndian.PutUint32(f.block[4:], length)
	n, err := f.w.Write(f.block)
	f.written += int64(n)
	return err
}

func (f *Writer) uint32(v uint32) { f.block = binary.LittleEndian.AppendUint32(f.block, v) }

// timestamp appends a time: the upper 32 bits first.
func (f *Writer) timestamp(t time.Time) {
	n := uint64(t.UnixNano()) //nolint:gosec // after 1970
	f.uint32(uint32(n >> 32))
	f.uint32(uint32(n)) //nolint:gosec // the lower bits
}

// bytes appends the content with its padding.
func (f *Writer) bytes(content []byte) {
	f.block = append(f.block, content...)
	f.block = append(f.block, make([]byte, pad(len(content))-len(content))...)
}

func (f *Writer) head(code uint16, length int) {
	f.block = binary.LittleEndian.AppendUint16(f.block, code)
	f.block = binary.LittleEndian.AppendUint16(f.block, uint16(length)) //nolint:gosec // at most maxOption
}

func (f *Writer) option(code uint16, value []byte) {
	f.head(code, len(value))
	f.bytes(value)
}

func (f *Writer) text(code uint16, text string) {
	f.option(code, []byte(text[:min(len(text), maxOption)]))
}

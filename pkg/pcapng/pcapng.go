// Package pcapng writes and reads files of the format pcapng (draft-ietf-opsawg-pcapng) with one section, one interface, and times in nanoseconds: what a capture
// of one interface needs. Files are little-endian.
package pcapng

import "time"

// Types of blocks.
const (
	blockSection     = 0x0a0d0d0a
	blockInterface   = 1
	blockStatistics  = 5
	blockPacket      = 6
	byteOrderMagic   = 0x1a2b3c4d
	majorVersion     = 1
	linkTypeEthernet = 1
)

// Codes of options. Those of different blocks have different meanings.
const (
	optionEnd     = 0
	optionComment = 1

	sectionApplication = 4

	interfaceName       = 2
	interfaceResolution = 9
	interfaceFilter     = 11

	packetFlags = 2

	statisticsStart     = 2
	statisticsEnd       = 3
	statisticsReceived  = 4 // isb_ifrecv
	statisticsIfDrop    = 5 // isb_ifdrop
	statisticsOSDrop    = 7 // isb_osdrop
	statisticsDelivered = 8 // isb_usrdeliv
)

// nanoseconds is the resolution of times: 10^-9 s.
const nanoseconds = 9

// Sizes in bytes.
const (
	sectionBody     = 16
	interfaceBody   = 8
	packetBody      = 20
	statisticsBody  = 12
	blockHead       = 8
	blockTail       = 4
	optionHead      = 4
	timestampLength = 8

	maxOption = 1 << 10 // of text that the Writer writes; longer text is cut
	// maxBlock is the largest block that the Reader accepts.
	maxBlock = 1 << 18
)

// MaxPacket is the largest number of bytes of a packet that the Reader accepts.
const MaxPacket = 1 << 17

// Direction is the direction of a packet at the interface.
type Direction uint32

// The directions, as in epb_flags.
const (
	DirectionUnknown Direction = iota
	Inbound
	Outbound
)

const directionMask = 3

// Interface describes the captured interface.
type Interface struct {
	Application string // that captures
	Name        string
	Filter      string // "": none
	SnapLength  uint32
}

// Packet is a captured packet.
type Packet struct {
	Time      time.Time
	Direction Direction
	Length    uint32 // of the whole packet
	Data      []byte // its begin
}

// Statistics are counters from the start of the capture until Time. A file can have several; the last ones count.
type Statistics struct {
	Start, Time time.Time
	Received    uint64 // that the filter accepted
	Dropped     uint64 // of them, by the operating system, since the program that captures was late
	Delivered   uint64 // that are in the file
	Comment     string
}

// PacketSize returns the size of the block of a packet with so many bytes of data.
func PacketSize(data int) int64 {
	return int64(blockHead + packetBody + pad(data) + optionHead + 4 + optionHead + blockTail)
}

// pad returns the length with the padding to 32 bits.
func pad(n int) int { return (n + 3) &^ 3 }

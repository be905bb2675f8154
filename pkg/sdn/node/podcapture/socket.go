package podcapture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/pcapng"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

const (
	// receiveBuffer has the packets that were not written yet, in bytes. The kernel counts twice as many, and drops and counts further packets.
	receiveBuffer = 1 << 20

	macsLength  = 12 // of both MAC addresses in a frame
	tagLength   = 4  // of a VLAN tag
	auxLength   = 20 // of struct tpacket_auxdata
	timeLength  = 16 // of struct timespec on 64-bit machines
	controlSize = 128
)

// Bits of tp_status in struct tpacket_auxdata (linux/if_packet.h).
const (
	statusVLAN     = 1 << 4
	statusVLANTPID = 1 << 6
)

// socket is a packet socket that is bound to one interface.
type socket struct {
	file *os.File
	raw  syscall.RawConn
	snap int

	frame   []byte // with room for a VLAN tag at its begin
	control []byte
}

// open returns a socket that receives what the spec asks for. It is bound last: before, it receives nothing.
func open(hostVeth string, spec *diagnostics.CaptureSpec) (*socket, error) {
	if !sandbox.IsHostVeth(hostVeth) {
		return nil, errors.New("the interface is that of no pod")
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0) // protocol 0: none
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	if err := prepare(fd, hostVeth, spec); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), "capture") //nolint:gosec // a file descriptor
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	snap := int(spec.SnapLength)
	return &socket{file: file, raw: raw, snap: snap, frame: make([]byte, tagLength+snap), control: make([]byte, controlSize)}, nil
}

func prepare(fd int, hostVeth string, spec *diagnostics.CaptureSpec) error {
	if err := attach(fd, filter(spec)); err != nil {
		return err
	}
	for _, o := range []struct{ level, option, value int }{
		{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer}, {unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1}, {unix.SOL_PACKET, unix.PACKET_AUXDATA, 1},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.option, o.value); err != nil {
			return fmt.Errorf("set option %d of a packet socket: %w", o.option, err)
		}
	}
	request, err := unix.NewIfreq(hostVeth)
	if err != nil {
		return fmt.Errorf("find the interface of the pod: %w", err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request); err != nil {
		return fmt.Errorf("find the interface of the pod: %w", err)
	}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: int(request.Uint32())}); err != nil {
		return fmt.Errorf("bind packet socket: %w", err)
	}
	return nil
}

// attach sets the filter of a socket.
func attach(fd int, instructions []bpf.Instruction) error {
	raw, err := bpf.Assemble(instructions)
	if err != nil {
		return fmt.Errorf("assemble filter: %w", err)
	}
	filters := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filters[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filters)), Filter: unsafe.SliceData(filters)}); err != nil { //nolint:gosec // some 20
		return fmt.Errorf("attach filter: %w", err)
	}
	return nil
}

// setDeadline lets receive fail with os.ErrDeadlineExceeded from then on.
func (s *socket) setDeadline(t time.Time) { _ = s.file.SetReadDeadline(t) } // fails if the file is closed

// interrupt lets receive fail.
func (s *socket) interrupt() { s.setDeadline(time.Unix(1, 0)) }

// receive returns the next packet, whose data is valid until the next call. Without wait it fails with EAGAIN if none was received.
func (s *socket) receive(wait bool) (pcapng.Packet, error) {
	var n, controlLength int
	var from unix.Sockaddr
	var result error
	err := s.raw.Read(func(fd uintptr) bool {
		n, controlLength, _, from, result = unix.Recvmsg(int(fd), s.frame[tagLength:], s.control, 0) //nolint:gosec // a file descriptor
		return !wait || !errors.Is(result, unix.EAGAIN)
	})
	if err == nil {
		err = result
	}
	if err != nil {
		return pcapng.Packet{}, err
	}
	p := pcapng.Packet{Length: uint32(n), Direction: pcapng.Outbound, Data: s.frame[tagLength : tagLength+n]} //nolint:gosec // at most snap
	if link, ok := from.(*unix.SockaddrLinklayer); ok && link.Pkttype == unix.PACKET_OUTGOING {
		p.Direction = pcapng.Inbound // of the host is to the pod
	}
	s.complete(&p, s.control[:controlLength])
	return p, nil
}

// complete sets what the kernel reports beside the packet: its time, its length, and its VLAN tag, which it has removed.
func (s *socket) complete(p *pcapng.Packet, control []byte) {
	messages, _ := unix.ParseSocketControlMessage(control) // of the kernel
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= timeLength:
			p.Time = time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:]))) //nolint:gosec // a time
		case m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= auxLength:
			p.Length = binary.NativeEndian.Uint32(m.Data[4:])
			s.restoreTag(p, binary.NativeEndian.Uint32(m.Data), binary.NativeEndian.Uint16(m.Data[16:]), binary.NativeEndian.Uint16(m.Data[18:]))
		}
	}
	if p.Time.IsZero() {
		p.Time = time.Now()
	}
}

// restoreTag inserts the VLAN tag of a frame, if it had one.
func (s *socket) restoreTag(p *pcapng.Packet, status uint32, tci, tpid uint16) {
	if status&statusVLAN == 0 || len(p.Data) < macsLength {
		return
	}
	if status&statusVLANTPID == 0 {
		tpid = unix.ETH_P_8021Q
	}
	copy(s.frame, p.Data[:macsLength])
	binary.BigEndian.PutUint16(s.frame[macsLength:], tpid)
	binary.BigEndian.PutUint16(s.frame[macsLength+2:], tci)
	p.Data = s.frame[:min(len(p.Data)+tagLength, s.snap)]
	p.Length += tagLength
}

// counts returns the packets that the filter accepted since the last call, and those of them that were dropped since the buffer was full.
func (s *socket) counts() (accepted, dropped uint64, err error) {
	var stats *unix.TpacketStats
	var result error
	if err = s.raw.Control(func(fd uintptr) {
		stats, result = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS) //nolint:gosec // a file descriptor
	}); err == nil {
		err = result
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read counters of a packet socket: %w", err)
	}
	return uint64(stats.Packets), uint64(stats.Drops), nil
}

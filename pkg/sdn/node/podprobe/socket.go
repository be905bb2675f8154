package podprobe

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// open creates the socket in the pod's network namespace, bound to the pod's address: a namespace without that address is not the pod's. ns.NetNS.Do switches
// a locked thread, which ends if it can't be restored.
func (p Probe) open(pod ns.NetNS) (*os.File, error) {
	kind := map[uint8]int{unix.IPPROTO_TCP: unix.SOCK_STREAM, unix.IPPROTO_UDP: unix.SOCK_DGRAM, unix.IPPROTO_ICMP: unix.SOCK_RAW}[p.Protocol]
	if kind == 0 {
		return nil, fmt.Errorf("protocol %d is not supported", p.Protocol)
	}
	fd := -1
	err := pod.Do(func(ns.NetNS) (err error) {
		fd, err = unix.Socket(unix.AF_INET, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(p.Protocol))
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, fmt.Errorf("create a socket in the pod's network namespace: %w", err)
	}
	if err = p.setOptions(fd); err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrInet4{Addr: p.Source.As4()}))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a socket with the pod's address: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "probe"), nil //nolint:gosec // a file descriptor
}

const (
	icmpFilter = 1 // option ICMP_FILTER of a raw socket (linux/icmp.h): a bit for each type that it does not receive
	echoReply  = 0
	echo       = 8
)

func (p Probe) setOptions(fd int) error {
	if p.Protocol == unix.IPPROTO_TCP {
		// connect selects a port as for the pod's own sockets: one that is in use to other destinations.
		return os.NewSyscallError("setsockopt IP_BIND_ADDRESS_NO_PORT", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1))
	}
	// Without it the kernel reports only some ICMP errors to such sockets (ip(7)).
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1); err != nil {
		return os.NewSyscallError("setsockopt IP_RECVERR", err)
	}
	if p.Protocol == unix.IPPROTO_ICMP {
		return os.NewSyscallError("setsockopt ICMP_FILTER", unix.SetsockoptInt(fd, unix.SOL_RAW, icmpFilter, ^(1<<echoReply)))
	}
	return nil
}

func (p Probe) address() unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: p.Destination.Addr().As4(), Port: int(p.Destination.Port())}
}

// connect opens a TCP connection. The caller closes it.
func (p Probe) connect(raw syscall.RawConn) error {
	var result error
	isFirst := true
	err := raw.Write(func(fd uintptr) bool {
		result = unix.Connect(int(fd), p.address()) //nolint:gosec // a file descriptor
		if errors.Is(result, unix.EINPROGRESS) || errors.Is(result, unix.EALREADY) {
			isFirst = false
			return false
		}
		return true
	})
	if err != nil {
		return err
	}
	if result != nil && isFirst {
		return &sendError{result}
	}
	return result
}

// maxForeign is the number of packets of the destination, other than the answer, after which a probe ends: a destination can send any number.
const maxForeign = 1000

var errForeign = errors.New("the destination sends many packets that are no answer")

// exchange sends a packet, and waits for the answer. A connected socket receives packets of the destination only.
func (p Probe) exchange(raw syscall.RawConn, packet []byte, isAnswer func([]byte) bool) error {
	var result error
	err := raw.Control(func(fd uintptr) {
		if result = unix.Connect(int(fd), p.address()); result == nil { //nolint:gosec // a file descriptor
			_, result = unix.Write(int(fd), packet) //nolint:gosec // a file descriptor
		}
	})
	if err != nil {
		return err
	}
	if result != nil {
		return &sendError{result}
	}
	buffer := make([]byte, maxIPHeader+messageSize) // a longer packet is cut
	for range maxForeign {
		n := 0
		if err := raw.Read(func(fd uintptr) bool {
			n, result = unix.Read(int(fd), buffer) //nolint:gosec // a file descriptor
			return !errors.Is(result, unix.EAGAIN)
		}); err != nil {
			return err
		}
		if result != nil || isAnswer(buffer[:n]) {
			return result
		}
	}
	return errForeign
}

// ICMP echo messages (RFC 792): type, code, checksum, identifier, sequence number, data. The data of a probe is random.
const (
	headerSize  = 8
	messageSize = headerSize + 16
	maxIPHeader = 60
)

// newEcho returns an echo request with a random identifier, sequence number and data.
func newEcho() []byte {
	message := make([]byte, messageSize)
	rand.Read(message[4:]) // never fails (crypto/rand)
	message[0] = echo
	var sum uint32
	for i := 0; i < messageSize; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(message[i:]))
	}
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum)) //nolint:gosec // RFC 1071: the lower bits
	return message
}

// isReplyTo reports whether the packet, which begins with its IP header, is the reply with the request's identifier, sequence number and data.
func isReplyTo(packet, request []byte) bool {
	if len(packet) == 0 {
		return false
	}
	header := int(packet[0]&0xf) * 4
	if len(packet) < header+messageSize {
		return false
	}
	message := packet[header:]
	return message[0] == echoReply && bytes.Equal(message[4:messageSize], request[4:])
}

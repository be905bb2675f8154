package pinger

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ICMP echo messages (RFC 792): type, code, checksum, identifier, sequence number, data. The data of a probe is a nonce and its number.
const (
	echoReply   = 0
	echoRequest = 8

	headerSize  = 8
	nonceSize   = 8
	messageSize = headerSize + nonceSize + 8
	ipHeader    = 20 // without options
	maxIPHeader = 60
)

// icmpSocket is a raw socket. Its filter passes only replies with its identifier: pods can send any number of others to the host.
type icmpSocket struct {
	conn  *net.IPConn
	nonce [nonceSize]byte // of the requests of this socket
	buf   [maxIPHeader + messageSize]byte
}

// OpenICMP opens a raw ICMP socket, which needs CAP_NET_RAW.
func OpenICMP() (Socket, error) {
	conn, err := net.ListenIP("ip4:icmp", nil)
	if err != nil {
		return nil, err
	}
	s := &icmpSocket{conn: conn}
	rand.Read(s.nonce[:]) // never fails (crypto/rand)
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	filter := repliesTo(binary.BigEndian.Uint16(s.nonce[:2]))
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]} //nolint:gosec // some instructions
	var optionErr error
	err = raw.Control(func(fd uintptr) {
		optionErr = errors.Join(
			unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)) // sets DF and ignores the known MTU of the path
	})
	if err := errors.Join(err, optionErr); err != nil {
		return nil, errors.Join(fmt.Errorf("set options of an ICMP socket: %w", err), conn.Close())
	}
	return s, nil
}

// repliesTo is the program of a socket filter (bpf(4)) that passes echo replies with the identifier. Packets begin with the IP header, whose length BPF_MSH
// loads.
func repliesTo(identifier uint16) []unix.SockFilter {
	const identifierOffset = 4
	return []unix.SockFilter{
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_IND},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: echoReply, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: identifierOffset},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(identifier), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: maxIPHeader + messageSize}, // as much as Receive reads
		{Code: unix.BPF_RET | unix.BPF_K},
	}
}

// Send implements Socket.
func (s *icmpSocket) Send(to netip.Addr, size int, number uint64) error {
	message := make([]byte, max(size-ipHeader, messageSize))
	message[0] = echoRequest
	copy(message[4:6], s.nonce[:2])                          // identifier
	binary.BigEndian.PutUint16(message[6:8], uint16(number)) //nolint:gosec // the lowest bits
	copy(message[headerSize:], s.nonce[:])                   // data
	binary.BigEndian.PutUint64(message[headerSize+nonceSize:], number)
	binary.BigEndian.PutUint16(message[2:4], checksum(message))
	_, err := s.conn.WriteToIP(message, &net.IPAddr{IP: to.AsSlice()})
	return err
}

// Receive implements Socket.
func (s *icmpSocket) Receive() (from netip.Addr, number uint64, err error) {
	for {
		n, source, err := s.conn.ReadFromIP(s.buf[:]) // a longer message is cut
		if err != nil {
			return netip.Addr{}, 0, err
		}
		addr, isAddr := netip.AddrFromSlice(source.IP)
		if number, ok := s.parse(s.buf[:n]); ok && isAddr {
			return addr.Unmap(), number, nil
		}
	}
}

// parse returns the number of a reply to a request of this socket.
func (s *icmpSocket) parse(message []byte) (number uint64, ok bool) {
	if len(message) < messageSize || message[0] != echoReply || !bytes.Equal(message[headerSize:headerSize+nonceSize], s.nonce[:]) {
		return 0, false
	}
	return binary.BigEndian.Uint64(message[headerSize+nonceSize:]), true
}

// Close implements Socket.
func (s *icmpSocket) Close() error { return s.conn.Close() }

// checksum is that of RFC 1071.
func checksum(message []byte) uint16 {
	var sum uint32
	for i := 0; i < len(message); i += 2 {
		sum += uint32(message[i]) << 8
		if i+1 < len(message) {
			sum += uint32(message[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum) //nolint:gosec // of 16 bits now
}

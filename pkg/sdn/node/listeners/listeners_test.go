package listeners

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The sockets at one port are those that List returns for all ports.
func TestList_port(t *testing.T) {
	tcp, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	both, err := net.ListenPacket("udp", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	for _, tc := range []struct {
		protocol uint8
		addr     net.Addr
		want     string // the address of the socket
	}{
		{unix.IPPROTO_TCP, tcp.Addr(), "127.0.0.1"},
		{unix.IPPROTO_UDP, both.LocalAddr(), "0.0.0.0"},
	} {
		port := netip.MustParseAddrPort(tc.addr.String()).Port()
		want := Listener{Addr: netip.MustParseAddr(tc.want), Port: port, UID: uint32(os.Getuid())} //nolint:gosec // not negative
		got, err := List(tc.protocol, port)
		if err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("protocol %d, port %d: got %v (%v), want %v only", tc.protocol, port, got, err, want)
		}
		all, err := List(tc.protocol, 0)
		found := 0
		for _, l := range all {
			if l == want {
				found++
			}
		}
		if found != 1 || err != nil {
			t.Errorf("protocol %d, all ports: got %v (%v), want %v among them", tc.protocol, all, err, want)
		}
	}
}

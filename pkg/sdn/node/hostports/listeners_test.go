package hostports

import (
	"net"
	"os"
	"runtime"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/listeners"
)

// Sockets of the host are found without opening their ports.
func TestHostListeners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	netns := newNetNS(t)
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	must(t, netns.Set())
	sh(t, "ip link set lo up")
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	both, err := net.Listen("tcp", "[::]:0")
	must(t, err)
	defer both.Close()
	six, err := net.Listen("tcp6", "[::]:0")
	must(t, err)
	defer six.Close()
	packets, err := net.ListenPacket("udp4", "0.0.0.0:0")
	must(t, err)
	defer packets.Close()
	port := func(a net.Addr) int {
		_, text, err := net.SplitHostPort(a.String())
		must(t, err)
		number, err := net.LookupPort("tcp", text)
		must(t, err)
		return number
	}
	tcps, err := hostListeners(protocolTCP)
	must(t, err)
	udps, err := hostListeners(protocolUDP)
	must(t, err)
	has := func(all []listeners.Listener, m Mapping) bool {
		for _, l := range all {
			if m.receivedBy(l) {
				return true
			}
		}
		return false
	}
	for _, tc := range []struct {
		name      string
		listeners []listeners.Listener
		mapping   Mapping
		want      bool
	}{
		{"one address", tcps, tcp("127.0.0.1", port(l.Addr())), true},
		{"one address, mapping of all", tcps, tcp("", port(l.Addr())), true},
		{"another address", tcps, tcp("192.0.2.1", port(l.Addr())), false},
		{"IPv6 and IPv4", tcps, tcp("192.0.2.1", port(both.Addr())), true},
		{"IPv6 only", tcps, tcp("", port(six.Addr())), false},
		{"UDP", udps, udp("192.0.2.1", port(packets.LocalAddr())), true},
		{"free", tcps, tcp("", 1), false},
	} {
		if got := has(tc.listeners, tc.mapping); got != tc.want {
			t.Errorf("%s: got %t, want %t (TCP %v, UDP %v)", tc.name, got, tc.want, tcps, udps)
		}
	}
}

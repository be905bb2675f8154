package attacks

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// hostileDNS is the DNS server that a node's agent asks, in the hands of the attacker: it answers for any name with the addresses.
type hostileDNS struct {
	mu      sync.Mutex
	addrs   []netip.Addr
	queries int
}

// dnsAddr is the nameserver of the lab's nodes: nothing else listens there.
const dnsAddr = "127.0.0.1:53"

// answerDNS starts the server on a node, until the test ends.
func (w *world) answerDNS(t *testing.T, node fixture.Machine, addrs ...netip.Addr) *hostileDNS {
	t.Helper()
	s := &hostileDNS{addrs: addrs}
	udp, err := node.NetNS.ListenPacket("udp4", dnsAddr)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := node.NetNS.Listen("tcp4", dnsAddr)
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []*dns.Server{{PacketConn: udp, Handler: s}, {Listener: tcp, Handler: s}} {
		started, ended := make(chan struct{}), make(chan error, 1)
		server.NotifyStartedFunc = func() { close(started) }
		go func() { ended <- server.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			if err := server.Shutdown(); err != nil {
				t.Error(err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	return s
}

// ServeDNS implements dns.Handler.
func (s *hostileDNS) ServeDNS(out dns.ResponseWriter, query *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(query)
	m.Compress = true // so that the addresses fit into a datagram
	s.mu.Lock()
	s.queries++
	if len(query.Question) == 1 && query.Question[0].Qtype == dns.TypeA {
		for _, a := range s.addrs {
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: query.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: a.AsSlice()})
		}
	}
	s.mu.Unlock()
	_ = out.WriteMsg(m) // the agent asks again
}

// wasAsked fails if no query has arrived since the last call.
func (s *hostileDNS) wasAsked() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queries == 0 {
		return fmt.Errorf("no query arrives at the DNS server of %s", fixture.Node1)
	}
	s.queries = 0
	return nil
}

package dnsresolver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// serve starts a DNS server on loopback, by UDP and TCP. The handler may return nil, which is no response.
func serve(t *testing.T, handle func(query *dns.Msg, tcp bool) *dns.Msg) Servers {
	t.Helper()
	return serveAll(t, func(query *dns.Msg, tcp bool) []*dns.Msg {
		if m := handle(query, tcp); m != nil {
			return []*dns.Msg{m}
		}
		return nil
	})
}

// serveAll is serve with any number of responses to a query.
func serveAll(t *testing.T, handle func(query *dns.Msg, tcp bool) []*dns.Msg) Servers {
	t.Helper()
	udp, tcp := listen(t)
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		_, isTCP := w.RemoteAddr().(*net.TCPAddr)
		for _, m := range handle(query, isTCP) {
			if err := w.WriteMsg(m); err != nil {
				t.Logf("write response: %v", err)
			}
		}
	})
	for _, s := range []*dns.Server{{PacketConn: udp, Handler: handler}, {Listener: tcp, Handler: handler}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { _ = s.ActivateAndServe() }() // ends with Shutdown
		<-started
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return func() ([]string, error) { return []string{udp.LocalAddr().String()}, nil }
}

// listen listens on one port of both protocols. A free port of UDP may be in use by another test's TCP: then another one is tried.
func listen(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	const attempts = 100
	var listen net.ListenConfig
	for i := 1; ; i++ {
		udp, err := listen.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		tcp, err := listen.Listen(t.Context(), "tcp", udp.LocalAddr().String())
		if err == nil {
			return udp, tcp
		}
		_ = udp.Close()
		if !errors.Is(err, syscall.EADDRINUSE) || i == attempts {
			t.Fatal(err)
		}
	}
}

// respond returns a response of records in the format of zone files.
func respond(query *dns.Msg, records ...string) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(query)
	for _, record := range records {
		rr, err := dns.NewRR(record)
		if err != nil {
			panic(err)
		}
		m.Answer = append(m.Answer, rr)
	}
	return m
}

// lookUp is a response, and its meaning.
type lookUp struct {
	handle func(query *dns.Msg, tcp bool) *dns.Msg
	want   []string
	ttl    time.Duration
	err    bool
}

func lookUps() map[string]lookUp {
	const name = "www.example.com."
	a := func(i int) string { return fmt.Sprintf("www.example.com. 300 IN A 192.0.2.%d", i) }
	return map[string]lookUp{
		"addresses":   {func(q *dns.Msg, _ bool) *dns.Msg { return respond(q, a(2), a(1), a(2)) }, []string{"192.0.2.1", "192.0.2.2"}, 300 * time.Second, false},
		"other names": {func(q *dns.Msg, _ bool) *dns.Msg { return respond(q, "evil.example.com. 300 IN A 192.0.2.1", a(2)) }, []string{"192.0.2.2"}, 300 * time.Second, false},
		"chain": {func(q *dns.Msg, _ bool) *dns.Msg {
			return respond(q, name+" 60 IN CNAME b.example.com.", "B.example.com. 20 IN A 192.0.2.1")
		}, []string{"192.0.2.1"}, 20 * time.Second, false},
		"loop": {func(q *dns.Msg, _ bool) *dns.Msg {
			return respond(q, name+" 60 IN CNAME b.example.com.", "b.example.com. 60 IN CNAME "+name)
		}, nil, 0, true},
		"loop elsewhere": {func(q *dns.Msg, _ bool) *dns.Msg {
			return respond(q, name+" 60 IN CNAME b.example.com.", "b.example.com. 60 IN CNAME c.example.com.", "c.example.com. 60 IN CNAME b.example.com.")
		}, nil, 0, true},
		"only the alias": {onlyAlias, []string{"192.0.2.9"}, 30 * time.Second, false},
		"alias to itself": {func(q *dns.Msg, _ bool) *dns.Msg {
			return respond(q, q.Question[0].Name+" 60 IN CNAME "+q.Question[0].Name)
		}, nil, 0, true},
		"endless aliases": {func(q *dns.Msg, _ bool) *dns.Msg {
			return respond(q, q.Question[0].Name+" 60 IN CNAME a."+q.Question[0].Name)
		}, nil, 0, true},
		"no address": {func(q *dns.Msg, _ bool) *dns.Msg { return respond(q) }, nil, minInterval, false},
		"no name": {func(q *dns.Msg, _ bool) *dns.Msg {
			m := respond(q)
			m.Rcode = dns.RcodeNameError
			soa, _ := dns.NewRR("example.com. 100 IN SOA ns.example.com. root.example.com. 1 2 3 4 50")
			m.Ns = append(m.Ns, soa)
			return m
		}, nil, 50 * time.Second, false},
		"failure": {func(q *dns.Msg, _ bool) *dns.Msg { m := respond(q, a(1)); m.Rcode = dns.RcodeServerFailure; return m }, nil, 0, true},
		"other question": {func(q *dns.Msg, _ bool) *dns.Msg {
			m := respond(q, a(1))
			m.Question[0].Name = "evil.example.com."
			return m
		}, nil, 0, true},
		"truncated": {func(q *dns.Msg, tcp bool) *dns.Msg {
			if tcp {
				return respond(q, a(1), a(2))
			}
			m := respond(q, a(1))
			m.Truncated = true
			return m
		}, []string{"192.0.2.1", "192.0.2.2"}, 300 * time.Second, false},
		"truncated always": {func(q *dns.Msg, _ bool) *dns.Msg { m := respond(q, a(1)); m.Truncated = true; return m }, nil, 0, true},
		"timeout":          {func(*dns.Msg, bool) *dns.Msg { return nil }, nil, 0, true},
	}
}

func TestLookUp(t *testing.T) {
	for what, tc := range lookUps() {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r, err := client{serve(t, tc.handle)}.lookUp(t.Context(), "www.example.com")
			if (err != nil) != tc.err {
				t.Fatalf("got error %v, want one: %t", err, tc.err)
			}
			var got []string
			for _, addr := range r.addrs {
				got = append(got, addr.String())
			}
			if !slices.Equal(got, tc.want) || r.ttl != tc.ttl {
				t.Errorf("got %v for %s, want %v for %s", got, r.ttl, tc.want, tc.ttl)
			}
		})
	}
}

// onlyAlias answers for a name with its alias, without the alias' addresses.
func onlyAlias(q *dns.Msg, _ bool) *dns.Msg {
	if q.Question[0].Name == "www.example.com." {
		return respond(q, "www.example.com. 30 IN CNAME b.example.net.")
	}
	return respond(q, "b.example.net. 300 IN A 192.0.2.9")
}

// The second server is asked when the first does not answer.
func TestLookUp_secondServer(t *testing.T) {
	dead := serve(t, func(*dns.Msg, bool) *dns.Msg { return nil })
	live := serve(t, func(q *dns.Msg, _ bool) *dns.Msg { return respond(q, "www.example.com. 1 IN A 192.0.2.1") })
	both := func() ([]string, error) {
		first, _ := dead()
		second, _ := live()
		return append(first, second...), nil
	}
	r, err := client{both}.lookUp(t.Context(), "www.example.com")
	if err != nil || len(r.addrs) != 1 {
		t.Errorf("got %v, %v", r, err)
	}
}

func TestServersOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	servers := ServersOf(path)
	if _, err := servers(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v of no file", err)
	}
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("search example.com\n")
	if _, err := servers(); err == nil || !strings.Contains(err.Error(), "no nameserver") {
		t.Errorf("got %v of a file without servers", err)
	}
	write("nameserver 192.0.2.53\nnameserver 2001:db8::53\nnameserver 192.0.2.54\nnameserver 192.0.2.55\n")
	if got, err := servers(); err != nil || !slices.Equal(got, []string{"192.0.2.53:53", "[2001:db8::53]:53", "192.0.2.54:53"}) {
		t.Errorf("got %v, %v", got, err)
	}
	write("nameserver 192.0.2.99\n")
	later := time.Now().Add(time.Second)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	if got, err := servers(); err != nil || !slices.Equal(got, []string{"192.0.2.99:53"}) {
		t.Errorf("got %v, %v after a change", got, err)
	}
}

// The addresses of a real server arrive in the answer.
func TestResolver_server(t *testing.T) {
	changed := make(chan string, 10)
	r := New(serve(t, func(q *dns.Msg, _ bool) *dns.Msg { return respond(q, q.Question[0].Name+" 1 IN A 192.0.2.1") }), func(name string) { changed <- name })
	r.Follow("www.example.com")
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { r.Run(ctx) })
	if name := <-changed; name != "www.example.com" || len(r.Answer(name).Addrs) != 1 {
		t.Errorf("got %v of %s", r.Answer(name), name)
	}
}

// What a server sends is read without failure, and addresses are those of the name that was asked for.
func FuzzRead(f *testing.F) {
	query := new(dns.Msg)
	query.SetQuestion("www.example.com.", dns.TypeA)
	for _, m := range []*dns.Msg{
		respond(query, "www.example.com. 1 IN A 192.0.2.1"), respond(query, "www.example.com. 1 IN CNAME www.example.com."),
		respond(query, "www.example.com. 1 IN CNAME b.example.com.", "b.example.com. 1 IN A 192.0.2.1"),
	} {
		packed, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packed)
	}
	f.Fuzz(func(t *testing.T, packed []byte) {
		m := new(dns.Msg)
		if m.Unpack(packed) != nil {
			return
		}
		isFor(m, query)
		r, err := read(m, "www.example.com")
		if err != nil {
			return
		}
		if r.ttl < 0 || r.ttl > maxTTL || r.alias != "" && len(r.addrs) > 0 || slices.ContainsFunc(r.addrs, func(a netip.Addr) bool { return !a.Is4() }) {
			t.Errorf("got %+v", r)
		}
	})
}

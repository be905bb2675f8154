package dnsresolver

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/ovsdn/ovsdn/test/seed"
	"github.com/ovsdn/ovsdn/test/tier"
)

const changingName = "www.example.com"

// behaviour is how a server responds to the queries of one lookup, whose answer is the addresses with the TTL, or a failure. The addresses of decoys are in no
// answer.
type behaviour struct {
	name    string
	respond func(q *dns.Msg, tcp bool, ttl uint32, addrs []string) []*dns.Msg
	fails   bool
	empty   bool // the answer has no address, whatever the server chose
}

// addresses returns records of the name.
func addresses(name string, ttl uint32, addrs ...string) (records []string) {
	for _, a := range addrs {
		records = append(records, fmt.Sprintf("%s %d IN A %s", name, ttl, a))
	}
	return records
}

// decoys returns records of the name with addresses that no answer has.
func decoys(name string) []string { return addresses(name, 3600, "198.51.100.1", "198.51.100.2") }

func one(m *dns.Msg) []*dns.Msg { return []*dns.Msg{m} }

// withDecoys returns a response of decoys, changed by the function.
func withDecoys(q *dns.Msg, change func(m *dns.Msg)) *dns.Msg {
	m := respond(q, decoys(q.Question[0].Name)...)
	change(m)
	return m
}

// alias returns the record of an alias.
func alias(name, target string, ttl uint32) string {
	return fmt.Sprintf("%s %d IN CNAME %s", name, ttl, target)
}

const first, second = changingName + ".", "b.example.net."

func behaviours() []behaviour {
	return append(answering(), failing()...)
}

func answering() []behaviour {
	return []behaviour{
		{name: "addresses", respond: func(q *dns.Msg, _ bool, ttl uint32, addrs []string) []*dns.Msg {
			m := respond(q, append(decoys("evil.example.com."), addresses(first, ttl, addrs...)...)...)
			m.Extra = respond(q, decoys(first)...).Answer
			return one(m)
		}},
		{name: "truncated", respond: func(q *dns.Msg, tcp bool, ttl uint32, addrs []string) []*dns.Msg {
			if tcp {
				return one(respond(q, addresses(first, ttl, addrs...)...))
			}
			return one(withDecoys(q, func(m *dns.Msg) { m.Truncated = true }))
		}},
		{name: "chain", respond: func(q *dns.Msg, _ bool, ttl uint32, addrs []string) []*dns.Msg {
			return one(respond(q, append(addresses(second, 3600, addrs...), alias(first, second, ttl))...))
		}},
		{name: "alias alone", respond: func(q *dns.Msg, _ bool, ttl uint32, addrs []string) []*dns.Msg {
			if q.Question[0].Name == first {
				return one(respond(q, append(decoys("evil.example.com."), alias(first, second, ttl))...))
			}
			return one(respond(q, addresses(second, 3600, addrs...)...))
		}},
		{name: "response of another query before", respond: func(q *dns.Msg, _ bool, ttl uint32, addrs []string) []*dns.Msg {
			return []*dns.Msg{withDecoys(q, func(m *dns.Msg) { m.Id++ }), respond(q, addresses(first, ttl, addrs...)...)}
		}},
		{name: "no address", empty: true, respond: func(q *dns.Msg, _ bool, _ uint32, _ []string) []*dns.Msg {
			return one(respond(q, decoys("evil.example.com.")...))
		}},
		{name: "no name", empty: true, respond: func(q *dns.Msg, _ bool, _ uint32, _ []string) []*dns.Msg {
			m := respond(q)
			m.Rcode = dns.RcodeNameError
			return one(m)
		}},
	}
}

func failing() []behaviour {
	fails := func(name string, respond func(q *dns.Msg, tcp bool) []*dns.Msg) behaviour {
		return behaviour{name: name, fails: true, respond: func(q *dns.Msg, tcp bool, _ uint32, _ []string) []*dns.Msg { return respond(q, tcp) }}
	}
	return []behaviour{
		fails(silent, func(*dns.Msg, bool) []*dns.Msg { return nil }),
		fails("truncated by TCP", func(q *dns.Msg, _ bool) []*dns.Msg {
			return one(withDecoys(q, func(m *dns.Msg) { m.Truncated = true }))
		}),
		fails("failure", func(q *dns.Msg, _ bool) []*dns.Msg {
			return one(withDecoys(q, func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure }))
		}),
		fails("other question", func(q *dns.Msg, _ bool) []*dns.Msg {
			return one(withDecoys(q, func(m *dns.Msg) { m.Question[0].Name = "evil.example.com." }))
		}),
		fails("a query", func(q *dns.Msg, _ bool) []*dns.Msg {
			return one(withDecoys(q, func(m *dns.Msg) { m.Response = false }))
		}),
		fails("loop", func(q *dns.Msg, _ bool) []*dns.Msg {
			return one(respond(q, append(append(decoys(first), decoys(second)...), alias(first, second, 1), alias(second, first, 1))...))
		}),
		fails("loop of queries", func(q *dns.Msg, _ bool) []*dns.Msg {
			if q.Question[0].Name == first {
				return one(respond(q, alias(first, second, 1)))
			}
			return one(respond(q, append(decoys(second), alias(second, first, 1))...))
		}),
	}
}

// silent is the behaviour that takes real time.
const silent = "silent"

// changing is a DNS server with another behaviour for each lookup, and what it has answered.
type changing struct {
	mu       sync.Mutex
	random   *rand.Rand
	timeouts int // the remaining ones: each takes two seconds

	now    behaviour
	ttl    uint32
	addrs  []string
	counts map[string]int

	until  map[netip.Addr]time.Time // the end of the TTL and the grace
	latest []netip.Addr             // of the last answer
	failed bool
}

// choose selects the behaviour for a lookup that begins now. The resolver calls it in its own time, which does not pass while it waits for the network.
func (c *changing) choose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := behaviours()
	for {
		if c.now = all[c.random.IntN(len(all))]; c.now.name != silent {
			break
		}
		if c.timeouts > 0 {
			c.timeouts--
			break
		}
	}
	c.counts[c.now.name]++
	c.ttl = []uint32{0, 1, 1, 1, 1, 8, 40, 200, 1<<31 + 300}[c.random.IntN(9)]
	if c.random.IntN(100) == 0 {
		c.ttl = 24 * 3600
	}
	c.addrs = nil
	for i := range 60 {
		if c.random.IntN(20) == 0 {
			c.addrs = append(c.addrs, fmt.Sprintf("192.0.2.%d", i+100))
		}
	}
	c.failed = c.now.fails
	if c.failed {
		return
	}
	c.latest = nil
	if c.now.empty {
		return
	}
	ttl := time.Duration(min(c.ttl, 3600)) * time.Second
	if c.ttl > 1<<31 {
		ttl = 0
	}
	for _, a := range c.addrs {
		addr := netip.MustParseAddr(a)
		c.latest = append(c.latest, addr)
		c.until[addr] = time.Now().Add(ttl + 30*time.Second)
	}
}

// respond answers a query of the current lookup.
func (c *changing) respond(q *dns.Msg, tcp bool) []*dns.Msg {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now.respond(q, tcp, c.ttl, c.addrs)
}

// compare compares the resolver's answer with what the server has answered so far.
func (c *changing) compare(got Answer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.until, func(_ netip.Addr, end time.Time) bool { return !end.After(time.Now()) })
	if want := slices.SortedFunc(maps.Keys(c.until), netip.Addr.Compare); !slices.Equal(got.Addrs, want) {
		return fmt.Errorf("got addresses %v, want %v", got.Addrs, want)
	}
	if !slices.Equal(got.Latest, c.latest) || (got.Err != nil) != c.failed {
		return fmt.Errorf("got the last answer %v with error %w, want %v and a failure %t", got.Latest, got.Err, c.latest, c.failed)
	}
	return nil
}

// While the behaviour of a real server changes with each lookup, the addresses are exactly those that it has answered with, within their TTL and the grace.
func TestResolver_changingServer(t *testing.T) {
	lookups := tier.Size(t, 400, 4000, "lookups of a server that changes")
	c := &changing{
		random: seed.Rand(t), timeouts: tier.Size(t, 1, 5, "timeouts, which take two seconds each"),
		counts: map[string]int{}, until: map[netip.Addr]time.Time{},
	}
	servers := serveAll(t, c.respond) // outside of the time of synctest, which would not pass while a server waits
	synctest.Test(t, func(t *testing.T) {
		r := New(func() ([]string, error) { c.choose(); return servers() }, func(string) {})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		defer running.Wait()
		defer cancel()
		r.Follow(changingName)
		sum := func() (n int) {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, k := range c.counts {
				n += k
			}
			return n
		}
		sizes := map[int]bool{}
		for sum() < lookups {
			time.Sleep(500 * time.Millisecond) //nolint:forbidigo // of the bubble
			synctest.Wait()
			got := r.Answer(changingName)
			sizes[len(got.Addrs)] = true
			if err := c.compare(got); err != nil {
				t.Fatalf("after lookup %d, %s with TTL %d: %v", sum(), c.now.name, c.ttl, err)
			}
		}
		if len(sizes) < 10 {
			t.Errorf("got numbers of addresses %v, want more different ones", sizes)
		}
	})
	for _, b := range behaviours() {
		if c.counts[b.name] == 0 {
			t.Errorf("no lookup had the behaviour %q", b.name)
		}
	}
}

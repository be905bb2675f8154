package dnsresolver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ovsdn/ovsdn/test/seed"
)

// sleep waits in the time of synctest.
func sleep(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // of the bubble
}

// server answers from memory.
type server struct {
	mu      sync.Mutex
	reply   reply
	err     error
	queries int
}

func (s *server) set(ttl time.Duration, addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reply, s.err = reply{ttl: ttl}, nil
	for _, a := range addrs {
		s.reply.addrs = append(s.reply.addrs, netip.MustParseAddr(a))
	}
}

func (s *server) fail() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.New("no answer")
}

func (s *server) lookUp(context.Context, string) (reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queries++
	return s.reply, s.err
}

// run runs a resolver of one name in the time of synctest.
func run(t *testing.T, s *server, do func(r *Resolver, want func(addrs ...string))) {
	synctest.Test(t, func(t *testing.T) {
		r := New(nil, func(string) {})
		r.lookUp = s.lookUp
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		defer running.Wait()
		defer cancel()
		r.Follow("www.example.com")
		do(r, func(addrs ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for _, a := range r.Answer("www.example.com").Addrs {
				got = append(got, a.String())
			}
			if !slices.Equal(got, addrs) {
				t.Errorf("got %v, want %v", got, addrs)
			}
		})
	})
}

// An address is retained for its TTL and the grace, and not longer: neither by failures nor by other answers.
func TestResolver_ttlAndGrace(t *testing.T) {
	s := &server{}
	s.set(20*time.Second, "192.0.2.1")
	run(t, s, func(r *Resolver, want func(...string)) {
		want("192.0.2.1")
		s.set(time.Second, "192.0.2.2")
		sleep(20 * time.Second) // the TTL ends
		want("192.0.2.1", "192.0.2.2")
		sleep(Grace - time.Second)
		want("192.0.2.1", "192.0.2.2")
		sleep(2 * time.Second)
		want("192.0.2.2")
		s.fail()
		sleep(minInterval) // its last answer is at most this old
		want("192.0.2.2")
		sleep(Grace + time.Second)
		want()
		if a := r.Answer("www.example.com"); !a.Known || len(a.Latest) != 1 || a.Err == nil || a.Since.IsZero() {
			t.Errorf("got %+v, want the last answer and the failure", a)
		}
		s.set(time.Second)
		sleep(maxRetry + 10*time.Second)
		want()
		if a := r.Answer("www.example.com"); len(a.Latest) != 0 || a.Err != nil || !a.Since.IsZero() {
			t.Errorf("got %+v, want an empty answer", a)
		}
	})
}

// While answers, TTLs and failures change at random, the addresses are always among those that DNS has answered within their TTL and the grace.
func TestResolver_neverWider(t *testing.T) {
	r := seed.Rand(t)
	s := &server{}
	s.fail()
	allowed := map[netip.Addr]time.Time{} // by the answers so far
	run(t, s, func(resolver *Resolver, _ func(...string)) {
		sizes := map[int]int{}
		for range 3000 {
			switch r.IntN(10) {
			case 0:
				s.fail()
			case 1:
				var addrs []string
				for range r.IntN(4) {
					addrs = append(addrs, fmt.Sprintf("192.0.2.%d", r.IntN(20)))
				}
				slices.Sort(addrs)
				s.set(time.Duration(r.IntN(40))*time.Second, slices.Compact(addrs)...)
			}
			s.mu.Lock()
			before := s.queries
			s.mu.Unlock()
			sleep(time.Second)
			synctest.Wait()
			s.mu.Lock()
			if s.queries > before && s.err == nil {
				for _, a := range s.reply.addrs {
					allowed[a] = time.Now().Add(s.reply.ttl + Grace)
				}
			}
			s.mu.Unlock()
			got := resolver.Answer("www.example.com").Addrs
			sizes[len(got)]++
			for _, a := range got {
				if end, known := allowed[a]; !known || !end.After(time.Now()) {
					t.Fatalf("%v is allowed, but DNS answered with it until %v, and it is %v", a, end, time.Now())
				}
			}
		}
		if len(sizes) < 5 {
			t.Errorf("got numbers of addresses %v, want more different ones", sizes)
		}
	})
}

func TestResolver_queries(t *testing.T) {
	for name, tc := range map[string]struct {
		ttl  time.Duration
		fail bool
		want int // in ten minutes
	}{
		"TTL 0":    {0, false, 121},
		"TTL 1":    {time.Second, false, 121},
		"TTL 300":  {5 * time.Minute, false, 3},
		"TTL 1d":   {24 * time.Hour, false, 1},
		"failures": {0, true, 13},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{}
			s.set(tc.ttl, "192.0.2.1")
			if tc.fail {
				s.fail()
			}
			run(t, s, func(r *Resolver, _ func(...string)) {
				sleep(10*time.Minute + time.Second)
				synctest.Wait()
				if s.queries < tc.want-2 || s.queries > tc.want {
					t.Errorf("got %d queries, want %d", s.queries, tc.want)
				}
				r.Unfollow("www.example.com")
				before := s.queries
				sleep(2 * time.Hour)
				synctest.Wait()
				if s.queries != before {
					t.Errorf("got %d queries for a name that is not followed", s.queries-before)
				}
			})
		})
	}
}

func TestResolver_budget(t *testing.T) {
	s := &server{}
	var many []string
	for i := range MaxAddrs + 20 {
		many = append(many, fmt.Sprintf("192.0.2.%d", i+1))
	}
	s.set(time.Second, many...)
	run(t, s, func(r *Resolver, _ func(...string)) {
		synctest.Wait()
		if a := r.Answer("www.example.com"); len(a.Addrs) != MaxAddrs || !a.Excess {
			t.Errorf("got %d addresses, excess %t", len(a.Addrs), a.Excess)
		}
		s.set(time.Second, "198.51.100.1") // the latest are retained
		sleep(minInterval)
		synctest.Wait()
		if a := r.Answer("www.example.com"); len(a.Addrs) != MaxAddrs || a.Excess || a.Addrs[MaxAddrs-1].String() != "198.51.100.1" {
			t.Errorf("got %d addresses to %v, excess %t", len(a.Addrs), a.Addrs[MaxAddrs-1], a.Excess)
		}
	})
}

// AwaitFirst waits for failures, too. A name that is followed again gets its addresses.
func TestResolver_awaitFirst(t *testing.T) {
	s := &server{}
	s.fail()
	run(t, s, func(r *Resolver, want func(...string)) {
		r.AwaitFirst(context.Background())
		want()
		r.Follow("www.example.com")
		r.Unfollow("www.example.com")
		r.Unfollow("www.example.com")
		if a := r.Answer("www.example.com"); a.Err != nil {
			t.Errorf("got %v of a name that is not followed", a)
		}
		s.set(time.Second, "192.0.2.1")
		r.Follow("www.example.com")
		want("192.0.2.1")
	})
}

func TestRcodeError(t *testing.T) {
	for code, want := range map[rcodeError]string{2: "SERVFAIL", 4095: "4095"} {
		if got := code.Error(); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// An address expires while a query waits for DNS.
func TestResolver_expiresDuringQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(nil, func(string) {})
		answered := false
		r.lookUp = func(ctx context.Context, _ string) (reply, error) {
			if answered {
				<-ctx.Done() // longer than any timeout
				return reply{}, ctx.Err()
			}
			answered = true
			return reply{addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, ttl: time.Second}, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		defer running.Wait()
		defer cancel()
		r.Follow("www.example.com")
		synctest.Wait()
		if got := r.Answer("www.example.com").Addrs; len(got) != 1 {
			t.Fatalf("got %v, want one address", got)
		}
		sleep(time.Second + Grace)
		synctest.Wait()
		if got := r.Answer("www.example.com").Addrs; len(got) != 0 {
			t.Errorf("got %v after the TTL and the grace, want none", got)
		}
	})
}

// Names of a zone whose servers are slow delay no others.
func TestResolver_slowNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(nil, func(string) {})
		var mu sync.Mutex
		var last time.Time
		var longest time.Duration
		r.lookUp = func(_ context.Context, name string) (reply, error) {
			if name != "www.example.com" {
				sleep(4 * time.Second)
				return reply{}, nil
			}
			mu.Lock()
			defer mu.Unlock()
			if !last.IsZero() {
				longest = max(longest, time.Since(last))
			}
			last = time.Now()
			return reply{ttl: time.Second}, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		defer running.Wait()
		defer cancel()
		r.Follow("www.example.com")
		synctest.Wait()
		for i := range 2000 {
			r.Follow(fmt.Sprintf("slow%d.example.net", i))
		}
		sleep(10 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if longest > minInterval+time.Second {
			t.Errorf("got up to %v between queries for a name with a TTL of 1s, want %v", longest, minInterval)
		}
	})
}

package servicenat

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/knftables"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostconntrack"
	"github.com/ovsdn/ovsdn/test/await"
)

const (
	forward = endpoints.Forward
	reject  = endpoints.Reject
	drop    = endpoints.Drop
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// fakeTable counts the operations of successful transactions.
type fakeTable struct {
	*knftables.Fake
	mu         sync.Mutex
	err        error // of Run
	forgetful  bool  // does not apply transactions, which knftables.Fake does in quadratic time
	operations []int
	lists      int
	generation uint32
}

func (f *fakeTable) Run(ctx context.Context, tx *knftables.Transaction) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	if !f.forgetful {
		if err := f.Fake.Run(ctx, tx); err != nil {
			return err
		}
	}
	f.operations = append(f.operations, tx.NumOperations())
	f.generation++
	return nil
}

func (f *fakeTable) ListRules(ctx context.Context, chain string) ([]*knftables.Rule, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	return f.Fake.ListRules(ctx, chain)
}

// another runs a transaction of another program.
func (f *fakeTable) another(t *testing.T, change func(tx *knftables.Transaction)) {
	t.Helper()
	tx := f.NewTransaction()
	change(tx)
	if err := f.Fake.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.generation++
}

func (f *fakeTable) deleteTable(t *testing.T) {
	t.Helper()
	f.another(t, func(tx *knftables.Transaction) { tx.Delete(&knftables.Table{}) })
}

func (f *fakeTable) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// written returns the operations of each transaction since the last call.
func (f *fakeTable) written() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.operations
	f.operations = nil
	return n
}

func (f *fakeTable) read() (uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.generation, nil
}

type fixture struct {
	*Translator
	table   *fakeTable
	mu      sync.Mutex
	events  []string // reasons
	message string   // of the last Event
	flushes []hostconntrack.Filter

	failFlush atomic.Bool
}

func testOptions() Options {
	return Options{
		Interface: "tun0", ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"), ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
		Gateway: netip.MustParseAddr("10.128.0.1"), ForwardedDSCP: 62, FirstClientPort: 32768,
	}
}

func newFixture() *fixture {
	f := &fixture{table: &fakeTable{Fake: knftables.NewFake(knftables.IPv4Family, tableName), generation: 1}}
	o := testOptions()
	o.WarnNode = func(reason, message string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.events, f.message = append(f.events, reason), message
	}
	f.Translator = New(o)
	f.open = func() (knftables.Interface, error) { return f.table, nil }
	f.generation = f.table.read
	f.localAddrs = func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.0.2.10")}, nil }
	f.flush = func(match hostconntrack.Filter) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.failFlush.Load() {
			return unix.ENOBUFS
		}
		f.flushes = append(f.flushes, match)
		return nil
	}
	return f
}

// start runs the Translator until the test ends. The test is in a bubble of synctest.
func (f *fixture) start(t *testing.T) {
	t.Helper()
	f.startWith(t, t.Context())
}

// startWith is start with a context that has a logger.
func (f *fixture) startWith(t *testing.T, ctx context.Context) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	synctest.Wait()
}

func (f *fixture) set(service string, frontends ...Frontend) {
	f.Set(service, frontends)
	synctest.Wait()
}

func (f *fixture) wantEvents(t *testing.T, want ...string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.events, want) {
		t.Errorf("got Events %q, want %q", f.events, want)
	}
	f.events = nil
}

// wantElements compares all elements of the table.
func (f *fixture) wantElements(t *testing.T, want ...string) {
	t.Helper()
	f.table.RLock()
	defer f.table.RUnlock()
	got := []string{}
	if f.table.Table == nil {
		t.Error("the table does not exist")
		return
	}
	for _, s := range f.table.Table.Sets {
		for _, e := range s.Elements {
			got = append(got, fmt.Sprintf("%s %s", s.Name, strings.Join(e.Key, " ")))
		}
	}
	for _, m := range f.table.Table.Maps {
		for _, e := range m.Elements {
			got = append(got, fmt.Sprintf("%s %s: %s", m.Name, strings.Join(e.Key, " "), strings.Join(e.Value, " ")))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got elements\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func nodePort(port uint16, verdict endpoints.Verdict) Frontend {
	return Frontend{Protocol: corev1.ProtocolTCP, Port: port, Verdict: verdict, To: netip.MustParseAddrPort("172.30.0.10:80")}
}

func external(addr string, verdict endpoints.Verdict, sources ...string) Frontend {
	f := nodePort(80, verdict)
	f.Addr = netip.MustParseAddr(addr)
	for _, s := range sources {
		f.Sources = append(f.Sources, netip.MustParsePrefix(s))
	}
	return f
}

package flowexport

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/await"
)

// bridge is a bridge whose exporter another program may delete.
type bridge struct {
	mu    sync.Mutex
	is    *ovs.Exporter
	err   error // of the next call
	calls int
}

func (b *bridge) EnsureExporter(_ context.Context, want *ovs.Exporter) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	if err := b.err; err != nil {
		b.err = nil
		return false, err
	}
	changed := b.is != want
	b.is = want
	return changed, nil
}

func (b *bridge) set(is *ovs.Exporter, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.is, b.err = is, err
}

func (b *bridge) has(want *ovs.Exporter) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.is != want {
		return errors.New("the bridge has another exporter")
	}
	return nil
}

func TestExporter(t *testing.T) {
	some := &ovs.Exporter{Collectors: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:4739")}}
	for name, test := range map[string]struct{ previous, want *ovs.Exporter }{
		"added": {nil, some}, "removed": {some, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := &bridge{is: test.previous, err: errors.New("constraint violation")}
			e := New(b, test.want, time.Millisecond)
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { e.Run(ctx) })
			defer running.Wait()
			defer stop()
			is := func() { await.OK(t, await.SyncTime, func(context.Context) error { return b.has(test.want) }) }
			is()
			b.set(test.previous, ovs.NewNoBridge("br0")) // another program restored or deleted it
			is()
		})
	}
}

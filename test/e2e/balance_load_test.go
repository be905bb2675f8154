package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// Rates and durations of a load.
const (
	connectionRate  = 500 // per second, at least
	offeredRate     = connectionRate + 50
	connectionTime  = 5 * time.Second
	connectionLanes = 128 // of which some wait for a packet to be sent again
)

// load is clients that open connections to a service.
type load struct {
	name          string
	entries       func(ctx context.Context, port uint16) string // conntrack entries
	cancel        context.CancelFunc
	running       sync.WaitGroup
	opened, wrong atomic.Int64
	longest       atomic.Int64 // duration of a connection
	began         time.Time
	rate          float64 // of ended connections, per second

	mu       sync.Mutex
	failures []string // the first ones, with their times
}

// maxFailures is the number of failures that a load describes.
const maxFailures = 20

func (l *load) fail(ctx context.Context, err error) {
	var broken *brokenConnection
	if l.wrong.Add(1) == 1 && errors.As(err, &broken) {
		err = fmt.Errorf("%w; conntrack entries with its port:\n%s", err, l.entries(ctx, broken.local.Port()))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.failures) < maxFailures {
		l.failures = append(l.failures, time.Now().UTC().Format("15:04:05.000 ")+err.Error())
	}
}

func (l *load) took(d time.Duration) {
	for {
		longest := l.longest.Load()
		if int64(d) <= longest || l.longest.CompareAndSwap(longest, int64(d)) {
			return
		}
	}
}

// startLoad opens connections at a rate per second. Each sends a request and reads the response. Connections that wait are made up for, so that the rate is that of the
// whole load.
func (x *trio) startLoad(t *testing.T, from end, to netip.AddrPort, rate int) *load {
	t.Helper()
	dialer := from.NetNS.Dialer()
	t.Cleanup(func() {
		if err := dialer.Close(); err != nil {
			t.Error(err)
		}
	})
	return x.startLanes(t, from.Name+" to "+to.String(), lanes{connectionLanes, connectionTime}, rate, func(ctx context.Context, _ int) error { return ask(ctx, dialer, to) })
}

// lanes are the parts of a load that ask at the same time, and how long each waits for a response.
type lanes struct {
	number int
	within time.Duration
}

// startLanes begins a load whose lanes ask at a rate per second in all.
func (x *trio) startLanes(t *testing.T, name string, of lanes, rate int, ask func(ctx context.Context, lane int) error) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{name: name, entries: x.conntrackEntries, cancel: cancel, began: time.Now()}
	interval := time.Second * time.Duration(of.number) / time.Duration(rate)
	for lane := range of.number {
		l.running.Go(func() {
			timer := time.NewTimer(0)
			defer timer.Stop()
			for next := l.began.Add(interval * time.Duration(lane) / time.Duration(of.number)); ; next = next.Add(interval) {
				timer.Reset(time.Until(next))
				select {
				case <-ctx.Done():
					return
				case <-timer.C:
				}
				// A connection outlives the end of the load.
				within, done := context.WithTimeout(context.WithoutCancel(ctx), of.within)
				began := time.Now()
				err := ask(within, lane)
				done()
				l.took(time.Since(began))
				l.opened.Add(1)
				if err != nil {
					l.fail(context.WithoutCancel(ctx), err)
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); l.running.Wait() })
	return l
}

// brokenConnection is the failure of a connection that was opened.
type brokenConnection struct {
	local netip.AddrPort
	dial  time.Duration
	err   error
}

func (b *brokenConnection) Error() string {
	return fmt.Sprintf("connected after %v: %v", b.dial, b.err)
}

func (b *brokenConnection) Unwrap() error { return b.err }

// ask opens a connection and gets a page.
func ask(ctx context.Context, from *wire.Dialer, to netip.AddrPort) error {
	began := time.Now()
	conn, err := from.DialContext(ctx, to)
	if err != nil {
		return err
	}
	defer conn.Close()
	dial := time.Since(began)
	if err := askBy(ctx, conn); err != nil {
		local, _ := netip.ParseAddrPort(conn.LocalAddr().String())
		return &brokenConnection{local, dial, err}
	}
	return nil
}

func askBy(ctx context.Context, conn net.Conn) error {
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "GET /hostname HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 16))
	return err
}

// conntrackEntries returns the entries of the nodes' switches with that port.
func (x *trio) conntrackEntries(ctx context.Context, port uint16) string {
	ctx, cancel := context.WithTimeout(ctx, fixture.PacketTime)
	defer cancel()
	var found strings.Builder
	for _, node := range []string{fixture.Node1, fixture.Node2} {
		all, err := x.TryOutput(ctx, node, "ovs-appctl", "dpctl/dump-conntrack")
		if err != nil {
			fmt.Fprintf(&found, "%s: %v\n", node, err)
		}
		for line := range strings.Lines(all) {
			if strings.Contains(line, fmt.Sprintf("port=%d,", port)) || strings.Contains(line, fmt.Sprintf("port=%d)", port)) {
				fmt.Fprintf(&found, "%s: %s", node, line)
			}
		}
	}
	return found.String()
}

// stop ends the load. No connection may have failed.
func (l *load) stop(t *testing.T) {
	t.Helper()
	l.end(t)
	if wrong := l.wrong.Load(); wrong > 0 {
		t.Errorf("%s: of %d connections %d failed, the first:\n%s", l.name, l.opened.Load(), wrong, strings.Join(l.failures, "\n"))
	}
}

// fastEnough fails the test if the loads, which have ended, opened fewer than connectionRate connections per second together.
func fastEnough(t *testing.T, loads ...*load) {
	t.Helper()
	var rate float64
	for _, l := range loads {
		rate += l.rate
	}
	if rate < connectionRate {
		t.Errorf("%.0f connections per second, want at least %d", rate, connectionRate)
	}
}

// end ends the load. Some connections must have been opened.
func (l *load) end(t *testing.T) {
	t.Helper()
	l.cancel()
	took := time.Since(l.began) // the last connections may take some seconds more
	l.rate = float64(l.opened.Load()) / took.Seconds()
	l.running.Wait()
	opened := l.opened.Load()
	t.Logf("%s: %d connections in %.1fs, %.0f per second, the longest took %v, %d failed", l.name, opened, took.Seconds(), l.rate, time.Duration(l.longest.Load()), l.wrong.Load())
	if opened == 0 {
		t.Errorf("%s: no connections were opened", l.name)
	}
}

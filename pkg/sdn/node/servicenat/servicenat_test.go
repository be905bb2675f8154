package servicenat

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

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/knftables"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

func TestTranslator_changes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.start(t)
		f.set("a/web", nodePort(30080, forward), external("203.0.113.5", forward))
		f.wantElements(t, "all-node-ports tcp 30080", "node-ports tcp 30080: 172.30.0.10 80", "external-addresses 203.0.113.5 tcp 80: 172.30.0.10 80")
		f.set("a/web", nodePort(30080, reject), external("203.0.113.5", drop))
		f.wantElements(t, "all-node-ports tcp 30080", "rejected-node-ports tcp 30080", "dropped-addresses 203.0.113.5 tcp 80")
		f.set("a/web", nodePort(30080, drop), external("203.0.113.5", reject))
		f.wantElements(t, "all-node-ports tcp 30080", "dropped-node-ports tcp 30080", "rejected-addresses 203.0.113.5 tcp 80")
		moved := nodePort(30080, forward)
		for _, to := range []string{"172.30.0.10:80", "172.30.0.11:81"} {
			moved.To = netip.MustParseAddrPort(to)
			f.set("a/web", moved)
		}
		f.wantElements(t, "all-node-ports tcp 30080", "node-ports tcp 30080: 172.30.0.11 81")
		f.set("a/web", external("203.0.113.5", forward, "10.0.0.0/8", "198.51.100.7/32"))
		f.wantElements(t, "external-addresses 203.0.113.5 tcp 80: 172.30.0.10 80", "limited-addresses 203.0.113.5 tcp 80",
			"source-ranges 203.0.113.5 tcp 80 10.0.0.0/8", "source-ranges 203.0.113.5 tcp 80 198.51.100.7/32")
		f.set("a/web", external("203.0.113.5", forward, "10.1.0.0/16"))
		f.wantElements(t, "external-addresses 203.0.113.5 tcp 80: 172.30.0.10 80", "limited-addresses 203.0.113.5 tcp 80", "source-ranges 203.0.113.5 tcp 80 10.1.0.0/16")
		f.set("a/web", external("203.0.113.5", forward))
		f.wantElements(t, "external-addresses 203.0.113.5 tcp 80: 172.30.0.10 80")
		tenants := external("203.0.113.5", reject)
		tenants.TenantAddress = true
		f.set("a/web", tenants)
		f.wantElements(t, "rejected-addresses 203.0.113.5 tcp 80", "tenant-external-ips 203.0.113.5 tcp 80")
		f.set("a/web")
		f.wantElements(t)
		f.wantEvents(t)
	})
}

// The first service by name has a frontend that two declare.
func TestTranslator_sameFrontend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.start(t)
		second := external("203.0.113.5", forward)
		second.To = netip.MustParseAddrPort("172.30.0.20:80")
		f.set("b", second)
		f.wantElements(t, "external-addresses 203.0.113.5 tcp 80: 172.30.0.20 80")
		f.set("a", external("203.0.113.5", forward))
		f.wantElements(t, "external-addresses 203.0.113.5 tcp 80: 172.30.0.10 80")
		f.set("a")
		f.wantElements(t, "external-addresses 203.0.113.5 tcp 80: 172.30.0.20 80")
		f.set("b")
		f.wantElements(t)
	})
}

// A change costs the same with many services.
func TestTranslator_manyServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.table.forgetful = true
		const services = 10_000
		for i := range uint16(services) {
			f.Set(fmt.Sprintf("a/%d", i), []Frontend{nodePort(i, forward)})
		}
		f.start(t)
		if got := f.table.written(); len(got) != 1 || got[0] < services {
			t.Errorf("got transactions of %v operations, want one of all services", got)
		}
		f.set("a/7", nodePort(7, reject))
		f.set("a/7", nodePort(7, reject)) // no change
		f.set("a/8", nodePort(8, forward), external("203.0.113.5", forward))
		f.set("a/8")
		if got, want := f.table.written(), []int{2, 1, 3}; !slices.Equal(got, want) {
			t.Errorf("got transactions of %v operations, want %v", got, want)
		}
	})
}

// Nothing is written before Run; the first transaction replaces what a previous agent wrote.
func TestTranslator_previousAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		previous := []Frontend{nodePort(1, forward), nodePort(2, forward)}
		f.table.another(t, func(tx *knftables.Transaction) {
			f.options.replaceTable(tx, map[key]*Frontend{{port: 1}: &previous[0], {port: 2}: &previous[1]})
		})
		f.set("a", nodePort(1, forward))
		if got := f.table.written(); got != nil || f.Synced() {
			t.Errorf("got transactions of %v operations before Run, synced %t, want none", got, f.Synced())
		}
		f.start(t)
		f.wantElements(t, "all-node-ports tcp 1", "node-ports tcp 1: 172.30.0.10 80")
		if got := f.table.written(); len(got) != 1 || !f.Synced() {
			t.Errorf("got transactions of %v operations, synced %t, want one", got, f.Synced())
		}
	})
}

func TestTranslator_retry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.set("a", nodePort(1, forward))
		f.start(t)
		f.table.written()
		f.table.fail(errors.New("no memory"))
		f.set("a", nodePort(2, forward))
		f.set("b", nodePort(3, forward))
		time.Sleep(5 * time.Second) //nolint:forbidigo // of the bubble
		synctest.Wait()
		f.wantEvents(t, eventreason.ServiceRulesFailed)
		if want := `no memory; the agent retries; "nft list table ip ovsdn-services"`; !strings.Contains(f.message, want) {
			t.Errorf("got Event %q, want one with %q", f.message, want)
		}
		f.table.fail(nil)
		time.Sleep(time.Minute) //nolint:forbidigo // of the bubble
		synctest.Wait()
		f.wantElements(t, "all-node-ports tcp 2", "all-node-ports tcp 3", "node-ports tcp 2: 172.30.0.10 80", "node-ports tcp 3: 172.30.0.10 80")
		if got := f.table.written(); len(got) != 1 || got[0] < len(f.options.chains()) {
			t.Errorf("got transactions of %v operations, want one that replaces the table", got)
		}
		f.wantEvents(t)
	})
}

// What another program deletes is restored: parts of the table by the next check, and all by a change. Checks pause if it deletes again.
func TestTranslator_restored(t *testing.T) {
	one := knftables.Element{Map: mapNodePorts, Key: []string{"tcp", "1"}}
	for name, change := range map[string]func(tx *knftables.Transaction){
		"table":   func(tx *knftables.Transaction) { tx.Delete(&knftables.Table{}) },
		"rules":   func(tx *knftables.Transaction) { tx.Flush(&knftables.Chain{Name: "prerouting"}) },
		"chain":   func(tx *knftables.Transaction) { tx.Delete(&knftables.Chain{Name: "forward"}) },
		"element": func(tx *knftables.Transaction) { tx.Delete(&one) },
		"element of a set": func(tx *knftables.Transaction) {
			tx.Delete(&knftables.Element{Set: setNodePorts, Key: []string{"tcp", "1"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture()
				f.set("a", nodePort(1, forward), external("203.0.113.5", reject))
				f.start(t)
				time.Sleep(2 * checkPeriod) //nolint:forbidigo // of the bubble
				synctest.Wait()
				f.wantEvents(t)
				before := f.table.Dump()
				f.table.another(t, change)
				time.Sleep(checkPeriod) //nolint:forbidigo // of the bubble
				synctest.Wait()
				f.wantEvents(t, eventreason.ServiceRulesRestored)
				if got := f.table.Dump(); got != before {
					t.Errorf("got table\n%s\nwant\n%s", got, before)
				}
			})
		})
	}
}

func TestTranslator_deletedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.start(t)
		f.table.deleteTable(t)
		f.set("a", nodePort(1, forward)) // restored at once
		f.wantElements(t, "all-node-ports tcp 1", "node-ports tcp 1: 172.30.0.10 80")
		f.wantEvents(t, eventreason.ServiceRulesRestored)
		for range 8 * 60 {
			if f.table.Table != nil {
				f.table.deleteTable(t)
			}
			f.set("a", nodePort(1, reject))
			f.set("a", nodePort(1, forward))
			time.Sleep(time.Second) //nolint:forbidigo // of the bubble
			synctest.Wait()
		}
		f.mu.Lock()
		if n := len(f.events); n < 4 || n > 6 { // after 10, 30, 70, 150, 310 s
			t.Errorf("got %d restorations in 8 minutes, want one after 10 s and twice the time after each", n)
		}
		f.events = nil
		f.mu.Unlock()
		time.Sleep(2 * maxCheckPeriod) //nolint:forbidigo // of the bubble
		synctest.Wait()
		f.wantElements(t, "all-node-ports tcp 1", "node-ports tcp 1: 172.30.0.10 80")
	})
}

// Checks list the table only after a change of the ruleset by another program.
func TestTranslator_generation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.start(t)
		time.Sleep(2 * checkPeriod) //nolint:forbidigo // of the bubble
		f.set("a", nodePort(1, forward))
		time.Sleep(10 * checkPeriod) //nolint:forbidigo // of the bubble
		synctest.Wait()
		if f.table.lists != 1 {
			t.Errorf("got %d lists of the table, want 1", f.table.lists)
		}
		f.table.another(t, func(tx *knftables.Transaction) { tx.Add(&knftables.Chain{Name: "other"}) })
		time.Sleep(10 * checkPeriod) //nolint:forbidigo // of the bubble
		synctest.Wait()
		if f.table.lists != 2 {
			t.Errorf("got %d lists of the table, want 2", f.table.lists)
		}
		f.wantEvents(t)
	})
}

func TestTranslator_concurrentSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.start(t)
		var group sync.WaitGroup
		var want []string
		for i := range 20 {
			want = append(want, fmt.Sprintf("all-node-ports udp %d", i+1), fmt.Sprintf("node-ports udp %d: 172.30.0.10 80", i+1))
			group.Go(func() {
				for _, verdict := range []endpoints.Verdict{forward, reject, drop, forward} {
					frontend := nodePort(uint16(i+1), verdict)
					frontend.Protocol = corev1.ProtocolUDP
					f.Set(fmt.Sprintf("a/%d", i), []Frontend{frontend})
				}
			})
		}
		group.Wait()
		synctest.Wait()
		f.wantElements(t, want...)
	})
}

// Run ends with its context, and writes nothing after that.
func TestTranslator_end(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		f.Run(ctx)
		if got := f.table.written(); len(got) > 0 {
			t.Errorf("got transactions of %v operations, want none", got)
		}
	})
}

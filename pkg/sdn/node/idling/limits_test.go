package idling

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// The numbers of packets are bounded: of the node, of each port and of each service. Hosts outside, which can forge addresses, leave room for pods.
func TestHolder_full(t *testing.T) {
	inBubble(t, func(f *fixture) {
		var keys []string
		for i := range maxHeld / maxOfService * 2 {
			keys = append(keys, f.idle("ns", fmt.Sprint(i)))
		}
		full := uint64(0)
		for i, client := range clients("198.51.100.0", maxOfHost+10) {
			f.send(keys[i%len(keys)], client, func(p *ovs.PacketIn) { p.InPort = pipeline.PortTun })
		}
		full += 10
		f.want("outside", Statistics{Held: maxOfHost, Full: full})
		for i, client := range clients("10.128.0.0", maxHeld-maxOfHost+5) {
			f.send(keys[i%len(keys)], client, nil)
		}
		full += 5
		f.want("pods", Statistics{Held: maxHeld, Full: full})
		for _, key := range keys {
			f.Release(key, true)
		}
		time.Sleep(2 * awaitInterval) //nolint:forbidigo // of the bubble
		f.want("sent", Statistics{Sent: maxHeld, Full: full})
		f.idle("ns", "0")
		f.send(keys[0], "198.51.100.1", nil)
		f.want("room again", Statistics{Held: 1, Sent: maxHeld, Full: full})
	})
}

// clients returns the first addresses after one.
func clients(after string, n int) (all []string) {
	addr := netip.MustParseAddr(after)
	for range n {
		addr = addr.Next()
		all = append(all, addr.String())
	}
	return all
}

// A pod does not use up the room of others by connections to many services, nor a service by its clients.
func TestHolder_fullOfPortAndService(t *testing.T) {
	inBubble(t, func(f *fixture) {
		for i := range maxOfPort + 3 {
			f.send(f.idle("hostile", fmt.Sprint(i)), "10.128.0.5", nil)
		}
		f.want("a pod", Statistics{Held: maxOfPort, Full: 3})
		key := f.idle("ns", "svc")
		for _, client := range clients("10.128.0.10", maxOfService+4) {
			f.send(key, client, nil)
		}
		f.want("a service", Statistics{Held: maxOfPort + maxOfService, Full: 7})
		f.send(f.idle("ns", "other"), "10.128.0.11", nil)
		f.want("another service", Statistics{Held: maxOfPort + maxOfService + 1, Full: 7})
	})
}

// The datapath is waited for once for each release and at most once in an interval. Events and the ends of packets do not wait for it.
func TestHolder_awaitsDatapathSeldom(t *testing.T) {
	inBubble(t, func(f *fixture) {
		var keys []string
		for i := range 3 {
			keys = append(keys, f.idle("ns", fmt.Sprint(i)))
			f.send(keys[i], "10.128.0.5", nil)
		}
		f.blocked = make(chan struct{})
		f.Release(keys[0], true)
		synctest.Wait()
		f.Release(keys[1], true)
		f.wantEvents("before", "ns/0 uid NeedPods", "ns/1 uid NeedPods", "ns/2 uid NeedPods")
		f.send(f.idle("ns", "new"), "10.128.0.6", nil)
		f.wantEvents("while the datapath is waited for", "ns/new uid NeedPods")
		f.want("while the datapath is waited for", Statistics{Held: 2})
		close(f.blocked)
		synctest.Wait()
		f.Release(keys[2], true)
		f.want("the first", Statistics{Held: 1, Sent: 1})
		time.Sleep(2 * awaitInterval) //nolint:forbidigo // of the bubble
		f.want("the others", Statistics{Held: 1, Sent: 3})
		for _, client := range clients("10.128.0.10", 5) { // late ones
			f.send(keys[1], client, nil)
		}
		f.want("late", Statistics{Held: 1, Sent: 8})
		if f.mu.Lock(); len(f.awaits) != 2 || f.awaits[1].Sub(f.awaits[0]) < awaitInterval {
			t.Errorf("got waits for the datapath at %v, want 2 with %v in between", f.awaits, awaitInterval)
		}
		f.mu.Unlock()
	})
}

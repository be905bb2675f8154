package policies

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// journal runs a denied that explains by number, and returns the lines that it has logged since it was asked last.
func journal(t *testing.T) (d *denied, logged func() []string) {
	t.Helper()
	d = newDenied(func(what denial) explanation {
		return explanation{source: what.source.String(), destination: what.destination.String(), policies: []string{fmt.Sprintf("rule %d", what.Rule)}}
	})
	var lines record
	ctx, stop := context.WithCancel(lines.into(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.run(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
	return d, func() []string {
		synctest.Wait()
		return lines.take()
	}
}

// packetIn is what the switch sends when it denies a packet.
func packetIn(t *testing.T, egress bool, rule uint32, frame []byte) ovs.PacketIn {
	t.Helper()
	p := ovs.PacketIn{Packet: frame}
	p.Registers[5] = rule
	for p.Table = 1; p.Table < 255; p.Table++ {
		if d, ok := pipeline.ReadDenied(p); ok && d == (pipeline.Denied{Egress: egress, Rule: rule}) {
			return p
		}
	}
	t.Fatal("no table denies")
	return p
}

func toPort(port uint16) []byte { return frame("10.128.0.5", "10.129.0.9", protocolTCP, ports(port)) }

func TestDeniedLogsOncePerInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, logged := journal(t)
		want := func(when string, want ...string) {
			t.Helper()
			if got := logged(); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("%s:\n%s\nwant:\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		line := func(direction string, rule, packets int) string {
			return fmt.Sprintf(`"Denied" "source"="10.128.0.5" "destination"="10.129.0.9" "protocol"="TCP" "port"=80 "direction"="%s" "policies"=["rule %d"] "packets"=%d`, direction, rule, packets)
		}
		for range 5 {
			d.handle(packetIn(t, false, 0, toPort(80)))
		}
		want("the first of five packets", line("ingress", 0, 1))
		d.handle(packetIn(t, true, 7, toPort(80)))
		want("the other direction", line("egress", 7, 1))
		d.handle(ovs.PacketIn{Packet: toPort(80)})
		d.handle(packetIn(t, true, 7, nil))
		want("a packet of another table, and one that is none")
		time.Sleep(logInterval) //nolint:forbidigo // of the bubble's clock
		want("an interval later", line("ingress", 0, 4))
		time.Sleep(2 * logInterval) //nolint:forbidigo // as above
		want("when no more came")
		d.handle(packetIn(t, false, 0, toPort(80)))
		want("when it begins again", line("ingress", 0, 1))
	})
}

// What is too much for a log is counted: kinds of packets, and packets while names are looked up.
func TestDeniedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, logged := journal(t)
		for port := range uint16(2 * maxDenials) {
			d.handle(packetIn(t, false, 0, toPort(port+1)))
			synctest.Wait()
		}
		if n := len(logged()); n != maxDenialsOfPod {
			t.Errorf("%d lines for %d kinds of packets of a pod, want %d", n, 2*maxDenials, maxDenialsOfPod)
		}
		for _, egress := range []bool{false, true} {
			d.handle(packetIn(t, egress, 0, frame("10.128.0.6", "10.128.0.7", protocolTCP, ports(80))))
			if got := logged(); len(got) != 1 {
				t.Errorf("egress %v: %d lines for another pod's packet, want 1", egress, len(got))
			}
		}
		time.Sleep(logInterval) //nolint:forbidigo // of the bubble's clock
		if got, want := logged(), fmt.Sprintf(`"More was denied than is logged by name" "packets"=%d`, 2*maxDenials-maxDenialsOfPod); len(got) != 1 || got[0] != want {
			t.Errorf("%q, want %q", got, want)
		}
		for pod := range 2 * maxDenials / maxDenialsOfPod {
			for port := range uint16(maxDenialsOfPod) {
				d.handle(packetIn(t, true, 0, frame(fmt.Sprintf("10.128.1.%d", pod), "10.129.0.9", protocolTCP, ports(port+1))))
				synctest.Wait()
			}
		}
		if n := len(logged()); n != maxDenials {
			t.Errorf("%d lines for the packets of many pods, want %d", n, maxDenials)
		}
		time.Sleep(2 * logInterval) //nolint:forbidigo // as above
		logged()
		if more := logged(); len(more) != 0 || len(d.lines) != 0 || len(d.of) != 0 {
			t.Errorf("%d denials of %d pods are remembered when all is quiet: %q", len(d.lines), len(d.of), more)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		d := newDenied(nil) // nobody takes the packets
		for range maxWaiting + 3 {
			d.handle(packetIn(t, false, 0, toPort(80)))
		}
		if n := d.missed.Load(); n != 3 {
			t.Errorf("%d packets too many, want 3", n)
		}
	})
}

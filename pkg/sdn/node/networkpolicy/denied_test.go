package networkpolicy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/tier"
)

// newTestDenied returns a denied of a node with two subnets that names ends by their addresses and policies by the rule.
func newTestDenied() *denied {
	return newDenied(func(d denial) explanation {
		return explanation{source: d.source.String(), destination: d.destination.String(), policies: []string{fmt.Sprintf("rule %d", d.Rule)}}
	}, []netip.Prefix{netip.MustParsePrefix("10.128.0.0/24"), localSubnet()})
}

func localSubnet() netip.Prefix { return netip.MustParsePrefix("10.129.0.0/23") }

// runDenied runs a denied until the test ends. logged returns the lines since its last call.
func runDenied(t *testing.T, d *denied) (logged func() []string) {
	t.Helper()
	var lines logRecorder
	ctx, stop := context.WithCancel(lines.withLogger(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.run(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
	return func() []string {
		synctest.Wait()
		return lines.take()
	}
}

// packetIn returns the message of the switch about a denied packet.
func packetIn(t *testing.T, egress bool, rule uint32, frame []byte) ovs.PacketIn {
	t.Helper()
	p := ovs.PacketIn{Packet: frame}
	p.Registers[5] = rule
	for p.Table = 1; p.Table < 255; p.Table++ {
		if d, ok := pipeline.ReadDenied(p); ok && d == (pipeline.Denied{Egress: egress, Rule: rule}) {
			return p
		}
	}
	t.Fatal("no table reports denied packets")
	return p
}

func toPort(port uint16) []byte { return frame("10.128.0.5", "10.129.0.9", protocolTCP, ports(port)) }

func TestDenied_logsOncePerInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDenied()
		logged := runDenied(t, d)
		want := func(when string, want ...string) {
			t.Helper()
			if got := logged(); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("%s: got\n%s\nwant\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		line := func(direction string, rule, packets int) string {
			return fmt.Sprintf(`"Denied" "source"="10.128.0.5" "destination"="10.129.0.9" "protocol"="TCP" "port"=80 "direction"="%s" "policies"=["rule %d"] "packets"=%d`, direction, rule, packets)
		}
		for range 5 {
			d.handle(packetIn(t, false, 0, toPort(80)))
		}
		want("after the first of five packets", line("ingress", 0, 1))
		d.handle(packetIn(t, true, 7, toPort(80)))
		want("after a packet in the other direction", line("egress", 7, 1))
		d.handle(ovs.PacketIn{Packet: toPort(80)})
		d.handle(packetIn(t, true, 7, nil))
		want("after a message of another table, and one without a packet")
		pass(logInterval)
		want("after an interval", line("ingress", 0, 4))
		pass(2 * logInterval)
		want("after two intervals without packets")
		d.handle(packetIn(t, false, 0, toPort(80)))
		want("after the first packet of another sequence", line("ingress", 0, 1))
	})
}

// denials handles denied packets of local pods: kind 0 of all pods, then kind 1 of all pods, and so on.
func denials(t *testing.T, d *denied, pods []netip.Addr, kinds int) {
	t.Helper()
	in, out := packetIn(t, false, 0, nil), packetIn(t, true, 0, nil)
	for kind := range kinds {
		for _, pod := range pods {
			in.Packet = frame("192.0.2.1", pod.String(), protocolTCP, ports(uint16(kind+1))) //nolint:gosec // a port
			d.handle(in)
			out.Packet = frame(pod.String(), "192.0.2.1", protocolTCP, ports(uint16(kind+1))) //nolint:gosec // a port
			d.handle(out)
		}
	}
}

// localPods returns the addresses of all pods that the node can have.
func localPods() (pods []netip.Addr) {
	for addr := localSubnet().Addr().Next().Next(); localSubnet().Contains(addr.Next()); addr = addr.Next() {
		pods = append(pods, addr)
	}
	return pods
}

// having returns the number of lines that contain all parts.
func having(lines []string, parts ...string) (n int) {
	for _, line := range lines {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
			n++
		}
	}
	return n
}

// pass advances the clock of the synctest bubble.
func pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // the bubble's clock

// All other pods of the node exceed maxKinds before the agent can log anything. The single packet of one pod is logged, after at most one line of each
// other pod and direction.
func TestDenied_floodsOfOtherPods(t *testing.T) {
	tier.Parallel(t)
	for _, egress := range []bool{false, true} {
		t.Run(fmt.Sprintf("egress %v", egress), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newTestDenied()
				all := localPods()
				flooding, quiet := all[1:], all[0].String()
				denials(t, d, flooding, 2*maxKinds)
				source, destination := "192.0.2.1", quiet
				if egress {
					source, destination = quiet, "192.0.2.1"
				}
				d.handle(packetIn(t, egress, 0, frame(source, destination, protocolTCP, ports(443))))
				logged := runDenied(t, d)
				lines := logged()
				at := slices.IndexFunc(lines, func(line string) bool {
					return strings.Contains(line, fmt.Sprintf(`"Denied" "source"="%s" "destination"="%s"`, source, destination))
				})
				if limit := 2 * len(flooding); at < 0 || at > limit {
					t.Errorf("the packet of %s is in line %d of %d, want line %d or before", quiet, at, len(lines), limit)
				}
				if want := 2*len(flooding)*maxKinds + 1; len(lines) != want {
					t.Errorf("got %d lines, want %d", len(lines), want)
				}
				pass(logInterval)
				lines = logged()
				if want := 2 * len(flooding); len(lines) != want || having(lines, "Omitted reports of denied packets") != want {
					t.Errorf("got %d lines, of which %d are about omitted packets, want %d", len(lines), having(lines, "Omitted reports"), want)
				}
				for _, direction := range []string{"ingress", "egress"} {
					want := fmt.Sprintf(`"Omitted reports of denied packets" "pod"="%s" "direction"="%s" "packets"=%d`, flooding[0], direction, maxKinds)
					if n := having(lines, want); n != 1 {
						t.Errorf("got %d lines with %s, want 1", n, want)
					}
				}
				pass(2 * logInterval)
				if more := logged(); len(more) != 0 || len(d.subjects) != 0 || len(d.queue) != 0 {
					t.Errorf("got %d subjects and %d queued after intervals without packets, want none: %q", len(d.subjects), len(d.queue), more)
				}
			})
		})
	}
}

// Remote senders choose their addresses freely, and use up only the lines of the pod that they send to. Packets between addresses of other nodes, which the
// switch does not report, share one subject.
func TestDenied_limitsBySubject(t *testing.T) {
	const addresses = 4096
	for name, tc := range map[string]struct {
		egress   bool
		packet   func(other string) []byte
		omitted  string
		subjects int
	}{
		"to a pod":  {false, func(other string) []byte { return frame(other, "10.129.0.9", protocolTCP, ports(80)) }, "10.129.0.9", 1},
		"by a pod":  {true, func(other string) []byte { return frame("10.129.0.9", other, protocolTCP, ports(80)) }, "10.129.0.9", 1},
		"to others": {false, func(other string) []byte { return frame("10.129.0.9", other, protocolTCP, ports(80)) }, "unknown", 1},
		"by others": {true, func(other string) []byte { return frame(other, "10.129.0.9", protocolTCP, ports(80)) }, "unknown", 1},
		"no packet": {false, func(string) []byte { return nil }, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newTestDenied()
				logged := runDenied(t, d)
				p := packetIn(t, tc.egress, 0, nil)
				for n := range addresses {
					p.Packet = tc.packet(fmt.Sprintf("198.51.%d.%d", n>>8, n&0xff))
					d.handle(p)
				}
				if got, want := having(logged(), `"Denied"`), tc.subjects*maxKinds; got != want {
					t.Errorf("got %d lines, want %d", got, want)
				}
				if len(d.subjects) != tc.subjects {
					t.Errorf("got %d subjects, want %d", len(d.subjects), tc.subjects)
				}
				pass(logInterval)
				want := fmt.Sprintf(`"pod"="%s"`, tc.omitted)
				if lines := logged(); len(lines) != tc.subjects || having(lines, want, fmt.Sprintf(`"packets"=%d`, addresses-maxKinds)) != tc.subjects {
					t.Errorf("got lines %q, want %d with %s", lines, tc.subjects, want)
				}
			})
		})
	}
}

// Packets that arrive while logging is blocked are counted, and logged once.
func TestDenied_blockedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDenied()
		for range 3 {
			d.handle(packetIn(t, false, 0, toPort(80)))
			d.repeat() // the end of an interval
		}
		logged := runDenied(t, d)
		if lines := logged(); len(lines) != 1 || having(lines, `"packets"=1`) != 1 {
			t.Errorf("got lines %q, want one of one packet", lines)
		}
		pass(logInterval)
		if lines := logged(); len(lines) != 1 || having(lines, `"packets"=2`) != 1 {
			t.Errorf("got lines %q after an interval, want one of two packets", lines)
		}
	})
}

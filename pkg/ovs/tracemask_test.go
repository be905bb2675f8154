package ovs_test

import (
	"cmp"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

func readTrace(t *testing.T, edit func(string) string, name string) *ovs.Trace {
	t.Helper()
	report, err := os.ReadFile("testdata/trace/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	trace, err := ovs.NewTraceParser(traceTables()).Parse(edit(string(report)))
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func unedited(report string) string { return report }

// tracedPacket is what may differ between packets with the same trace. Zero values are those of the traced packet.
type tracedPacket struct {
	source, dest string
	port         uint16
	mac          string // of the destination
}

// traceFor returns the trace of the packet by that of another one.
func (p tracedPacket) traceFor(t *testing.T, trace *ovs.Trace) (*ovs.Trace, bool) {
	t.Helper()
	start := trace.Passes[0].Start
	mac := func(text string) net.HardwareAddr {
		addr, err := net.ParseMAC(text)
		if err != nil {
			t.Fatal(err)
		}
		return addr
	}
	port, _ := strconv.ParseUint(start["tp_dst"], 10, 16) // ICMP has none
	return trace.For(ovs.TracePacket{
		EthSource: mac(start["dl_src"]), EthDest: mac(cmp.Or(p.mac, start["dl_dst"])), DestPort: cmp.Or(p.port, uint16(port)),
		Source: netip.MustParseAddr(cmp.Or(p.source, start["nw_src"])), Dest: netip.MustParseAddr(cmp.Or(p.dest, start["nw_dst"])),
	})
}

// A packet with other addresses or another destination port has the same trace if no pass of the first one distinguishes them.
func TestTrace_for(t *testing.T) {
	for _, tc := range []struct {
		report string
		packet tracedPacket
		want   bool
	}{
		{"networkpolicy-denied", tracedPacket{port: 80}, true}, // no pass matches ports
		{"networkpolicy-denied", tracedPacket{port: 65535}, true},
		{"networkpolicy-denied", tracedPacket{source: "10.129.0.9"}, true},  // its own
		{"networkpolicy-denied", tracedPacket{source: "10.129.0.8"}, false}, // the second pass matches the address
		{"networkpolicy-denied", tracedPacket{dest: "10.128.0.5"}, false},
		{"multitenant-isolation", tracedPacket{port: 4095}, true}, // tp_dst=0x0/0xf000
		{"multitenant-isolation", tracedPacket{port: 4096}, false},
		{"multitenant-endpoints", tracedPacket{port: 443}, true}, // tp_dst=443
		{"multitenant-endpoints", tracedPacket{port: 442}, false},
		{"networkpolicy-affinity", tracedPacket{port: 81}, false},        // an action changes the port
		{"subnet-tunnel", tracedPacket{}, false},                         // ICMP
		{"networkpolicy-tunnel", tracedPacket{dest: "10.128.0.2"}, true}, // nw_dst=10.128.0.0/23, 10.128.0.2/31
		{"networkpolicy-tunnel", tracedPacket{dest: "10.128.0.2", port: 9000}, true},
		{"networkpolicy-tunnel", tracedPacket{dest: "10.128.0.4"}, false},
		{"networkpolicy-tunnel", tracedPacket{dest: "10.128.0.2", mac: "0a:58:0a:80:00:02"}, true},
		{"networkpolicy-denied", tracedPacket{mac: "0a:58:0a:80:00:63"}, true},
		{"networkpolicy-tunnel", tracedPacket{source: "10.128.2.3"}, false}, // nw_src=0.0.2.2/0.0.31.255
	} {
		trace := readTrace(t, unedited, tc.report)
		before := traceSummary(trace)
		got, ok := tc.packet.traceFor(t, trace)
		if ok != tc.want {
			t.Errorf("%s: %+v has the same trace: %t, want %t", tc.report, tc.packet, ok, tc.want)
		}
		if traceSummary(trace) != before {
			t.Errorf("%s: %+v: the trace itself has changed", tc.report, tc.packet)
		}
		if !ok {
			continue
		}
		for i, pass := range got.Passes {
			for _, fields := range []map[string]string{pass.Start, pass.End} {
				for field, want := range map[string]string{"nw_src": tc.packet.source, "nw_dst": tc.packet.dest, "tp_dst": strconv.Itoa(int(tc.packet.port))} {
					if want != "" && want != "0" && fields[field] != want {
						t.Errorf("%s: %+v: pass %d has %s=%s", tc.report, tc.packet, i, field, fields[field])
					}
				}
			}
		}
	}
}

// A field of a megaflow in a form that is unknown is matched as a whole.
func TestTrace_for_unknownForm(t *testing.T) {
	for name, edit := range map[string]func(string) string{
		"no megaflows":  func(s string) string { return regexp.MustCompile(`(?m)^Megaflow: .*\n`).ReplaceAllString(s, "") },
		"another form":  func(s string) string { return strings.ReplaceAll(s, "tp_dst=0x0/0xf000", "tp_dst=0..4095") },
		"another mask":  func(s string) string { return strings.ReplaceAll(s, "tp_dst=0x0/0xf000", "tp_dst=0x0/-1") },
		"mask too long": func(s string) string { return strings.ReplaceAll(s, "tp_dst=0x0/0xf000", "tp_dst=0x0/99") },
	} {
		trace := readTrace(t, edit, "multitenant-isolation")
		for port, want := range map[uint16]bool{53: true, 54: false} {
			if _, ok := (tracedPacket{port: port}).traceFor(t, trace); ok != want {
				t.Errorf("%s: port %d has the same trace: %t, want %t", name, port, ok, want)
			}
		}
	}
}

package ovs_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

var updateTraces = flag.Bool("update-traces", false, "write testdata/trace/*.golden") //nolint:gochecknoglobals // a test binary parses its flags before any test runs

// traceTables are names of tables as Open vSwitch prints them.
func traceTables() map[int]string { return map[int]string{0: "classify", 80: "isolation"} }

// traceSummary lists the content of a trace, one flow or output a line.
func traceSummary(trace *ovs.Trace) string {
	var b strings.Builder
	for i := range trace.Passes {
		pass := &trace.Passes[i]
		fmt.Fprintf(&b, "pass %d %s\n", i, pass.Lookup)
		for _, f := range pass.Flows {
			fmt.Fprintf(&b, "  %s cookie=%#x\n", f.Key, f.Cookie)
			for _, a := range f.Actions {
				fmt.Fprintf(&b, "    %s\n", a.Text)
				if resumes, translates := a.Resumes(); resumes {
					fmt.Fprintf(&b, "      resumes, translates: %v\n", translates)
				}
				for _, w := range a.Warnings {
					fmt.Fprintf(&b, "      warning: %s\n", w)
				}
				if port, ok := a.Output(pass); ok {
					fmt.Fprintf(&b, "      output to port %d\n", port)
				}
			}
		}
		fmt.Fprintf(&b, "  end %s > %s reg5=%s tun_dst=%s\n", pass.End["nw_src"], pass.End["nw_dst"], pass.End["reg5"], pass.End["tun_dst"])
	}
	fmt.Fprintf(&b, "forks %d\n", trace.Forks)
	return b.String()
}

// The reports are of Open vSwitch 3.1, for flows of all modes (pkg/sdn/node/diagnosticsserver).
func TestParseTrace(t *testing.T) {
	names, err := filepath.Glob("testdata/trace/*.txt")
	if err != nil || len(names) < 7 {
		t.Fatalf("got %d reports, %v", len(names), err)
	}
	for _, name := range names {
		report, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		trace, err := ovs.NewTraceParser(traceTables()).Parse(string(report))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		golden := strings.TrimSuffix(name, ".txt") + ".golden"
		if *updateTraces {
			if err := os.WriteFile(golden, []byte(traceSummary(trace)), 0o644); err != nil { //nolint:gosec // a test's data
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got := traceSummary(trace); got != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}

const shortTrace = `Flow: tcp,in_port=3,nw_src=10.128.0.3,nw_dst=10.128.0.4

bridge("br0")
-------------
classify. ip, priority 100, cookie 0x2
     -> conj. ip,nw_dst=10.128.0.4, priority 100
    resubmit(,80)
    isolation. reg0=0x11,reg1=0x11, priority 7
            bucket 0
            output:NXM_NX_REG2[]
             -> output port is 4
             >> skipping output to input port
    NORMAL
    in_port
99. No match.
    drop

Final flow: unchanged
Megaflow: recirc_id=0
Datapath actions: drop
Translation failed (Recursion too deep), packet is dropped.
`

func TestParseTrace_forms(t *testing.T) {
	trace, err := ovs.NewTraceParser(traceTables()).Parse(shortTrace)
	if err != nil {
		t.Fatal(err)
	}
	want := `pass 0 
  table=0,priority=100,ip cookie=0x2
    resubmit(,80)
    NORMAL
      output to port -1
    in_port
      output to port 3
  table=80,priority=7,reg0=0x11,reg1=0x11 cookie=0x0
    bucket 0
    output:NXM_NX_REG2[]
      warning: skipping output to input port
      output to port 4
  table=99,priority=0 cookie=0x0
    drop
  end 10.128.0.3 > 10.128.0.4 reg5= tun_dst=
forks 0
`
	if got := traceSummary(trace); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if pass := trace.Passes[0]; !pass.Flows[2].NoMatch || !strings.Contains(pass.Failure, "Recursion too deep") {
		t.Errorf("got %+v, want that no flow of table 99 matched, and a failure", pass)
	}
	for name, report := range map[string]string{
		"empty":                "",
		"another text":         "ofproto/trace is unknown\n",
		"cut off":              shortTrace[:strings.Index(shortTrace, "Final flow")],
		"an unknown table":     strings.Replace(shortTrace, "99. No match.", "x99. No match.", 1),
		"a table above 255":    strings.Replace(shortTrace, "99. No match.", "999. No match.", 1),
		"an invalid priority":  strings.Replace(shortTrace, "priority 7", "priority 70000", 1),
		"a line without flow":  strings.Replace(shortTrace, "classify.", "classify", 1),
		"too long":             shortTrace + strings.Repeat("\n", ovs.MaxTraceText),
		"too many passes":      strings.Repeat("Flow: ip\nFinal flow: unchanged\n", 100),
		"too many flows":       strings.Replace(shortTrace, "99. No match.\n", strings.Repeat("99. No match.\n", 10000), 1),
		"too many repetitions": shortTrace + "Trace reached the recirculation limit.\n",
	} {
		if got, err := ovs.NewTraceParser(traceTables()).Parse(report); err == nil {
			t.Errorf("%s: got %d passes, want an error", name, len(got.Passes))
		}
	}
}

func FuzzParseTrace(f *testing.F) {
	names, err := filepath.Glob("testdata/trace/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(shortTrace)
	for _, name := range names {
		report, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(report))
	}
	f.Fuzz(func(t *testing.T, report string) {
		trace, err := ovs.NewTraceParser(traceTables()).Parse(report)
		if err != nil {
			return
		}
		if len(trace.Passes) == 0 {
			t.Error("got a trace without a pass")
		}
		if len(traceSummary(trace)) > 100*len(report)+10000 {
			t.Error("the trace is much larger than the report")
		}
		for _, pass := range trace.Passes {
			if pass.Start == nil || pass.End == nil || slices.ContainsFunc(pass.Flows, func(f ovs.TracedFlow) bool { return f.Key.Table < 0 || f.Key.Table > 255 || f.Key.Priority > 65535 }) {
				t.Errorf("got %+v", pass)
			}
		}
	})
}

func tracePacket() ovs.TracePacket {
	return ovs.TracePacket{
		InPort: 3, EthSource: []byte{10, 88, 10, 128, 0, 3}, EthDest: []byte{10, 88, 10, 128, 0, 4}, Protocol: ovs.ProtocolNumberTCP,
		Source: netip.MustParseAddr("10.128.0.3"), Dest: netip.MustParseAddr("10.128.0.4"), SourcePort: 40000, DestPort: 80, Hash: 1,
	}
}

func TestTraceArguments(t *testing.T) {
	const ends = ",nw_src=10.128.0.3,nw_dst=10.128.0.4,nw_tos=0,nw_ttl=64"
	const begin = "in_port=3,dp_hash=0x1,dl_src=0a:58:0a:80:00:03,dl_dst=0a:58:0a:80:00:04,"
	for name, tc := range map[string]struct {
		change     func(*ovs.TracePacket)
		want, next string // want "": an error
	}{
		"new":        {func(*ovs.TracePacket) {}, begin + "tcp,tcp_src=40000,tcp_dst=80,tcp_flags=0x2" + ends, "trk,new"},
		"reply":      {func(p *ovs.TracePacket) { p.Lookup = ovs.LookupReply }, begin + "tcp,tcp_src=40000,tcp_dst=80,tcp_flags=0x10" + ends, "trk,est,rpl"},
		"echo reply": {func(p *ovs.TracePacket) { p.Lookup, p.Protocol = ovs.LookupReply, 1 }, begin + "icmp,icmp_type=0,icmp_code=0" + ends, "trk,est,rpl"},
		"echo":       {func(p *ovs.TracePacket) { p.Protocol = 1 }, begin + "icmp,icmp_type=8,icmp_code=0" + ends, "trk,new"},
		"UDP":        {func(p *ovs.TracePacket) { p.Protocol = 17 }, begin + "udp,udp_src=40000,udp_dst=80" + ends, "trk,new"},
		"SCTP":       {func(p *ovs.TracePacket) { p.Protocol = 132 }, begin + "sctp,sctp_src=40000,sctp_dst=80" + ends, "trk,new"},
		"tunnel": {func(p *ovs.TracePacket) { p.TunnelSource, p.TunnelDest, p.TunnelID = p.Source, p.Dest, 17 },
			strings.Replace(begin, "0x1,", "0x1,tun_src=10.128.0.3,tun_dst=10.128.0.4,tun_id=0x11,", 1) + "tcp,tcp_src=40000,tcp_dst=80,tcp_flags=0x2" + ends, "trk,new"},
		"DSCP":           {func(p *ovs.TracePacket) { p.DSCP = 62 }, begin + "tcp,tcp_src=40000,tcp_dst=80,tcp_flags=0x2" + strings.Replace(ends, "tos=0", "tos=248", 1), "trk,new"},
		"large DSCP":     {func(p *ovs.TracePacket) { p.DSCP = 64 }, "", ""},
		"no port":        {func(p *ovs.TracePacket) { p.InPort = 0 }, "", ""},
		"no MAC":         {func(p *ovs.TracePacket) { p.EthDest = nil }, "", ""},
		"IPv6":           {func(p *ovs.TracePacket) { p.Source = netip.IPv6Loopback() }, "", ""},
		"no destination": {func(p *ovs.TracePacket) { p.Dest = netip.Addr{} }, "", ""},
		"IPv6 tunnel":    {func(p *ovs.TracePacket) { p.TunnelSource = netip.IPv6Loopback() }, "", ""},
		"IGMP":           {func(p *ovs.TracePacket) { p.Protocol = 2 }, "", ""},
		"no lookup":      {func(p *ovs.TracePacket) { p.Lookup = 9 }, "", ""},
	} {
		p := tracePacket()
		tc.change(&p)
		got, err := p.TraceArguments()
		if tc.want == "" {
			if err == nil {
				t.Errorf("%s: got %q, want an error", name, got)
			}
			continue
		}
		if err != nil || got[0] != tc.want || len(got)%2 != 1 || len(got) < 21 || got[1] != "--ct-next" || got[2] != tc.next ||
			got[len(got)-1] != strings.Replace(tc.next, "new", "new,snat,dnat", 1) {
			t.Errorf("%s: got %q, error %v, want %q and %s for each lookup, after the first one with the flags of translations", name, got, err, tc.want, tc.next)
		}
		if !regexp.MustCompile(`^[a-z0-9_=.:,]+$`).MatchString(got[0]) {
			t.Errorf("%s: got %q", name, got[0])
		}
	}
}

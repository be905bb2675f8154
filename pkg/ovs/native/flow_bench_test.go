package native_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// podFlows returns flows like those of a pod.
func podFlows(n int) []*ovs.Flow {
	ip := fmt.Sprintf("10.128.%d.%d/32", n>>8, n&0xff)
	return []*ovs.Flow{
		flow(20, 100, ip, goovs.Load("0x64", "NXM_NX_REG0[]"), ovs.GotoTable(30)),
		flow(25, 100, ip, goovs.Load("0x64", "NXM_NX_REG0[]"), ovs.GotoTable(30)),
		{Table: 40, Priority: 100, Protocol: goovs.ProtocolARP, Cookie: 7, Matches: []ovs.Match{ovs.ARPTargetIP(netip.MustParsePrefix(ip))}, Actions: []ovs.Action{goovs.Output(n + 3)}},
		{Table: 70, Priority: 100, Protocol: goovs.ProtocolIPv4, Cookie: 7, Matches: []ovs.Match{ovs.IPDestination(netip.MustParsePrefix(ip))}, Actions: []ovs.Action{
			goovs.Load("0x64", "NXM_NX_REG1[]"), goovs.Load(fmt.Sprintf("%#x", n+3), "NXM_NX_REG2[]"), ovs.GotoTable(80)}},
		{Table: 80, Priority: 150, Protocol: goovs.ProtocolIPv4, Cookie: 7, Matches: []ovs.Match{ovs.Reg(1, 100), ovs.IPDestination(netip.MustParsePrefix(ip))}, Actions: []ovs.Action{goovs.OutputField("NXM_NX_REG2[]")}},
	}
}

func manyFlows(n int) []*ovs.Flow {
	var flows []*ovs.Flow
	for i := 0; len(flows) < n; i++ {
		flows = append(flows, podFlows(i)...)
	}
	return flows[:n]
}

// BenchmarkBundle adds and deletes the flows of a pod with Native and Exec, alternately.
func BenchmarkBundle(b *testing.B) {
	s, n := startNative(b)
	e := native.NewExec(ovstest.Bridge, s.RunDir)
	flows := podFlows(1)
	timed := func(backend ovs.Interface) time.Duration {
		start := time.Now()
		add, remove := backend.NewTransaction(), backend.NewTransaction()
		for _, f := range flows {
			add.Add(f)
			remove.Delete(f)
		}
		must(b, backend.Run(b.Context(), add))
		must(b, backend.Run(b.Context(), remove))
		return time.Since(start) / 2
	}
	var native, exec []time.Duration
	for b.Loop() {
		native = append(native, timed(n))
		exec = append(exec, timed(e))
	}
	report(b, map[string][]time.Duration{"native": native, "exec": exec})
	b.ReportMetric(float64(median(exec))/float64(median(native)), "times-faster")
}

// BenchmarkReplace replaces empty tables by 50,000 flows, and again by the same flows, with Native and `ovs-ofctl --bundle
// replace-flows` of an existing file, alternately.
func BenchmarkReplace(b *testing.B) {
	s, n := startNative(b)
	flows := manyFlows(50_000)
	file := filepath.Join(b.TempDir(), "flows")
	var text strings.Builder
	for _, f := range flows {
		t, err := ovs.FlowText(f)
		must(b, err)
		text.WriteString(t + "\n")
	}
	must(b, os.WriteFile(file, []byte(text.String()), 0o600))
	timed := func(f func()) time.Duration {
		start := time.Now()
		f()
		return time.Since(start)
	}
	ofctl := func() { s.OFCtl(b, "--bundle", "replace-flows", ovstest.Bridge, file) }
	native := func() { must(b, replace(b, n, flows)) }
	clear := func() { s.OFCtl(b, "del-flows", ovstest.Bridge) }
	var nativeFull, nativeSame, ofctlFull, ofctlSame []time.Duration
	for b.Loop() {
		clear()
		ofctlFull = append(ofctlFull, timed(ofctl))
		ofctlSame = append(ofctlSame, timed(ofctl))
		clear()
		nativeFull = append(nativeFull, timed(native))
		nativeSame = append(nativeSame, timed(native))
	}
	report(b, map[string][]time.Duration{"native-full": nativeFull, "native-same": nativeSame, "ofctl-full": ofctlFull, "ofctl-same": ofctlSame})
	b.ReportMetric(float64(median(nativeFull))/float64(median(ofctlFull)), "x-ofctl-full")
	b.ReportMetric(float64(median(nativeSame))/float64(median(ofctlSame)), "x-ofctl-same")
}

// report reports medians instead of the time per iteration.
func report(b *testing.B, times map[string][]time.Duration) {
	for name, d := range times {
		b.ReportMetric(float64(median(d).Microseconds())/1000, name+"-ms")
	}
	b.ReportMetric(0, "ns/op")
}

package node

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

func TestFlowExport_validate(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*FlowExport)
		want   string // "": valid
	}{
		"off":              {func(*FlowExport) {}, ""},
		"IPv4 and IPv6":    {func(f *FlowExport) { f.Collectors = []string{"192.0.2.10:4739", "[2001:db8::1]:4739"} }, ""},
		"no port":          {func(f *FlowExport) { f.Collectors = []string{"192.0.2.10"} }, `--ipfix-collectors: "192.0.2.10" is not an address: write IP:PORT`},
		"a name":           {func(f *FlowExport) { f.Collectors = []string{"collector:4739"} }, `"collector:4739" is not an address`},
		"port 0":           {func(f *FlowExport) { f.Collectors = []string{"192.0.2.10:0"} }, `"192.0.2.10:0" has port 0`},
		"port beyond":      {func(f *FlowExport) { f.Collectors = []string{"192.0.2.10:65536"} }, "is not an address"},
		"unspecified":      {func(f *FlowExport) { f.Collectors = []string{"0.0.0.0:4739"} }, "is not the address of one host"},
		"multicast":        {func(f *FlowExport) { f.Collectors = []string{"224.0.0.1:4739"} }, "is not the address of one host"},
		"too many":         {func(f *FlowExport) { f.Collectors = slicesOf("192.0.2.10:4739", 9) }, "9 addresses, at most 8"},
		"no sampling":      {func(f *FlowExport) { f.Sampling = 0 }, "--ipfix-sampling=0: must be from 1 (each packet) to 65535"},
		"rare sampling":    {func(f *FlowExport) { f.Sampling = 65536 }, "--ipfix-sampling=65536"},
		"long timeout":     {func(f *FlowExport) { f.ActiveTimeout = 4201 * time.Second }, "--ipfix-cache-timeout=1h10m1s: must be whole seconds from 0"},
		"part of a second": {func(f *FlowExport) { f.ActiveTimeout = time.Millisecond }, "--ipfix-cache-timeout=1ms"},
	} {
		cfg := Defaults()
		cfg.NodeName = "node1"
		test.change(&cfg.FlowExport)
		err := cfg.Validate()
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: got %v, want no error", name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

func slicesOf(text string, n int) []string {
	return strings.Split(strings.TrimSuffix(strings.Repeat(text+",", n), ","), ",")
}

// Without collectors nothing is sampled, and no exporter exists.
func TestFlowExport_off(t *testing.T) {
	f := Defaults().FlowExport
	if e, s := f.exporter(), f.samples(netip.MustParseAddr("192.0.2.1")); e != nil || s != (pipeline.FlowExport{}) {
		t.Errorf("got exporter %v and samples %+v, want none", e, s)
	}
}

func TestFlowExport_samples(t *testing.T) {
	f := Defaults().FlowExport
	f.Collectors = []string{"192.0.2.10:4739"}
	node := netip.MustParseAddr("192.0.2.1")
	for sampling, want := range map[int]uint16{1: 65535, 2: 32767, 10: 6553, 400: 163, 65535: 1, 50000: 1} {
		f.Sampling = sampling
		if got := f.samples(node); got != (pipeline.FlowExport{Probability: want, Domain: 0xc0000201}) {
			t.Errorf("1 of %d: got %+v, want probability %d and the node's address as the domain", sampling, got, want)
		} else if counted := 65535 / int(got.Probability); counted < sampling {
			t.Errorf("1 of %d: vswitchd counts a sample as %d packets, want no less", sampling, counted)
		}
	}
	f.Domain = 5
	if got := f.samples(node).Domain; got != 5 {
		t.Errorf("got domain %d, want that of the flag", got)
	}
	want := &ovs.Exporter{CollectorSet: 4739, Collectors: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:4739")}, ActiveTimeout: time.Minute, MaxFlows: 8192}
	if diff := cmp.Diff(want, f.exporter(), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("exporter (-want +got):\n%s", diff)
	}
	if err := f.exporter().Validate(); err != nil {
		t.Error(err)
	}
}

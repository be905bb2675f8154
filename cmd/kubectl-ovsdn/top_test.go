package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// podTraffic returns the counters of a pod's port of that age in seconds. Its packets have 100 bytes.
func podTraffic(name string, port int, age float64, in, out, dropped uint64) diagnostics.PodTraffic {
	namespace, name, _ := strings.Cut(name, "/")
	return diagnostics.PodTraffic{
		Namespace: namespace, Name: name, OFPort: port, Age: metav1.Duration{Duration: time.Duration(age * float64(time.Second))},
		In: diagnostics.Traffic{Bytes: 100 * in, Packets: in, Dropped: dropped}, Out: diagnostics.Traffic{Bytes: 100 * out, Packets: out},
	}
}

func nodeTraffic(name, message string, pods ...diagnostics.PodTraffic) diagnostics.NodeTraffic {
	return diagnostics.NodeTraffic{ObjectMeta: metav1.ObjectMeta{Name: name}, Error: message, Pods: pods}
}

// trafficAPI answers with the samples one after another, and with the last one again. A sample has two pages, of which the second one is that of node2.
func trafficAPI(t *testing.T, samples ...[]diagnostics.NodeTraffic) *fakeAPI {
	t.Helper()
	var api *fakeAPI
	path := diagnosticsPath + "/nodetraffics"
	next := func() []diagnostics.NodeTraffic {
		now := samples[0]
		if len(samples) > 1 {
			samples = samples[1:]
		}
		return now
	}
	api = newFakeAPI(t, map[string]any{path + "/node1": func() any { return next()[0] }, path: func() any {
		if strings.Contains(api.last.Load().(string), "continue=second") {
			return diagnostics.NodeTrafficList{Items: next()[1:]}
		}
		return diagnostics.NodeTrafficList{ListMeta: metav1.ListMeta{Continue: "second"}, Items: samples[0][:1]}
	}})
	return api
}

// top returns what one call of show prints, with a short interval.
func (a *fakeAPI) top(t *testing.T, by trafficGroup, output string, change ...func(*topLister)) (out, errOut string, err error) {
	t.Helper()
	flags := genericclioptions.NewConfigFlags(true)
	flags.APIServer = &a.url
	streams, _, o, e := genericiooptions.NewTestIOStreams()
	l := &topLister{IOStreams: streams, by: by, sortBy: sortByBytes, interval: time.Millisecond}
	for _, f := range change {
		f(l)
	}
	if l.kube, _, err = clients(flags); err != nil {
		t.Fatal(err)
	}
	format := genericclioptions.NewPrintFlags("")
	*format.OutputFormat = output
	if l.printer, err = tableOrObjects(format, false); err != nil {
		t.Fatal(err)
	}
	err = l.show(t.Context())
	return o.String(), e.String(), err
}

// twoSamples has pods with traffic and without, two sandboxes of one pod, and pods that have no rate: one is new, the port of one was added again, counters of
// one went backwards, those of one were read at the same moment.
func twoSamples() (first, second []diagnostics.NodeTraffic) {
	return []diagnostics.NodeTraffic{
			nodeTraffic("node1", "", podTraffic("shop/web", 3, 10, 5, 50, 1), podTraffic("shop/db", 4, 9, 7, 0, 0), podTraffic("shop/again", 5, 100, 7, 0, 0), podTraffic("shop/reset", 6, 1, 7, 9, 0),
				podTraffic("shop/web", 9, 1, 0, 0, 0), podTraffic("shop/same", 7, 1, 7, 9, 0)),
			nodeTraffic("node2", "", podTraffic("lab/x", 3, 1, 0, 0, 0)),
		}, []diagnostics.NodeTraffic{
			nodeTraffic("node1", "", podTraffic("shop/web", 3, 12, 12505, 70, 5), podTraffic("shop/db", 4, 10, 7, 0, 0), podTraffic("shop/again", 5, 1, 70, 0, 0), podTraffic("shop/reset", 6, 3, 700, 8, 0),
				podTraffic("shop/web", 9, 2, 10, 0, 0), podTraffic("shop/same", 7, 1, 99, 99, 0), podTraffic("shop/new", 8, 1, 70, 70, 0)),
			nodeTraffic("node2", "", podTraffic("lab/x", 3, 3, 0, 2_000_000, 0)),
			nodeTraffic("node3", "the agent of node3 does not support it\nupgrade the agent"),
		}
}

func TestTop(t *testing.T) {
	for name, c := range map[string]struct {
		by     trafficGroup
		output string
		change func(*topLister)
		want   string
	}{
		"pods": {by: byPod, want: `
NAMESPACE   POD   NODE    IN-BITS/S   OUT-BITS/S   IN-PACKETS/S   OUT-PACKETS/S   DROPS/S
lab         x     node2   0           800M         0              1M              0
shop        web   node1   5.01M       8k           6.26k          10              2
shop        db    node1   0           0            0              0               0
`},
		"wide": {by: byPod, output: wide, change: func(l *topLister) { l.limit, l.sortBy = 1, "in" }, want: `
NAMESPACE   POD   NODE    IN-BITS/S   OUT-BITS/S   IN-PACKETS/S   OUT-PACKETS/S   DROPS/S   IN-DROPS/S   OUT-DROPS/S
shop        web   node1   5.01M       8k           6.26k          10              2         2            0
`},
		"of a namespace": {by: byPod, change: func(l *topLister) { l.namespace, l.limit = "shop", 1 }, want: `
NAMESPACE   POD   NODE    IN-BITS/S   OUT-BITS/S   IN-PACKETS/S   OUT-PACKETS/S   DROPS/S
shop        web   node1   5.01M       8k           6.26k          10              2
`},
		"namespaces": {by: byNamespace, want: `
NAMESPACE   PORTS   IN-BITS/S   OUT-BITS/S   IN-PACKETS/S   OUT-PACKETS/S   DROPS/S
lab         1       0           800M         0              1M              0
shop        3       5.01M       8k           6.26k          10              2
`},
		"nodes": {by: byNode, change: func(l *topLister) { l.sortBy = "in" }, want: `
NODE    PORTS   IN-BITS/S   OUT-BITS/S   IN-PACKETS/S   OUT-PACKETS/S   DROPS/S
node1   3       5.01M       8k           6.26k          10              2
node2   1       0           800M         0              1M              0
`},
		"names": {by: byPod, output: "name", want: "podtrafficrate.diagnostics.ovsdn.io/x\npodtrafficrate.diagnostics.ovsdn.io/web\npodtrafficrate.diagnostics.ovsdn.io/db\n"},
	} {
		first, second := twoSamples()
		api := trafficAPI(t, first, second)
		if c.change == nil {
			c.change = func(*topLister) {}
		}
		out, errOut, err := api.top(t, c.by, c.output, c.change)
		if diff := cmp.Diff(strings.TrimPrefix(c.want, "\n"), out); diff != "" || !errors.Is(err, errReported) || errOut != "node3: the agent of node3 does not support it; upgrade the agent\n" {
			t.Errorf("%s: got error %v, error output %q; output (-want +got):\n%s", name, err, errOut, diff)
		}
	}
}

func TestTop_ofNode(t *testing.T) {
	first, second := twoSamples()
	api := trafficAPI(t, first, second)
	out, errOut, err := api.top(t, byPod, "json", func(l *topLister) { l.node, l.limit = "node1", 1 })
	var got struct{ Items []trafficRate }
	if jsonErr := json.Unmarshal([]byte(out), &got); jsonErr != nil || err != nil || errOut != "" {
		t.Fatalf("got error %v, %v, error output %q", err, jsonErr, errOut)
	}
	want := []trafficRate{{
		TypeMeta:   metav1.TypeMeta{Kind: "PodTrafficRate", APIVersion: "diagnostics.ovsdn.io/v1alpha1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Node: "node1", Ports: 2,
		In: directionRate{BitsPerSecond: 5_008_000, PacketsPerSecond: 6260, DroppedPerSecond: 2}, Out: directionRate{BitsPerSecond: 8000, PacketsPerSecond: 10},
	}}
	if diff := cmp.Diff(want, got.Items); diff != "" {
		t.Errorf("rates (-want +got):\n%s", diff)
	}
	if out, errOut, err := trafficAPI(t, []diagnostics.NodeTraffic{nodeTraffic("node1", "")}).top(t, byPod, ""); out != "" || errOut != "No resources found\n" || err != nil {
		t.Errorf("no pods: got %q, %q, %v", out, errOut, err)
	}
	empty := `{"apiVersion":"v1","items":[],"kind":"List","metadata":{}}`
	if out, errOut, err := trafficAPI(t, []diagnostics.NodeTraffic{nodeTraffic("node1", "")}).top(t, byPod, "json"); strings.Join(strings.Fields(out), "") != empty || errOut != "" || err != nil {
		t.Errorf("no pods as JSON: got %q, %q, %v, want %s", out, errOut, err, empty)
	}
	truncated := nodeTraffic("node1", "")
	truncated.Truncated = true
	wantText := "No resources found\nnode1: has more than 1024 ports of pods; those beyond are left out\n"
	if _, errOut, err := trafficAPI(t, []diagnostics.NodeTraffic{truncated}).top(t, byPod, ""); errOut != wantText || !errors.Is(err, errReported) {
		t.Errorf("truncated: got %q, %v, want %q", errOut, err, wantText)
	}
	if _, _, err := newFakeAPI(t, nil).top(t, byPod, ""); err == nil || !strings.Contains(err.Error(), "apply deploy/base of this version") {
		t.Errorf("without the API group: got error %v", err)
	}
}

// A node that answered only once has no rates, which is reported.
func TestTop_firstSampleFails(t *testing.T) {
	api := trafficAPI(t, []diagnostics.NodeTraffic{nodeTraffic("node1", "the agent of node1 does not answer")},
		[]diagnostics.NodeTraffic{nodeTraffic("node1", "", podTraffic("shop/web", 3, 12, 5, 5, 0))})
	if out, errOut, err := api.top(t, byPod, "", func(l *topLister) { l.node = "node1" }); out != "" || !strings.Contains(errOut, "node1: the agent of node1 does not answer\n") || !errors.Is(err, errReported) {
		t.Errorf("got %q, %q, %v, want the reason of the first sample", out, errOut, err)
	}
}

// The second print of --watch is of the samples after the first print, also for a pod that had no rate before.
func TestTop_watch(t *testing.T) {
	sample := func(age float64, packets uint64) []diagnostics.NodeTraffic {
		return []diagnostics.NodeTraffic{nodeTraffic("node1", "", podTraffic("shop/web", 3, age, packets, 0, 0))}
	}
	api := trafficAPI(t, sample(50, 9), sample(1, 0), sample(2, 30))
	var l *topLister
	if out, _, err := api.top(t, byNode, "", func(of *topLister) { l = of }); out != "" || err != nil {
		t.Errorf("counters that went backwards: got %q, %v, want no rate", out, err)
	}
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	l.IOStreams = streams
	if err := l.show(t.Context()); err != nil || !strings.Contains(out.String(), "node1   1       24k") {
		t.Errorf("got %q, %v, want the rate of the last samples", out, err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	l.previous, l.interval = nil, time.Hour
	if err := l.show(canceled); err == nil {
		t.Error("a canceled context: got no error")
	}
}

func TestTop_usage(t *testing.T) {
	api := newFakeAPI(t, nil)
	for _, args := range [][]string{
		{"deployments"}, {"pods", "x"}, {"pods", "--sort-by=name"}, {"pods", "--limit=-1"}, {"nodes", "--interval=10ms"}, {"nodes", "-A"}, {"nodes", "--node=node1"}, {"pods", "-o", "table9"},
	} {
		if code, _, errOut := api.run(t.Context(), append([]string{"top"}, args...)...); code != exitUsage || !strings.Contains(errOut, "--help") {
			t.Errorf("%v: got exit code %d, %q, want a usage error", args, code, errOut)
		}
	}
	if code, out, _ := api.run(t.Context(), "top"); code != exitOK || !strings.Contains(out, "namespaces") {
		t.Errorf("got exit code %d, %q, want help", code, out)
	}
}

func TestWithPrefix(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 0.5: "0.5", 999.4: "999", 999.6: "1k", 1234: "1.23k", 10e9: "10G", 5e12: "5T"} {
		if got := withPrefix(n); got != want {
			t.Errorf("%v: got %s, want %s", n, got, want)
		}
	}
}

// An agent of a compromised node reports any counters: rates are numbers of JSON, and never negative.
func FuzzTrafficRate(f *testing.F) {
	f.Add(int64(0), int64(1), uint64(0), uint64(math.MaxUint64))
	f.Add(int64(math.MinInt64), int64(math.MaxInt64), uint64(1), uint64(0))
	f.Fuzz(func(t *testing.T, ageBefore, age int64, before, now uint64) {
		sums := trafficSums{}
		of := func(age int64, n uint64) podCounters {
			return podCounters{time.Duration(age), diagnostics.Traffic{Bytes: n, Packets: n, Dropped: n}, diagnostics.Traffic{Bytes: n}}
		}
		for range 2 {
			sums.add(byNode, podPort{node: "n"}, of(ageBefore, before), of(age, now))
		}
		for _, r := range sums.sorted("packets", 0) {
			all := []float64{r.In.BitsPerSecond, r.In.PacketsPerSecond, r.In.DroppedPerSecond, r.Out.BitsPerSecond}
			if slices.ContainsFunc(all, func(n float64) bool { return n < 0 || math.IsNaN(n) || math.IsInf(n, 0) }) || now < before || age <= ageBefore {
				t.Errorf("got rates %v", all)
			}
		}
	})
}

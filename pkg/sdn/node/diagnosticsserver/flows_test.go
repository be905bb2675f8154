package diagnosticsserver

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// differing returns the flows that are not as desired, as short texts.
func differing(flows []diagnostics.Flow) (found []string) {
	for _, f := range flows {
		if f.State != diagnostics.FlowInstalled {
			found = append(found, fmt.Sprintf("%s %s,priority=%d,%s", f.State, f.TableName, f.Priority, f.Match))
		}
	}
	return found
}

// Nothing differs on a bridge with flows of all kinds, until another program changes them; counters are those of the switch.
func TestFlows_changedByAnotherProgram(t *testing.T) {
	n := newNode(t)
	all := n.flows(t, "")
	if got := differing(all.Flows); len(got) > 0 || len(all.Flows) != len(n.sw.Dump(t)) {
		t.Fatalf("got %d flows, want %d, all installed; others are:\n%s", len(all.Flows), len(n.sw.Dump(t)), strings.Join(got, "\n"))
	}
	if !slices.IsSortedFunc(all.Flows, func(a, b diagnostics.Flow) int {
		return strings.Compare(fmt.Sprintf("%03d %05d %s", a.Table, 65535-int(a.Priority), a.Match), fmt.Sprintf("%03d %05d %s", b.Table, 65535-int(b.Priority), b.Match))
	}) {
		t.Error("the flows are not sorted by table, priority and match")
	}
	// No audit repairs the flows while the test runs: the next one is due in a minute.
	n.sw.OFCtl(t, "--strict", "del-flows", ovstest.Bridge, "table=20,priority=100,ip,in_port=3,dl_src=0a:58:0a:80:00:05,nw_src=10.128.0.5")
	n.sw.OFCtl(t, "add-flow", ovstest.Bridge, "table=0,priority=7,tcp,tp_dst=22,actions=drop")
	n.sw.OFCtl(t, "--strict", "mod-flows", ovstest.Bridge, "table=80,priority=0,actions=output:2")
	for _, object := range []string{"", "pod/default/web", "node/node1"} {
		want := map[string][]string{
			"": {
				"Unexpected classify,priority=7,tcp,tp_dst=22", "Missing pod-ingress,priority=100,ip,in_port=3,dl_src=0a:58:0a:80:00:05,nw_src=10.128.0.5",
				"Different isolation,priority=0,"},
			"pod/default/web": {"Missing pod-ingress,priority=100,ip,in_port=3,dl_src=0a:58:0a:80:00:05,nw_src=10.128.0.5"},
			"node/node1":      {"Different isolation,priority=0,"},
		}[object]
		if diff := cmp.Diff(want, differing(n.flows(t, object).Flows)); diff != "" {
			t.Errorf("object %q (-want +got):\n%s", object, diff)
		}
	}
	for _, f := range n.flows(t, "").Flows {
		if f.State == diagnostics.FlowDifferent && (f.Actions != "output:2" || !strings.HasSuffix(f.Desired, ",actions=drop") && !strings.HasSuffix(f.Desired, "goto_table:81")) {
			t.Errorf("got actions %q and desired ones %q", f.Actions, f.Desired)
		}
	}
}

func TestFlows_counters(t *testing.T) {
	n := newNode(t)
	find := func() (packets uint64) {
		for _, f := range n.flows(t, "node/node1").Flows {
			if f.TableName == "pod-ingress" && f.Priority == 0 {
				return f.Packets
			}
		}
		t.Fatal("no default of table pod-ingress")
		return 0
	}
	before := find()
	packet := composed(t, n.sw, "udp,nw_src=10.128.0.9,nw_dst=10.128.0.3,udp_src=1000,udp_dst=53")
	for range 3 {
		n.sw.OFCtl(t, "packet-out", ovstest.Bridge, "in_port=77 packet="+packet+" actions=table")
	}
	if after := find(); before != 0 || after != 3 {
		t.Errorf("got %d packets before and %d after, want 0 and 3", before, after)
	}
}

// composed returns a packet in hexadecimal.
func composed(t *testing.T, sw *ovstest.Switch, flow string) string {
	t.Helper()
	var hex strings.Builder
	for line := range strings.Lines(sw.OFCtl(t, "compose-packet", flow)) {
		_, dump, _ := strings.Cut(line, "  ")
		dump, _, _ = strings.Cut(dump, "|")
		hex.WriteString(strings.NewReplacer(" ", "", "-", "", "\n", "").Replace(dump))
	}
	return hex.String()
}

func TestFlows_ofObjects(t *testing.T) {
	n := newNode(t)
	for object, want := range map[string][]string{ // owners of the flows; nil: it has none
		"pod/default/web":                {"pod default/web", "rule default/allow/ingress/0"},
		"namespace/default":              {"multicast vnid/17", "pod default/web", "rule default/allow/ingress/0"},
		"service/default/web":            {"service default/web"},
		"node/node1":                     {"node node1"},
		"node/node2":                     {"hostsubnet node2", "node addresses node2"},
		"networkpolicy/default/allow":    {"rule default/allow/ingress/0"},
		"networkpolicy/default/no":       nil,
		"clusternetworkpolicy/x":         nil,
		"pod/default/other":              nil,
		"namespace/other":                nil,
		"service/default/other":          nil,
		"node/node3":                     nil,
		"egressnetworkpolicy/default/no": nil,
	} {
		if want == nil {
			if w := n.do(t.Context(), http.MethodGet, diagnostics.FlowsPath+"?object="+object); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), object) {
				t.Errorf("%s: got %d: %s, want 404 with the object", object, w.Code, w.Body)
			}
			continue
		}
		answer := n.flows(t, object)
		owners := map[string]bool{}
		for _, f := range answer.Flows {
			for _, o := range f.Owners {
				owners[o] = true
			}
		}
		if got := slices.Sorted(maps.Keys(owners)); answer.Object != object || !slices.Equal(got, want) || len(differing(answer.Flows)) > 0 {
			t.Errorf("%s: got object %q with owners %q, want %q; differing: %q", object, answer.Object, got, want, differing(answer.Flows))
		}
	}
}

// The flow that two clauses share is that of the policy; a flow that only the other clause has is not.
func TestFlows_ofPolicy(t *testing.T) {
	n := newNode(t)
	alone := &ovs.Flow{Table: 81, Priority: 1000, Protocol: goovs.ProtocolIPv4, Actions: []ovs.Action{goovs.Conjunction(78, 1, 2)}}
	if err := n.store.Set(pipeline.Owner{Kind: pipeline.KindPolicy, Key: "anything"}, pipeline.State{Flows: []*ovs.Flow{alone}}).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range n.flows(t, "networkpolicy/default/allow").Flows {
		got = append(got, fmt.Sprintf("%s actions=%s", f.Match, f.Actions))
	}
	want := []string{
		"conj_id=77,ip actions=goto_table:82",
		"ip,nw_src=10.129.0.9 actions=conjunction(77,2/2),conjunction(78,2/2)",
		"ip,reg2=0x3 actions=conjunction(77,1/2)",
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	w := n.do(t.Context(), http.MethodGet, diagnostics.FlowsPath+"?object=networkpolicy/default/deny")
	if w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "isolates the pods that it selects") {
		t.Errorf("a policy that only isolates: got %d: %s", w.Code, w.Body)
	}
}

// slowSwitch waits with its answer until release is closed.
type slowSwitch struct {
	Switch

	asked, release chan struct{}
	answer         []ovs.DumpedFlow
}

func (s *slowSwitch) DumpFlows(ctx context.Context) ([]ovs.DumpedFlow, error) {
	s.asked <- struct{}{}
	select {
	case <-s.release:
		return s.answer, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// sink accepts all changes.
type sink struct{ ovs.Interface }

func (sink) NewTransaction() *ovs.Transaction                           { return &ovs.Transaction{} }
func (sink) Run(context.Context, *ovs.Transaction) error                { return nil }
func (sink) Replace(context.Context, ovs.State) (ovs.Difference, error) { return ovs.Difference{}, nil }
func (sink) AwaitEvents(context.Context) error                          { return nil }
func (sink) AwaitDatapath(context.Context) error                        { return nil }
func (sink) ListConnections(context.Context, ovs.Zones, func(ovs.Connection)) error {
	return nil
}

// written returns a store with one flow, and a function that writes a change.
func written(t *testing.T) *flowstore.Store {
	t.Helper()
	st := flowstore.New(sink{})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() { defer close(ended); _ = st.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	set(t, st, "a")
	return st
}

func set(t *testing.T, st *flowstore.Store, name string) {
	t.Helper()
	f := &ovs.Flow{Table: 20, Priority: int(name[0]), Actions: []ovs.Action{goovs.Drop()}}
	if err := st.Set(pipeline.Owner{Kind: pipeline.KindPod, Key: name}, pipeline.State{Flows: []*ovs.Flow{f}}).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestFlows_oneRequestAtATime(t *testing.T) {
	c := newClient(t)
	sw := &slowSwitch{asked: make(chan struct{}, 9), release: make(chan struct{})}
	c.SetNetwork(newNetwork(written(t), sw))
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan int)
	go func() { first <- c.do(ctx, http.MethodGet, diagnostics.FlowsPath).Code }()
	<-sw.asked
	second := c.do(t.Context(), http.MethodGet, diagnostics.FlowsPath)
	if second.Code != http.StatusTooManyRequests || second.Header().Get("Retry-After") == "" {
		t.Errorf("the second request: got %d, Retry-After %q, want 429 with a time", second.Code, second.Header().Get("Retry-After"))
	}
	var status diagnostics.NodeStatus
	c.get(t, diagnostics.StatusPath, &status) // from memory
	cancel()
	if code := <-first; code != http.StatusServiceUnavailable {
		t.Errorf("a request that its client canceled: got %d, want 503", code)
	}
	close(sw.release)
	if code := c.do(t.Context(), http.MethodGet, diagnostics.FlowsPath).Code; code != http.StatusOK {
		t.Errorf("after the first request: got %d, want 200", code)
	}
}

// busySwitch writes a change of the agent before each answer.
type busySwitch struct {
	Switch

	write  func()
	answer []ovs.DumpedFlow
}

func (s *busySwitch) DumpFlows(context.Context) ([]ovs.DumpedFlow, error) {
	s.write()
	return s.answer, nil
}

// A flow that the agent writes during a comparison is no difference; one that another program adds is.
func TestFlows_duringAWrite(t *testing.T) {
	c := newClient(t)
	st := written(t)
	removed := ovs.DumpedFlow{Key: ovs.Key{Table: 20, Priority: 'd'}, Text: "table=20,priority=100,actions=drop"}
	foreign := ovs.DumpedFlow{Key: ovs.Key{Table: 3}, Text: "table=3,priority=0,actions=drop"}
	sw := &busySwitch{}
	dumps := 0
	sw.write = func() {
		dumps++
		set(t, st, string(rune('a'+dumps))) // not in the answer: the dump is older
		sw.answer = []ovs.DumpedFlow{foreign}
		if dumps == maxComparisons {
			sw.answer = append(sw.answer, removed)
		}
	}
	c.SetNetwork(newNetwork(st, sw))
	got := differing(c.flows(t, "").Flows)
	want := []string{"Unexpected ,priority=0,", "Missing pod-ingress,priority=98,", "Missing pod-ingress,priority=97,"}
	if diff := cmp.Diff(want, got); diff != "" || dumps != maxComparisons {
		t.Errorf("%d dumps; -want +got:\n%s", dumps, diff)
	}
}

func TestFlows_errors(t *testing.T) {
	c := newClient(t, func(o *Options) { o.Ready = func() error { return fmt.Errorf("waiting for the HostSubnet") } })
	get := func(query string, code int, text string) {
		t.Helper()
		w := c.do(t.Context(), http.MethodGet, diagnostics.FlowsPath+query)
		if w.Code != code || !strings.Contains(w.Body.String(), text) {
			t.Errorf("%s: got %d: %s, want %d with %q", query, w.Code, w.Body, code, text)
		}
	}
	get("", http.StatusServiceUnavailable, "the network of node node1 is not set up: waiting for the HostSubnet")
	get("?object=deployment/a/b", http.StatusBadRequest, "clusternetworkpolicy/NAME")
	get("?object=pod/a/b&object=pod/c/d", http.StatusBadRequest, "set it once")
	empty := flowstore.New(sink{})
	c.SetNetwork(newNetwork(empty, &slowSwitch{}))
	get("", http.StatusServiceUnavailable, "not set up") // before the first write
}

func TestBound(t *testing.T) {
	var flows []diagnostics.Flow
	for i := range 10 {
		state := diagnostics.FlowInstalled
		if i >= 7 {
			state = diagnostics.FlowMissing
		}
		flows = append(flows, diagnostics.Flow{Table: uint8(i), State: state})
	}
	tables := func(most int) (text string) {
		some, truncated := bound(flows, most)
		for _, f := range some {
			text += fmt.Sprint(f.Table)
		}
		return fmt.Sprint(text, " ", truncated)
	}
	for most, want := range map[int]string{10: "0123456789 false", 5: "01789 true", 3: "789 true", 2: "78 true"} {
		if got := tables(most); got != want {
			t.Errorf("at most %d: got %s, want %s", most, got, want)
		}
	}
}

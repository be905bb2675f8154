package diagnosticsserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

// batchOf traces the packets, each from a pod to an address.
func (n *traceNode) batchOf(t testing.TB, packets ...diagnostics.TracePacket) []diagnostics.TraceResult {
	t.Helper()
	body, err := json.Marshal(diagnostics.PacketBatch{Packets: packets})
	if err != nil {
		t.Fatal(err)
	}
	w := n.send(t.Context(), http.MethodPost, diagnostics.NodeTracesPath, bytes.NewReader(body))
	var got diagnostics.NodeTraces
	if err := json.Unmarshal(w.Body.Bytes(), &got); w.Code != http.StatusOK || err != nil || len(got.Results) == 0 {
		t.Fatalf("got %d: %s", w.Code, w.Body)
	}
	return got.Results
}

func packetTo(from, destination string) diagnostics.TracePacket {
	return diagnostics.TracePacket{From: from, Protocol: "TCP", Destination: destination, DestinationPort: 80}
}

// batchPackets are: web to db here, which rule 77 allows, one pod that it does not allow, the pod 10.129.0.7 of node2, a pod of node2, and a pod that does not exist.
func batchPackets() []diagnostics.TracePacket {
	remote := packetTo("node/node2", "10.128.0.4")
	remote.Source = "10.129.0.7"
	return []diagnostics.TracePacket{
		packetTo("pod/default/web", "10.128.0.4"), packetTo("pod/shop/cart", "10.128.0.4"), remote, packetTo("pod/default/web", "10.129.0.9"), packetTo("pod/default/absent", "10.128.0.4"),
	}
}

// fromPorts returns each packet from so many source ports, so that each is traced.
func fromPorts(count int, packets ...diagnostics.TracePacket) (all []diagnostics.TracePacket) {
	for i := range count {
		for _, p := range packets {
			p.SourcePort = uint16(40_000 + i) //nolint:gosec // a port
			all = append(all, p)
		}
	}
	return all
}

func verdicts(results []diagnostics.TraceResult) (all []diagnostics.Verdict) {
	for _, r := range results {
		all = append(all, r.Verdict)
	}
	return all
}

// TestTraces_faults: the results of a batch differ from the right ones after each fault of the flows, and have the flow that decided.
func TestTraces_faults(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	n.setMode(t, config.ModeNetworkPolicy, false)
	right := []diagnostics.Verdict{delivered, dropped, delivered, forwarded, unknown}
	flows := n.sw.Dump(t)
	got := n.batchOf(t, batchPackets()...)
	if !slices.Equal(verdicts(got), right) {
		t.Fatalf("got %+v, want %v", got, right)
	}
	for i, r := range got {
		if r.Flow == nil && r.Verdict != unknown || r.Flow != nil && r.Flow.Unexpected {
			t.Errorf("packet %d: got flow %+v", i, r.Flow)
		}
	}
	if out := got[3].Outputs; len(out) != 1 || out[0].To != "node/node2" || out[0].Packet.From != "node/node1" || out[0].VNID != 17 {
		t.Errorf("got outputs %+v, want one to node2 with VNID 17", out)
	}
	if o := got[1].Objects; len(o) != 2 || !strings.Contains(got[1].Reason, "networkpolicy/default/deny") {
		t.Errorf("got %+v, want the policies that isolate the pod", got[1])
	}
	for name, tc := range map[string]struct {
		breaks func()
		want   []diagnostics.Verdict
		flow   func(*diagnostics.TraceStep) bool // of the first packet whose verdict differs
	}{
		"a flow deleted": {func() {
			n.sw.OFCtl(t, "--strict", "del-flows", "br0", matchOf(t, flows, "table=70,", "nw_dst=10.128.0.4"))
		},
			[]diagnostics.Verdict{dropped, dropped, dropped, forwarded, unknown}, func(s *diagnostics.TraceStep) bool { return s.TableName == "local-pod" }},
		"a flow added": {func() {
			n.sw.OFCtl(t, "add-flow", "br0", "table=81,priority=65000,ip,nw_dst=10.128.0.4,actions=goto_table:133")
		},
			[]diagnostics.Verdict{delivered, delivered, delivered, forwarded, unknown}, func(s *diagnostics.TraceStep) bool { return s.Unexpected && s.Priority == 65000 }},
		"a flow changed": {func() {
			n.sw.OFCtl(t, "--strict", "mod-flows", "br0", matchOf(t, flows, "table=70,", "nw_dst=10.128.0.4")+",actions=drop")
		}, []diagnostics.Verdict{dropped, dropped, dropped, forwarded, unknown}, func(s *diagnostics.TraceStep) bool { return s.Actions == "drop" }},
		"a member of a conjunction missing": {func() {
			n.sw.OFCtl(t, "--strict", "del-flows", "br0", matchOf(t, flows, "conjunction(77,2/2)", "nw_src=10.128.0.3"))
		}, []diagnostics.Verdict{dropped, dropped, delivered, forwarded, unknown}, func(s *diagnostics.TraceStep) bool { return s.TableName == "ingress-denied" }},
	} {
		tc.breaks()
		got := n.batchOf(t, batchPackets()...)
		if !slices.Equal(verdicts(got), tc.want) {
			t.Errorf("%s: got %+v, want %v", name, got, tc.want)
		}
		for i := range got {
			if got[i].Verdict != right[i] {
				if got[i].Flow == nil || !tc.flow(got[i].Flow) {
					t.Errorf("%s: got flow %+v of packet %d", name, got[i].Flow, i)
				}
				break
			}
		}
		n.store.Resync()
		n.awaitFlows(t, flows)
	}
}

// awaitFlows waits until the switch has these flows again.
func (n *traceNode) awaitFlows(t *testing.T, want []string) {
	t.Helper()
	want = slices.Sorted(slices.Values(want))
	await.OK(t, await.SyncTime, func(context.Context) error {
		if got := slices.Sorted(slices.Values(n.sw.Dump(t))); !slices.Equal(got, want) {
			return fmt.Errorf("got flows %q, want %q", got, want)
		}
		return nil
	})
}

// matchOf returns the priority and the match of the only flow with the texts, for ovs-ofctl --strict.
func matchOf(t *testing.T, flows []string, texts ...string) string {
	t.Helper()
	var found []string
	for _, f := range flows {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(f, text) }) {
			found = append(found, f)
		}
	}
	if len(found) != 1 {
		t.Fatalf("got flows %q with %q, want one", found, texts)
	}
	match, _, _ := strings.Cut(found[0], " actions=")
	return regexp.MustCompile(`cookie=\w+, ?`).ReplaceAllString(strings.TrimSpace(match), "")
}

// partTraces is a switch that refuses the second packet at once, and answers no more after some calls.
type partTraces struct {
	Switch
	calls int
}

func (s *partTraces) Traces(ctx context.Context, packets []ovs.TracePacket) ([]ovs.TraceReport, error) {
	if s.calls--; s.calls < 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	reports, err := s.Switch.Traces(ctx, packets)
	if err == nil && len(reports) > 1 {
		reports[1] = ovs.TraceReport{Err: errors.New("vswitchd: refused")}
	}
	return reports, err
}

// TestTraces_parts: a packet that vswitchd refuses is Unknown, and those before it and after it are not. The answer has the packets before the first one that was not
// traced in time.
func TestTraces_parts(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	n.setMode(t, config.ModeNetworkPolicy, false)
	changed := *n.network
	changed.Switch = &partTraces{Switch: n.bridge, calls: 1}
	n.SetNetwork(&changed)
	b := n.newBatch(&changed, slices.Concat(fromPorts(5, batchPackets()[0]), fromPorts(5, batchPackets()[1])))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	first := b.next()
	next := b.trace(ctx, first, time.Now())
	b.trace(ctx, b.next(), next)
	open := slices.IndexFunc(b.packets, (*batchPacket).isPending)
	if len(first) != tracesPerCall || open != tracesPerCall || b.packets[1].trace != nil || !strings.Contains(b.packets[1].reason, "vswitchd: refused") {
		t.Errorf("got %d packets at once, the first pending one is %d, the second one has reason %q", len(first), open, b.packets[1].reason)
	}
	for i, p := range b.packets[:open] {
		if i != 1 && p.trace == nil {
			t.Errorf("packet %d: got reason %q", i, p.reason)
		}
	}
}

type countedTraces struct {
	Switch
	traces int
}

func (s *countedTraces) Traces(ctx context.Context, packets []ovs.TracePacket) ([]ovs.TraceReport, error) {
	s.traces += len(packets)
	return s.Switch.Traces(ctx, packets)
}

// TestTraces_known: the results of a batch are those of single traces also for the packets that are not traced, since they differ from another one only in addresses
// or a destination port that no flow distinguishes.
func TestTraces_known(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	n.setMode(t, config.ModeNetworkPolicy, false)
	n.sw.OFCtl(t, "add-flow", "br0", "table=70,priority=65000,tcp,nw_dst=10.128.0.4,tp_dst=443,actions=drop")
	n.sw.OFCtl(t, "add-flow", "br0", "table=70,priority=65000,tcp,nw_dst=10.128.0.4,tp_dst=0x2000/0xffe0,actions=drop")
	n.sw.OFCtl(t, "add-flow", "br0", "table=81,priority=65000,tcp,nw_dst=10.128.0.4,tp_dst=8443,actions=drop") // after a lookup
	counted := &countedTraces{Switch: n.bridge}
	changed := *n.network
	changed.Switch = counted
	n.SetNetwork(&changed)
	ports := []uint16{443, 1, 80, 81, 442, 444, 8442, 8443, 8444, 0x1fff, 0x2000, 0x201f, 0x2020, 47_123, 65_535}
	var packets []diagnostics.TracePacket
	send := func(to string, port uint16) {
		packet := packetTo("pod/default/web", to)
		packet.DestinationPort = port
		packets = append(packets, packet)
	}
	for _, port := range ports {
		send("10.128.0.4", port)
	}
	for i := range 60 { // of 20 pods of another node
		send(fmt.Sprintf("10.129.%d.%d", i%2, 100+i/3), ports[i%3])
	}
	for _, from := range []string{"10.129.0.9", "10.129.0.10", "10.129.1.200"} {
		for _, to := range []string{"10.128.0.4", "10.128.0.5", "10.128.0.99"} {
			packets = append(packets, diagnostics.TracePacket{From: "node/node2", VNID: 17, Protocol: "TCP", Source: from, Destination: to, DestinationPort: 80})
		}
	}
	results := n.batchOf(t, packets...)
	traces := counted.traces
	if len(results) != len(packets) || traces > len(packets)/3 {
		t.Errorf("got %d results of %d packets by %d traces, want at most a third of them", len(results), len(packets), traces)
	}
	for i, got := range results {
		p := packets[i]
		query := fmt.Sprintf("from=%s destination=%s protocol=TCP destinationPort=%d", p.From, p.Destination, p.DestinationPort)
		if p.Source != "" {
			query += fmt.Sprintf(" source=%s vnid=%d", p.Source, p.VNID)
		}
		want := n.traced(t, query)
		if got.Verdict != want.Verdict || got.Reason != want.Reason || !slices.Equal(got.Outputs, want.Outputs) {
			t.Errorf("%s: got %+v, want %v %q %+v", query, got, want.Verdict, want.Reason, want.Outputs)
		}
	}
}

func TestTraces_refused(t *testing.T) {
	c := newClient(t)
	c.network.Store(newNetwork(nil, nil))
	many := diagnostics.PacketBatch{Packets: slices.Repeat(batchPackets()[:1], diagnostics.MaxBatchPackets+1)}
	tooMany, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		body string
		code int
	}{
		"no JSON":          {"{", http.StatusBadRequest},
		"no packets":       {"{}", http.StatusBadRequest},
		"too many packets": {string(tooMany), http.StatusBadRequest},
		"too many bytes":   {`{"packets":[{"from":"` + strings.Repeat("x", maxBatchBody) + `"}]}`, http.StatusRequestEntityTooLarge},
	} {
		if w := c.send(t.Context(), http.MethodPost, diagnostics.NodeTracesPath, strings.NewReader(tc.body)); w.Code != tc.code {
			t.Errorf("%s: got %d: %s, want %d", name, w.Code, w.Body, tc.code)
		}
	}
}

// slowTraces is a switch whose traces take a time.
type slowTraces struct {
	Switch
	takes    time.Duration
	together []int // numbers of packets
	ended    time.Time
	tooEarly int
}

func (s *slowTraces) Traces(ctx context.Context, packets []ovs.TracePacket) ([]ovs.TraceReport, error) {
	if !s.ended.IsZero() && time.Since(s.ended) < batchPause*s.takes {
		s.tooEarly++
	}
	s.together = append(s.together, len(packets))
	timer := time.NewTimer(s.takes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { s.ended = time.Now() }()
	return s.Switch.Traces(ctx, packets)
}

// TestTraces_pause: eight packets are traced at once, after which the agent waits for four times as long, also with the next batch; other requests for many
// traces are refused, and single traces are not.
func TestTraces_pause(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	n.setMode(t, config.ModeNetworkPolicy, false)
	slow := &slowTraces{Switch: n.bridge, takes: 5 * time.Millisecond}
	changed := *n.network
	changed.Switch = slow
	n.SetNetwork(&changed)
	n.batchOf(t, fromPorts(20, batchPackets()[0])...)
	n.batchOf(t, fromPorts(3, batchPackets()[0])...)
	if want := []int{8, 8, 4, 3}; !slices.Equal(slow.together, want) || slow.tooEarly != 0 {
		t.Errorf("got %d packets at once, want %d; %d times less than %d times a trace after the previous one", slow.together, want, slow.tooEarly, batchPause)
	}
	n.batching.Store(true)
	body := `{"packets":[{"from":"pod/default/web"}]}`
	if w := n.send(t.Context(), http.MethodPost, diagnostics.NodeTracesPath, strings.NewReader(body)); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
		t.Errorf("got %d: %s, want %d", w.Code, w.Body, http.StatusTooManyRequests)
	}
	if got := n.traced(t, "from=pod/default/web destination=10.128.0.4 protocol=TCP destinationPort=80"); got.Verdict != delivered {
		t.Errorf("a single trace beside it: got %+v", got)
	}
}

// BenchmarkTraces is the rate of a batch, without its pauses' share: vswitchd is busy for at most a fifth of the time.
func BenchmarkTraces(b *testing.B) {
	n := newTraceNode(b)
	n.setMode(b, config.ModeNetworkPolicy, false)
	packets := fromPorts(diagnostics.MaxBatchPackets/4, batchPackets()[:4]...)
	traced := 0
	begin := time.Now()
	for b.Loop() {
		traced += len(n.batchOf(b, packets...))
	}
	b.ReportMetric(float64(traced)/time.Since(begin).Seconds(), "traces/s")
	b.ReportMetric(0, "ns/op")
	begin = time.Now()
	packet, err := n.network.tracePacket("node1", must(parsePacket(packets[0].Query())), tracePods())
	if err != nil {
		b.Fatal(err)
	}
	for range 200 {
		if _, err := n.bridge.Trace(b.Context(), packet); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(time.Since(begin).Microseconds())/200, "µs/ofproto-trace")
	begin = time.Now()
	for range 25 {
		if _, err := n.bridge.Traces(b.Context(), slices.Repeat([]ovs.TracePacket{packet}, tracesPerCall)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(time.Since(begin).Microseconds())/25/tracesPerCall, "µs/ofproto-trace-together")
}

func must(r *traceRequest, err error) *traceRequest {
	if err != nil {
		panic(fmt.Sprintf("parse a packet: %v", err))
	}
	return r
}

package agentmetrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/br0"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/cnihandler"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/idling"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/pinger"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/metricsdoc"
)

// switchStatistics are statistics of a switch that can be unavailable.
type switchStatistics struct {
	hostDropped uint64
	err         error
	zonesErr    error
	static      []native.Drop
	peers       []native.Drop

	firewalls []native.Drop
}

func (s *switchStatistics) TableStats(context.Context) ([]openflow.TableStats, error) {
	return []openflow.TableStats{
		{Table: 0, Active: 40, Lookups: 1000, Matched: 1000}, {Table: 2}, {Table: 29, Active: 1, Lookups: 5, Matched: 5}, {Table: 83, Active: 1, Lookups: 7, Matched: 7},
	}, s.err
}

func (s *switchStatistics) OwnerDrops(_ context.Context, cookie uint64) ([]native.Drop, error) {
	if want := (pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}).Cookie(); cookie != want {
		return nil, fmt.Errorf("got cookie %#x, want %#x", cookie, want)
	}
	return s.static, s.err
}

func (s *switchStatistics) TableDrops(_ context.Context, table uint8) ([]native.Drop, error) {
	switch table {
	case 10:
		return s.peers, s.err
	case 100:
		return s.firewalls, s.err
	}
	return nil, fmt.Errorf("got table %d, want 10 or 100", table)
}

func (s *switchStatistics) DatapathStats(context.Context) (native.DatapathStats, error) {
	return native.DatapathStats{Hit: 900, Missed: 100, Lost: 2, Flows: 50, Masks: 6}, s.err
}

// hostDrops counts 3 packets more at each call.
func (s *switchStatistics) hostDrops(context.Context) ([]hostnet.RuleDrops, error) {
	s.hostDropped += 3
	return []hostnet.RuleDrops{{Rule: "-j DROP", Comment: "VXLAN of an unknown VTEP", Packets: s.hostDropped}}, s.err
}

func (s *switchStatistics) ZoneUse(_ context.Context, zones ovs.Zones) (native.ZoneUse, error) {
	return native.ZoneUse{Total: int(zones.First), Fullest: 50, Ratio: 0.5}, cmp.Or(s.zonesErr, s.err)
}

func (s *switchStatistics) Tracker(context.Context) (native.Tracker, error) {
	return native.Tracker{Size: 1200, Used: 400}, s.err
}

// testNode is a node with the first 512 addresses.
func testNode() pipeline.Node {
	return pipeline.Node{Mode: config.ModeNetworkPolicy, Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")}, BalancesServices: true}
}

// newTestMetrics returns metrics of a node with the store and the statistics.
func newTestMetrics(t testing.TB, st *flowstore.Store, from *switchStatistics) *Metrics {
	t.Helper()
	leases, err := ipam.Open(t.TempDir(), "ovsdn", testNode().Subnets)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = leases.Close() })
	for i := range 3 {
		if _, err := leases.Allocate(t.Context(), fmt.Sprintf("container%d", i), "eth0"); err != nil {
			t.Fatal(err)
		}
	}
	m := New(func() error { return nil })
	st.Observe(m.flows)
	sampler := newSampler(from, from.hostDrops, testNode(), "node1", &m.samples)
	m.network.Store(&Network{
		Flows: st.Statistics, Pods: func() int { return 3 }, Addrs: leases.Usage, Denied: func() (uint64, uint64) { return 2, 1 }, Sampler: sampler,
		EgressIPs: func() (hosted, notPlaced int) { return 2, 1 }, BeyondBudget: func() (namespaces, flows int) { return 1, 2000 },
		Idled: func() idling.Statistics { return idling.Statistics{Held: 5, Sent: 4, Expired: 3, Full: 2, Dropped: 1} },
		Worst: func(most int) []pinger.PathStats {
			return []pinger.PathStats{{Node: "node2", Path: "overlay", Loss: 0.5, RTT: time.Second}}[:min(most, 1)]
		},
	})
	m.ObservePeer("overlay", time.Millisecond, true)
	m.ObservePeer("underlay", 0, false)
	return m
}

// runStore runs a store with one flow on a fake bridge.
func runStore(t testing.TB) *flowstore.Store {
	t.Helper()
	bridge := ovs.NewFake(br0.Name)
	if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: br0.Name, DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	st := flowstore.New(bridge)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = st.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	return st
}

func install(t testing.TB, st *flowstore.Store) {
	t.Helper()
	state := pipeline.State{Flows: []*ovs.Flow{{Table: 0, Actions: []ovs.Action{ovs.GotoTable(10)}}}}
	if err := st.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}, state).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// scrape returns the answer to a scrape.
func scrape(m *Metrics) string {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

// noHandler answers all CNI requests with an error.
type noHandler struct {
	cniserver.Handler
	err error
}

func (h noHandler) Del(context.Context, *cniserver.Request) error { return h.err }

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

func TestMetrics(t *testing.T) {
	st := flowstore.New(ovs.NewFake(br0.Name))
	from := &switchStatistics{}
	m := newTestMetrics(t, st, from)
	m.network.Load().Sampler.sample(t.Context(), true) // the baseline
	from.static, from.peers = []native.Drop{
		{Key: ovs.Key{Table: 20}, Packets: 11}, {Key: ovs.Key{Table: 80}, Packets: 12}, {Key: ovs.Key{Table: 0, Priority: 150, Match: "in_port=1"}, Packets: 1},
		{Key: ovs.Key{Table: 0, Priority: 150, Match: "in_port=2"}, Packets: 2}, {Key: ovs.Key{Table: 10}, Packets: 13},
		{Key: ovs.Key{Table: 63}, Packets: 6}, {Key: ovs.Key{Table: 29}, Packets: 5}, {Key: ovs.Key{Table: 83}, Packets: 7},
	}, []native.Drop{{Key: ovs.Key{Table: 10}, Packets: 13}, {Key: ovs.Key{Table: 10, Priority: 50, Match: "tun_src=10.0.0.2"}, Packets: 4}}
	from.firewalls = []native.Drop{
		{Key: ovs.Key{Table: 100, Priority: 100, Match: "ip,reg10=0x1"}, Packets: 8}, {Key: ovs.Key{Table: 100, Priority: 124, Match: "ip,reg10=0x1,nw_dst=192.0.2.0/24"}, Packets: 1},
		{Key: ovs.Key{Table: 100}, Packets: 2}, // counted with the static flows
	}
	m.flows.Committed(time.Millisecond, nil)
	m.flows.Written(flowstore.WriteChanges, time.Millisecond, nil)
	m.reconciles.Reconciled("services", time.Second, errors.New("failed"))
	m.reconciles.Settled("services", time.Second)
	for _, err := range []error{nil, errors.New("failed"), types.NewError(types.ErrTryAgainLater, "later", "")} {
		_ = observedHandler{noHandler{cnihandler.New(), err}, m.cni}.Del(t.Context(), nil)
	}
	m.network.Load().Sampler.sample(t.Context(), true)

	got := scrape(m)
	for _, want := range []string{
		"ovsdn_node_ready 1", "ovsdn_pods 3", "ovsdn_pod_addresses_free 506", "ovsdn_pod_addresses_capacity 509",
		`ovsdn_table_flows{table="classify"} 40`, `ovsdn_table_lookup_packets_total{table="classify"} 1000`,
		`ovsdn_denied_packets_total{direction="egress"} 5`, `ovsdn_denied_packets_total{direction="ingress"} 7`,
		`ovsdn_denied_packets_reported_total{direction="ingress"} 2`, `ovsdn_denied_packets_reported_total{direction="egress"} 1`,
		`ovsdn_dropped_packets_total{reason="spoofed-source",table="pod-ingress"} 11`, `ovsdn_dropped_packets_total{reason="isolation",table="isolation"} 12`,
		`ovsdn_dropped_packets_total{reason="other",table="classify"} 3`, `ovsdn_dropped_packets_total{reason="unknown-peer",table="tunnel-ingress"} 13`,
		`ovsdn_dropped_packets_total{reason="foreign-source",table="tunnel-ingress"} 4`, `ovsdn_dropped_packets_total{reason="egress-firewall",table="egress-firewall"} 9`,
		`ovsdn_dropped_packets_total{reason="endpoint",table="endpoint-verdict"} 6`, `ovsdn_host_dropped_packets_total{rule="VXLAN of an unknown VTEP"} 3`,
		"ovsdn_idled_packets_held 5", `ovsdn_idled_packets_total{result="sent"} 4`, `ovsdn_idled_packets_total{result="expired"} 3`,
		`ovsdn_idled_packets_total{result="full"} 2`, `ovsdn_idled_packets_total{result="dropped"} 1`,
		"ovsdn_switch_sample_failures_total 0",
		"ovsdn_datapath_upcalls_total 100", "ovsdn_datapath_lost_packets_total 2", "ovsdn_datapath_masks 6", "ovsdn_conntrack_entries 400",
		`ovsdn_conntrack_zone_entries{class="opener"} 24576`, `ovsdn_conntrack_fullest_zone_ratio{class="target"} 0.5`,
		`ovsdn_cni_request_duration_seconds_count{result="retry",verb="DEL"} 1`, `ovsdn_cni_request_duration_seconds_count{result="success",verb="DEL"} 1`,
		`ovsdn_reconcile_duration_seconds_count{loop="services",result="error"} 1`,
		`ovsdn_worst_peer_loss_ratio{node="node2",path="overlay"} 0.5`, `ovsdn_worst_peer_rtt_seconds{node="node2",path="overlay"} 1`,
		`ovsdn_peer_probes_total{path="underlay",result="lost"} 1`, `ovsdn_peer_rtt_seconds_count{path="overlay"} 1`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("the scrape lacks %s", want)
		}
	}
	if strings.Contains(got, `table="2"`) || strings.Contains(got, `table=""`) {
		t.Error("the scrape has a table that is not of the pipeline")
	}
	if strings.Contains(got, `reason="other",table="egress-denied"`) || strings.Contains(got, `reason="other",table="ingress-denied"`) {
		t.Error("the scrape counts packets that policies denied twice")
	}
	if t.Failed() {
		t.Log(got)
	}
	metricsdoc.Check(t, "node", m.registry)
}

// While the network is not set up, its metrics are absent.
func TestMetrics_notSetUp(t *testing.T) {
	got := scrape(New(func() error { return errors.New("starting") }))
	if !strings.Contains(got, "ovsdn_node_ready 0\n") || strings.Contains(got, "ovsdn_pods") {
		t.Errorf("got %s, want no pods", got)
	}
}

// Statistics of a store on a bridge appear, and a scrape costs no request to the switch.
func TestMetrics_flowStore(t *testing.T) {
	st := flowstore.New(ovs.NewFake(br0.Name))
	m := newTestMetrics(t, st, &switchStatistics{})
	st = runStore(t)
	st.Observe(m.flows)
	m.network.Store(&Network{Flows: st.Statistics, Pods: func() int { return 0 }, Addrs: func() ipam.Usage { return ipam.Usage{} }, Sampler: m.network.Load().Sampler})
	install(t, st)
	got := scrape(m)
	for _, want := range []string{"ovsdn_flows_installed 1", `ovsdn_flow_commit_duration_seconds_count{result="success"} 1`, `ovsdn_flow_drift_total{kind="foreign"} 0`} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("the scrape lacks %s", want)
		}
	}
	if strings.Contains(got, "ovsdn_table_flows") || strings.Contains(got, "ovsdn_denied_packets_reported_total") {
		t.Error("the scrape has statistics that were never read")
	}
}

// BenchmarkScrape is a scrape of a node with 500 pods and 50,000 flows: at most 5 ms.
func BenchmarkScrape(b *testing.B) {
	st := runStore(b)
	var commits []*flowstore.Commit
	for pod := range 500 {
		var state pipeline.State
		for i := range 100 {
			state.Flows = append(state.Flows, &ovs.Flow{Table: 81, Priority: 100*pod + i, Actions: []ovs.Action{ovs.GotoTable(82)}})
		}
		commits = append(commits, st.Set(pipeline.Owner{Kind: pipeline.KindPod, Key: fmt.Sprint(pod)}, state))
	}
	if err := flowstore.WaitAll(b.Context(), commits); err != nil {
		b.Fatal(err)
	}
	m := newTestMetrics(b, flowstore.New(ovs.NewFake(br0.Name)), &switchStatistics{})
	m.network.Load().Flows = st.Statistics
	m.network.Load().Sampler.sample(b.Context(), true)
	if got := st.Statistics().Flows; got != 50_000 {
		b.Fatalf("got %d flows, want 50,000", got)
	}
	for b.Loop() {
		_ = scrape(m)
	}
}

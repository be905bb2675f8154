package agentmetrics

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

const (
	// sampleInterval is the interval at which the switch is asked for counters of its tables. Scrapes cause no requests, so neither their number nor a
	// switch that hangs matters to them.
	sampleInterval = 15 * time.Second
	// slowSamples is the number of samples of which one asks for what costs more: conntrack zones, the datapath, and the drops of each peer.
	slowSamples = 4
	// sampleTimeout limits a sample.
	sampleTimeout = 10 * time.Second
)

// Statistics are those of the switch that the sampler reads.
type Statistics interface {
	TableStats(context.Context) ([]openflow.TableStats, error)
	OwnerDrops(ctx context.Context, cookie uint64) ([]native.Drop, error)
	TableDrops(ctx context.Context, table uint8) ([]native.Drop, error)
	DatapathStats(context.Context) (native.DatapathStats, error)
	ZoneUse(context.Context, ovs.Zones) (native.ZoneUse, error)
	Tracker(context.Context) (native.Tracker, error)
}

// HostDrops returns the counters of the rules of the host's firewall.
type HostDrops func(context.Context) ([]hostnet.RuleDrops, error)

// sample is the state of the switch at one time. Parts that could not be read are nil.
type sample struct {
	tables    []openflow.TableStats
	drops     map[drop]uint64   // packets
	hostDrops map[string]uint64 // packets by the comment of the rule
	datapath  *native.DatapathStats
	conntrack *conntrackSample
}

type conntrackSample struct {
	tracker native.Tracker
	zones   map[pipeline.ZoneClass]native.ZoneUse // nil if they have no limits, or could not be read
}

// drop is the label of a counter of drops.
type drop struct {
	table  int
	reason string
}

// Sampler reads the statistics of the switch in the background.
type Sampler struct {
	source Statistics
	host   HostDrops            // nil: no firewall
	cookie uint64               // of static flows
	zones  []pipeline.ZoneLimit // that have limits; only these have counts
	totals *sampleTotals

	mu      sync.Mutex
	current sample
}

// sampleTotals are what samples of all set-ups of the node's network have added up. Only one sampler uses it at a time.
type sampleTotals struct {
	static, peers, firewalls dropCounter
	host                     increases[string, string] // by rule and its comment
	failures                 atomic.Uint64             // reads that failed
	failing                  map[string]bool           // the parts whose last read failed
}

func newSampler(source Statistics, host HostDrops, node pipeline.Node, nodeName string, totals *sampleTotals) *Sampler {
	s := &Sampler{source: source, host: host, totals: totals, cookie: pipeline.Owner{Kind: pipeline.KindNode, Key: nodeName}.Cookie()}
	if node.LimitsZones() {
		s.zones = node.ZoneLimits(0) // the limits themselves are read
	}
	return s
}

// get returns the last sample, which the caller must not modify.
func (s *Sampler) get() sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// Drops returns the dropped packets of the last sample, by table and reason, without zeros.
func (s *Sampler) Drops() (all []diagnostics.NodeDrop) {
	last, tables := s.get(), pipeline.TableNames()
	for d, packets := range last.drops {
		all = append(all, diagnostics.NodeDrop{Table: tables[d.table], Reason: d.reason, Packets: packets})
	}
	for comment, packets := range last.hostDrops {
		all = append(all, diagnostics.NodeDrop{Table: diagnostics.HostFirewall, Reason: comment, Packets: packets})
	}
	for _, t := range last.tables {
		if t.Table == pipeline.IngressDeniedTable || t.Table == pipeline.EgressDeniedTable {
			all = append(all, diagnostics.NodeDrop{Table: tables[int(t.Table)], Reason: pipeline.DropPolicy, Packets: t.Lookups})
		}
	}
	all = slices.DeleteFunc(all, func(d diagnostics.NodeDrop) bool { return d.Packets == 0 })
	slices.SortFunc(all, func(a, b diagnostics.NodeDrop) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Reason, b.Reason))
	})
	return all
}

// Run samples until the context ends.
func (s *Sampler) Run(ctx context.Context) {
	n := 0
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		s.sample(ctx, n%slowSamples == 0)
		n++
	}, sampleInterval)
}

// sample reads the statistics; slow ones are retained if slow is false. What can't be read is not reported.
func (s *Sampler) sample(ctx context.Context, slow bool) {
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	previous := s.get()
	next := sample{datapath: previous.datapath, conntrack: previous.conntrack}
	failed := func(part string, err error) bool {
		if parent.Err() == nil {
			s.totals.report(ctx, part, err)
		}
		return err != nil
	}
	tables, err := s.source.TableStats(ctx)
	if !failed("tables", err) {
		next.tables = tables
	}
	static, err := s.source.OwnerDrops(ctx, s.cookie)
	if !failed("drops", err) {
		s.totals.static.add(static)
	}
	if slow {
		peers, err := s.source.TableDrops(ctx, pipeline.TunnelIngressTable)
		if !failed("drops of peers", err) {
			s.totals.peers.add(withoutDefault(peers))
		}
		firewalls, err := s.source.TableDrops(ctx, pipeline.EgressFirewallTable)
		if !failed("drops of egress firewalls", err) {
			s.totals.firewalls.add(withoutDefault(firewalls))
		}
		next.datapath, next.conntrack = nil, nil
		if stats, err := s.source.DatapathStats(ctx); !failed("datapath", err) {
			next.datapath = &stats
		}
		if tracker, err := s.source.Tracker(ctx); !failed("conntrack", err) {
			next.conntrack = &conntrackSample{tracker: tracker}
			if zones, err := s.sampleZones(ctx); !failed("conntrack zones", err) {
				next.conntrack.zones = zones
			}
		}
	}
	if slow && s.host != nil {
		if rules, err := s.sampleHost(parent); !failed("drops of the host's firewall", err) {
			s.totals.addHost(rules)
		}
	}
	next.drops, next.hostDrops = s.totals.drops(), maps.Clone(s.totals.host.total)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = next
}

// sampleHost reads the counters of the host's firewall, with time of its own: iptables may wait for its lock.
func (s *Sampler) sampleHost(ctx context.Context) ([]hostnet.RuleDrops, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	return s.host(ctx)
}

// sampleZones returns the use of the zones by class.
func (s *Sampler) sampleZones(ctx context.Context) (map[pipeline.ZoneClass]native.ZoneUse, error) {
	classes := map[pipeline.ZoneClass]native.ZoneUse{}
	for _, l := range s.zones {
		use, err := s.source.ZoneUse(ctx, l.Zones)
		if err != nil {
			return nil, err
		}
		z := classes[l.Class]
		classes[l.Class] = native.ZoneUse{Total: z.Total + use.Total, Fullest: max(z.Fullest, use.Fullest), Ratio: max(z.Ratio, use.Ratio)}
	}
	return classes, nil
}

// report counts a failure to read a part, and logs the first one and its end.
func (t *sampleTotals) report(ctx context.Context, part string, err error) {
	if t.failing == nil {
		t.failing = map[string]bool{}
	}
	logger := klog.FromContext(ctx).WithValues("part", part)
	switch {
	case err == nil && t.failing[part]:
		logger.Info("Read statistics of the switch again")
	case err != nil && !t.failing[part]:
		logger.Info("Failed to read statistics of the switch", "err", err, "retryAfter", sampleInterval)
	case err != nil:
		logger.V(4).Info("Failed to read statistics of the switch", "err", err)
	}
	if err != nil {
		t.failures.Add(1)
	}
	t.failing[part] = err != nil
}

// drops returns the sums of all counters.
func (t *sampleTotals) drops() map[drop]uint64 {
	sums := map[drop]uint64{}
	for _, c := range []dropCounter{t.static, t.peers, t.firewalls} {
		for d, packets := range c.total {
			sums[d] += packets
		}
	}
	return sums
}

// withoutDefault omits the table's last flow, which is a static one.
func withoutDefault(drops []native.Drop) []native.Drop {
	others := make([]native.Drop, 0, len(drops))
	for _, d := range drops {
		if d.Priority != 0 {
			others = append(others, d)
		}
	}
	return others
}

func (t *sampleTotals) addHost(rules []hostnet.RuleDrops) {
	now := make([]reading[string, string], len(rules))
	for i, r := range rules {
		now[i] = reading[string, string]{r.Rule, r.Comment, r.Packets}
	}
	t.host.add(now)
}

// dropCounter adds up the packets that flows dropped.
type dropCounter struct{ increases[ovs.Key, drop] }

func (c *dropCounter) add(drops []native.Drop) {
	now := make([]reading[ovs.Key, drop], 0, len(drops))
	for _, d := range drops {
		if d.Table == pipeline.IngressDeniedTable || d.Table == pipeline.EgressDeniedTable {
			continue // ovsdn_denied_packets_total has these
		}
		now = append(now, reading[ovs.Key, drop]{d.Key, drop{d.Table, pipeline.DropReason(d.Table, d.Priority)}, d.Packets})
	}
	c.increases.add(now)
}

// increases adds the increases of counters up, by label. The sum of the counters would decrease whenever a flow or a rule is removed or replaced. The first
// counters only are the baseline: flows outlive the agent, and Prometheus would take an old count for an increase.
type increases[Key, Label comparable] struct {
	last  map[Key]uint64
	total map[Label]uint64
}

// reading is a counter of packets.
type reading[Key, Label comparable] struct {
	key     Key
	label   Label
	packets uint64
}

func (c *increases[Key, Label]) add(now []reading[Key, Label]) {
	last, label := make(map[Key]uint64, len(now)), make(map[Key]Label, len(now))
	for _, r := range now {
		last[r.key] += r.packets // iptables has a rule twice while it is replaced
		label[r.key] = r.label
	}
	isFirst := c.last == nil
	if isFirst {
		c.total = map[Label]uint64{}
	}
	for key, increase := range last {
		if before := c.last[key]; before <= increase {
			increase -= before
		}
		if isFirst {
			increase = 0
		}
		c.total[label[key]] += increase
	}
	c.last = last
}

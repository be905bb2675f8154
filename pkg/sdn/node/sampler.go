package node

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
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

// statistics are those of the switch that the sampler reads.
type statistics interface {
	TableStats(context.Context) ([]openflow.TableStats, error)
	OwnerDrops(ctx context.Context, cookie uint64) ([]native.Drop, error)
	TableDrops(ctx context.Context, table uint8) ([]native.Drop, error)
	DatapathStats(context.Context) (native.DatapathStats, error)
	ZoneUse(context.Context, ovs.Zones) (native.ZoneUse, error)
	Tracker(context.Context) (native.Tracker, error)
}

// sample is the state of the switch at one time. Parts that could not be read are nil.
type sample struct {
	tables    []openflow.TableStats
	drops     map[drop]uint64 // packets
	datapath  *native.DatapathStats
	conntrack *conntrackSample
}

type conntrackSample struct {
	tracker native.Tracker
	zones   map[pipeline.ZoneClass]zoneSample
}

type zoneSample struct {
	native.ZoneUse
	limit int
}

// drop is the label of a counter of drops.
type drop struct {
	table  int
	reason string
}

// sampler reads the statistics of the switch in the background.
type sampler struct {
	source statistics
	cookie uint64 // of static flows
	limits func(free int) []pipeline.ZoneLimit

	mu      sync.Mutex
	current sample

	// Only the sampler uses these.
	static, peers dropCounter
}

func newSampler(source statistics, node pipeline.Node, nodeName string) *sampler {
	return &sampler{
		source: source, limits: node.ZoneLimits,
		cookie: pipeline.Owner{Kind: pipeline.KindNode, Key: nodeName}.Cookie(),
	}
}

// get returns the last sample, which the caller must not modify.
func (s *sampler) get() sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// run samples until the context ends.
func (s *sampler) run(ctx context.Context) {
	n := 0
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		s.sample(ctx, n%slowSamples == 0)
		n++
	}, sampleInterval)
}

// sample reads the statistics; slow ones are retained if slow is false. What can't be read is not reported.
func (s *sampler) sample(ctx context.Context, slow bool) {
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	previous := s.get()
	next := sample{datapath: previous.datapath, conntrack: previous.conntrack}
	failed := func(err error) bool {
		if err != nil && parent.Err() == nil {
			klog.FromContext(ctx).V(4).Info("Failed to read statistics of the switch", "err", err)
		}
		return err != nil
	}
	tables, err := s.source.TableStats(ctx)
	if !failed(err) {
		next.tables = tables
	}
	static, err := s.source.OwnerDrops(ctx, s.cookie)
	if !failed(err) {
		s.static.add(static)
	}
	if slow {
		peers, err := s.source.TableDrops(ctx, pipeline.TunnelIngressTable)
		if !failed(err) {
			s.peers.add(withoutDefault(peers))
		}
		next.datapath, next.conntrack = nil, nil
		if stats, err := s.source.DatapathStats(ctx); !failed(err) {
			next.datapath = &stats
		}
		if c, err := s.sampleConntrack(ctx); !failed(err) {
			next.conntrack = c
		}
	}
	next.drops = maps.Clone(s.static.total)
	for d, packets := range s.peers.total {
		if next.drops == nil {
			next.drops = map[drop]uint64{}
		}
		next.drops[d] += packets
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = next
}

func (s *sampler) sampleConntrack(ctx context.Context) (*conntrackSample, error) {
	tracker, err := s.source.Tracker(ctx)
	if err != nil {
		return nil, err
	}
	c := &conntrackSample{tracker: tracker, zones: map[pipeline.ZoneClass]zoneSample{}}
	for _, l := range s.limits(tracker.Free()) {
		use, err := s.source.ZoneUse(ctx, l.Zones)
		if err != nil {
			return nil, err
		}
		z := c.zones[l.Class]
		z.Total += use.Total
		z.Fullest = max(z.Fullest, use.Fullest)
		z.limit = l.Limit
		c.zones[l.Class] = z
	}
	return c, nil
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

// dropCounter adds the increases of flows' counters up. The sum of the counters would decrease whenever a flow is removed or replaced.
type dropCounter struct {
	last  map[ovs.Key]uint64
	total map[drop]uint64
}

func (c *dropCounter) add(drops []native.Drop) {
	last := make(map[ovs.Key]uint64, len(drops))
	if c.total == nil {
		c.total = map[drop]uint64{}
	}
	for _, d := range drops {
		last[d.Key] = d.Packets
		increase := d.Packets
		if before := c.last[d.Key]; before <= increase {
			increase -= before
		}
		c.total[drop{d.Table, pipeline.DropReason(d.Table, d.Priority)}] += increase
	}
	c.last = last
}

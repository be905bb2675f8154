package policies

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

const (
	// logInterval is how often what goes on being denied is said again.
	logInterval = 10 * time.Second
	// maxDenials is how many of them are told apart in an interval, and maxDenialsOfPod how many of one pod and direction: of more than this, nobody
	// reads the lines.
	maxDenials      = 512
	maxDenialsOfPod = 32
	// maxWaiting is how many packets wait while names are looked up; the switch sends ten a second for each pod and direction.
	maxWaiting = 256
)

// denial is what packets have in common that are logged in one line.
type denial struct {
	pipeline.Denied
	header
}

// subject is whom a packet is denied to.
type subject struct {
	egress bool
	pod    netip.Addr
}

func (d denial) subject() subject {
	if d.Egress {
		return subject{true, d.source}
	}
	return subject{false, d.destination}
}

// explanation names who takes part in a denial, and why it is one.
type explanation struct {
	source, destination string
	policies            []string // none: they have gone meanwhile
	more                int      // policies that are not named
}

// denied writes a line in the log for packets that were denied to pods of logged namespaces: for the first of a kind at once, then once in
// an interval how many there were. The names are those of the first one's time: a pod that ends because it was denied something is named.
type denied struct {
	explain func(denial) explanation
	packets chan ovs.PacketIn
	missed  atomic.Uint64 // packets that did not fit
	lines   map[denial]*line
	of      map[subject]int // how many lines a pod has
}

// line is what is known of a denial.
type line struct {
	explanation
	packets uint64 // since it was logged last
}

func newDenied(explain func(denial) explanation) *denied {
	return &denied{explain: explain, packets: make(chan ovs.PacketIn, maxWaiting), lines: map[denial]*line{}, of: map[subject]int{}}
}

// handle takes a packet, for run. It never blocks.
func (d *denied) handle(p ovs.PacketIn) {
	select {
	case d.packets <- p:
	default:
		d.missed.Add(1)
	}
}

// run logs until the context ends.
func (d *denied) run(ctx context.Context) {
	tick := time.NewTicker(logInterval)
	defer tick.Stop()
	for {
		select {
		case p := <-d.packets:
			d.take(ctx, p)
		case <-tick.C:
			d.repeat(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// take counts a packet, and logs the first of a kind.
func (d *denied) take(ctx context.Context, p ovs.PacketIn) {
	reason, ok := pipeline.ReadDenied(p)
	if !ok {
		return
	}
	header, ok := readHeader(p.Packet)
	if !ok {
		return
	}
	what := denial{reason, header}
	l := d.lines[what]
	switch {
	case l != nil:
		l.packets++
	case len(d.lines) == maxDenials || d.of[what.subject()] == maxDenialsOfPod:
		d.missed.Add(1)
	default:
		d.of[what.subject()]++
		l = &line{explanation: d.explain(what), packets: 1}
		d.lines[what] = l
		l.log(ctx, what)
	}
}

// repeat logs what came since the last time, and forgets what has ended.
func (d *denied) repeat(ctx context.Context) {
	for what, l := range d.lines {
		if l.packets == 0 {
			d.forget(what)
			continue
		}
		l.log(ctx, what)
	}
	if n := d.missed.Swap(0); n > 0 {
		klog.FromContext(ctx).Info("More was denied than is logged by name", "packets", n)
	}
}

func (d *denied) forget(what denial) {
	delete(d.lines, what)
	if d.of[what.subject()]--; d.of[what.subject()] == 0 {
		delete(d.of, what.subject())
	}
}

func (l *line) log(ctx context.Context, what denial) {
	direction := "ingress"
	if what.Egress {
		direction = "egress"
	}
	fields := []any{"source", l.source, "destination", l.destination, "protocol", what.name()}
	if what.port != 0 {
		fields = append(fields, "port", what.port)
	}
	fields = append(fields, "direction", direction, "policies", l.policies)
	if l.more > 0 {
		fields = append(fields, "morePolicies", l.more)
	}
	fields = append(fields, "packets", l.packets)
	klog.FromContext(ctx).Info("Denied", fields...)
	l.packets = 0
}

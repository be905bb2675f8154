package networkpolicy

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

const (
	// logInterval is the time between two log lines about the same kind of denied packets.
	logInterval = 10 * time.Second
	// maxKinds limits the kinds of denied packets that are logged for each pod and direction. There is no limit that pods share: a pod could use it up
	// to hide the reports of others. It is small since all pods of a node may reach it at once, and the container runtime rotates logs.
	maxKinds = 16
)

// denial is a kind of denied packets: those that are logged in one line.
type denial struct {
	pipeline.Denied
	header
}

// subject is the local pod that denied packets are reported for, and their direction. Limits apply to each subject. The other end is never part of
// it: remote senders choose their addresses freely.
type subject struct {
	egress bool
	pod    netip.Addr // invalid for all addresses outside of the node's subnets
}

func (s subject) direction() string {
	if s.egress {
		return "egress"
	}
	return "ingress"
}

// explanation names the ends of a denied packet and the policies that deny it.
type explanation struct {
	source, destination string
	policies            []string // none: they were deleted in the meantime
	more                int      // policies that are not named
}

// denied logs packets that were denied to pods of logged namespaces: the first of a kind at once, then in each interval the number of further ones. The
// names are those of the time of the first packet, so a pod that ends because of the denial is still named.
type denied struct {
	explain func(denial) explanation
	subnets []netip.Prefix // of this node
	wake    chan struct{}

	reported [2]atomic.Uint64 // packets: ingress, egress

	mu       sync.Mutex
	subjects map[subject]*reports
	queue    []*reports // with due lines or packets, each once; served round-robin
}

// reports are the denied packets of a subject. Only run accesses pod and the names of lines.
type reports struct {
	subject subject
	pod     string
	lines   map[denial]*line
	due     []*line // lines to write
	queued  bool

	omitted    uint64 // packets beyond maxKinds since the last interval
	omittedDue uint64 // of them, those to write
}

// line is a kind of denied packets.
type line struct {
	kind    denial
	names   *explanation // nil until the line is written first
	packets uint64       // since the line became due last
	due     uint64       // packets to write; 0: the line is not due
}

func newDenied(explain func(denial) explanation, subnets []netip.Prefix) *denied {
	return &denied{explain: explain, subnets: subnets, wake: make(chan struct{}, 1), subjects: map[subject]*reports{}}
}

// subject returns the subject of a kind of packets. The switch reports packets of local pods only; all others share one subject for each direction.
func (d *denied) subject(kind denial) subject {
	addr := kind.destination
	if kind.Egress {
		addr = kind.source
	}
	if !slices.ContainsFunc(d.subnets, func(s netip.Prefix) bool { return s.Contains(addr) }) {
		addr = netip.Addr{}
	}
	return subject{kind.Egress, addr}
}

// handle counts a packet, and queues a line if it is the first of its kind. It does not log: the caller reads the packets of the switch.
func (d *denied) handle(p ovs.PacketIn) {
	reason, ok := pipeline.ReadDenied(p)
	if !ok {
		return
	}
	header, ok := readHeader(p.Packet)
	if !ok {
		return
	}
	kind := denial{reason, header}
	s := d.subject(kind)
	if kind.Egress {
		d.reported[1].Add(1)
	} else {
		d.reported[0].Add(1)
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.subjects[s]
	if r == nil {
		r = &reports{subject: s, lines: map[denial]*line{}}
		d.subjects[s] = r
	}
	switch l := r.lines[kind]; {
	case l != nil:
		l.packets++
	case len(r.lines) == maxKinds:
		r.omitted++
	default:
		l = &line{kind: kind, due: 1}
		r.lines[kind] = l
		r.due = append(r.due, l)
		d.enqueue(r)
	}
}

// enqueue queues the subject, and wakes run. The caller holds the lock.
func (d *denied) enqueue(r *reports) {
	if !r.queued {
		r.queued = true
		d.queue = append(d.queue, r)
	}
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// run logs until the context ends.
func (d *denied) run(ctx context.Context) {
	tick := time.NewTicker(logInterval)
	defer tick.Stop()
	for {
		select {
		case <-d.wake:
			d.write(ctx)
		case <-tick.C:
			d.repeat()
		case <-ctx.Done():
			return
		}
	}
}

// repeat queues the lines whose kind had more packets since the last interval, and deletes the others.
func (d *denied) repeat() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for s, r := range d.subjects {
		for kind, l := range r.lines {
			switch {
			case l.due > 0: // not written yet
			case l.packets == 0:
				delete(r.lines, kind)
			default:
				l.due, l.packets = l.packets, 0
				r.due = append(r.due, l)
			}
		}
		r.omittedDue += r.omitted
		r.omitted = 0
		switch {
		case len(r.due) > 0 || r.omittedDue > 0:
			d.enqueue(r)
		case len(r.lines) == 0:
			delete(d.subjects, s)
		}
	}
}

// write logs the due lines, one of each subject in turn, until none is due or the context ends.
func (d *denied) write(ctx context.Context) {
	for ctx.Err() == nil {
		r, l, packets := d.next()
		switch {
		case r == nil:
			return
		case l == nil:
			klog.FromContext(ctx).Info("Omitted reports of denied packets", "pod", r.pod, "direction", r.subject.direction(), "packets", packets)
		default:
			d.log(ctx, r, l, packets)
		}
	}
}

// next returns the next subject of the queue, its next due line, and the number of packets to write. A nil line means packets beyond maxKinds. The subject
// is nil if the queue is empty.
func (d *denied) next() (r *reports, l *line, packets uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) == 0 {
		return nil, nil, 0
	}
	r = d.queue[0]
	d.queue[0] = nil
	d.queue = d.queue[1:]
	r.queued = false
	if len(r.due) > 0 {
		l = r.due[0]
		r.due = r.due[1:]
		packets, l.due = l.due, 0
	} else {
		packets, r.omittedDue = r.omittedDue, 0
	}
	if len(r.due) > 0 || r.omittedDue > 0 {
		d.enqueue(r)
	}
	return r, l, packets
}

// log writes a line.
func (d *denied) log(ctx context.Context, r *reports, l *line, packets uint64) {
	if l.names == nil {
		names := d.explain(l.kind)
		l.names = &names
		r.pod = names.podOf(r.subject)
	}
	fields := []any{"source", l.names.source, "destination", l.names.destination, "protocol", l.kind.name()}
	if l.kind.port != 0 {
		fields = append(fields, "port", l.kind.port)
	}
	fields = append(fields, "direction", r.subject.direction(), "policies", l.names.policies)
	if l.names.more > 0 {
		fields = append(fields, "morePolicies", l.names.more)
	}
	klog.FromContext(ctx).Info("Denied", append(fields, "packets", packets)...)
}

// podOf returns the name of the subject's pod, which is one end.
func (e explanation) podOf(s subject) string {
	switch {
	case !s.pod.IsValid():
		return "unknown"
	case s.egress:
		return e.source
	}
	return e.destination
}

package servicenat

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"
	"sigs.k8s.io/knftables"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

const (
	// checkPeriod is the interval of checks of the rules.
	checkPeriod = 10 * time.Second

	// maxCheckPeriod is the interval while another program deletes the rules again and again.
	maxCheckPeriod = 5 * time.Minute

	// minBackoff and maxBackoff bound the time between failed writes.
	minBackoff = time.Second
	maxBackoff = time.Minute

	// minFlushInterval is between two flushes of connections, which take at most one of flushShare parts of the time.
	minFlushInterval = time.Second
	flushShare       = 10

	// maxUnflushed bounds the frontends that wait for a flush while flushes fail.
	maxUnflushed = 100_000

	// nftTimeout is the time for all runs of nft of one round.
	nftTimeout = time.Minute
)

// Run replaces the rules of a previous agent, writes changes, and restores rules that other programs delete, until the context ends. The rules remain then.
func (t *Translator) Run(ctx context.Context) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("part", "service rules"))
	w := &writer{Translator: t, checkDelay: checkPeriod, unflushed: changedKeys{}}
	for ctx.Err() == nil {
		timer := time.NewTimer(w.round(ctx))
		changed := t.changed
		if w.paused {
			changed = nil // changes wait for the next attempt
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// writer has the state of the table.
type writer struct {
	*Translator
	nft     knftables.Interface
	written map[key]*Frontend   // nil: the table must be replaced
	count   map[string]int      // elements written, by the name of the set or map
	lost    string              // what another program deleted, until the table is replaced
	paused  bool                // the last round failed, or waits because another program deletes the table again
	backoff time.Duration       // after the last failure
	failure reconcile.LastError // reported by an Event

	unflushed    changedKeys // whose connections are flushed from flushAt on
	flushAt      time.Time
	flushFailure reconcile.LastError

	checkAt    time.Time
	checkDelay time.Duration
	verified   uint32 // generation of the ruleset in which the table was complete; 0: unknown
}

// round returns the time until the next one.
func (w *writer) round(ctx context.Context) time.Duration {
	limited, cancel := context.WithTimeout(ctx, nftTimeout)
	defer cancel()
	w.paused = false
	err := w.sync(limited)
	if ctx.Err() != nil {
		return 0
	}
	isNew := w.failure.Set(err)
	if err != nil {
		w.paused, w.backoff = true, min(max(2*w.backoff, minBackoff), maxBackoff)
		klog.FromContext(ctx).Error(err, "Failed to write service rules", "retryAfter", w.backoff)
		if isNew {
			w.options.WarnNode(eventreason.ServiceRulesFailed, fmt.Sprintf("node ports, external IPs and load balancer addresses of services, and cluster IPs "+
				"for programs that are bound to the node's own IP, may not work on this node: %v; the agent retries; \"nft list table ip %s\" on the node lists the active rules", err, tableName))
		}
		return w.backoff
	}
	w.backoff = 0
	next := w.checkAt
	if len(w.unflushed) > 0 && !w.paused && w.flushAt.Before(next) {
		next = w.flushAt
	}
	return max(0, next.Sub(w.now()))
}

// sync writes what differs between the table and the desired state.
func (w *writer) sync(ctx context.Context) error {
	if w.nft == nil {
		nft, err := w.open()
		if err != nil {
			return err
		}
		w.nft = nft
	}
	if err := w.check(ctx); err != nil {
		return err
	}
	if w.written != nil {
		err := w.update(ctx)
		if err == nil || !knftables.IsNotFound(err) {
			return err
		}
		w.lost = "some of them" // the next check may be far away
	}
	if w.lost != "" && w.checkDelay > checkPeriod && w.now().Before(w.checkAt) {
		w.paused = true // another program deletes them again and again
		return nil
	}
	return w.replace(ctx)
}

// check sets lost if the table is incomplete.
func (w *writer) check(ctx context.Context) error {
	if w.written == nil || w.now().Before(w.checkAt) {
		return nil
	}
	lost, err := w.missing(ctx)
	if err != nil {
		return err
	}
	if lost != "" {
		w.lost = lost
		w.invalidate()
		return nil
	}
	w.checkDelay = checkPeriod
	w.checkAt = w.now().Add(w.checkDelay)
	return nil
}

// update writes the changed elements.
func (w *writer) update(ctx context.Context) error {
	changes := w.takeChanged()
	tx := w.nft.NewTransaction()
	count := map[string]int{}
	var added []element
	for k, f := range changes {
		remaining := map[element]bool{} // true: not written yet
		for _, e := range f.elements() {
			remaining[e] = true
		}
		for _, e := range w.written[k].elements() {
			if remaining[e] {
				remaining[e] = false
				continue
			}
			tx.Delete(e.object())
			count[e.name]--
		}
		for e, missing := range remaining {
			if missing {
				added = append(added, e)
				count[e.name]++
			}
		}
	}
	for _, e := range added { // after deletions of overlapping or equal keys
		tx.Add(e.object())
	}
	if tx.NumOperations() > 0 {
		if err := w.run(ctx, tx); err != nil {
			w.invalidate() // unknown which elements exist
			return fmt.Errorf("write service rules: %w", err)
		}
	}
	udp := changedKeys{}
	for k, f := range changes {
		udp.add(k, w.written[k], f)
		if w.written[k] = f; f == nil {
			delete(w.written, k)
		}
	}
	for name, n := range count {
		w.count[name] += n
	}
	w.flushUDP(ctx, udp)
	return nil
}

// run runs the transaction. The generation remains verified if no other program changed the ruleset in the meantime.
func (w *writer) run(ctx context.Context, tx *knftables.Transaction) error {
	before, err := w.generation()
	known := err == nil && before == w.verified && before != 0
	if err := w.nft.Run(ctx, tx); err != nil {
		return err
	}
	w.verified = 0
	if after, err := w.generation(); known && err == nil && after == before+1 {
		w.verified = after
	}
	return nil
}

// replace replaces the table.
func (w *writer) replace(ctx context.Context) error {
	all := w.takeAll()
	tx := w.nft.NewTransaction()
	w.options.replaceTable(tx, all)
	if err := w.run(ctx, tx); err != nil {
		return fmt.Errorf("write service rules: %w", err)
	}
	w.written, w.count = all, map[string]int{}
	udp := changedKeys{}
	for k, f := range all {
		udp.add(k, nil, f)
		for _, e := range f.elements() {
			w.count[e.name]++
		}
	}
	w.flushUDP(ctx, udp)
	w.synced.Store(true)
	w.checkAt = w.now().Add(w.checkDelay)
	if w.lost != "" {
		klog.FromContext(ctx).Info("Restored service rules", "difference", w.lost, "nextCheck", w.checkDelay)
		w.options.WarnNode(eventreason.ServiceRulesRestored, fmt.Sprintf("another program changed the nftables rules of services while the agent ran "+
			"(%s), and they are restored; find the program, such as one that flushes the firewall", w.lost))
		w.lost, w.checkDelay = "", min(2*w.checkDelay, maxCheckPeriod)
	}
	return nil
}

// missing returns what the table lacks; "": nothing. It lists the table only if the ruleset has changed since the last call.
func (w *writer) missing(ctx context.Context) (string, error) {
	generation, err := w.generation()
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to read the generation of nftables", "err", err)
		generation = 0
	}
	if generation != 0 && generation == w.verified {
		return "", nil
	}
	rules, err := w.nft.ListRules(ctx, "")
	if knftables.IsNotFound(err) {
		return "table ip " + tableName, nil
	}
	if err != nil {
		return "", fmt.Errorf("list service rules: %w", err)
	}
	count := map[string]int{}
	for _, r := range rules {
		count[r.Chain]++
	}
	for _, c := range w.options.chains() {
		if count[c.name] != len(c.rules) {
			return "chain " + c.name, nil
		}
	}
	lost, err := w.missingElements(ctx)
	if lost == "" && err == nil {
		w.verified = generation
	}
	return lost, err
}

// missingElements returns the set or map that lacks elements, or has more than were written; "": none.
func (w *writer) missingElements(ctx context.Context) (string, error) {
	allSets, allMaps := sets()
	for _, s := range allSets {
		if lost, err := w.missingElementsOf(ctx, "set", s.Name); lost != "" || err != nil {
			return lost, err
		}
	}
	for _, m := range allMaps {
		if lost, err := w.missingElementsOf(ctx, "map", m.Name); lost != "" || err != nil {
			return lost, err
		}
	}
	return "", nil
}

func (w *writer) missingElementsOf(ctx context.Context, kind, name string) (string, error) {
	elements, err := w.nft.ListElements(ctx, kind, name)
	if knftables.IsNotFound(err) || err == nil && len(elements) != w.count[name] {
		return kind + " " + name, nil
	}
	if err != nil {
		return "", fmt.Errorf("list %s %s: %w", kind, name, err)
	}
	return "", nil
}

// Package reachability probes which nodes the controller can reach.
package reachability

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// interval is the time from one round of probes to the next, and the time that nodes have for an answer.
	interval = 500 * time.Millisecond

	// threshold is the number of consecutive probes without an answer after which a node is not reachable, and with one after which it is
	// again for the first time.
	threshold = 3

	// stable is the number of rounds after which an earlier failure of a reachable node does not matter: ten minutes.
	stable = 1200

	// maxRequired bounds the answers that a node needs which fails again and again: one minute.
	maxRequired = 120

	// blockedAfter is the number of rounds after which a node that is not reachable, but whose Node is Ready, is taken for one whose probes are blocked: two minutes,
	// more than Kubernetes needs to set the condition of a dead node.
	blockedAfter = 240

	// maxParallel bounds the probes in progress: a few hundred nodes are probed at once.
	maxParallel = 512
)

// State is what probes found about a node.
type State struct {
	Unreachable bool
	Answered    bool // it has answered a probe, now or to an earlier leader
	Unanswered  bool // it has never answered, or no longer though its Node is Ready: its condition Ready decides
}

// Prober probes nodes in rounds, all at once: if no node answers, the controller may be the one that is cut off, and the round changes nothing. Neither does one
// after which no node would be reachable.
type Prober struct {
	dial    Dial
	isReady func(node string) bool
	changed func()

	mu    sync.Mutex
	nodes map[string]*node
}

type node struct {
	State
	addr              netip.Addr
	answers, failures int // consecutive
	ready             int // consecutive rounds in which it was not reachable, but its Node was Ready
	reachable         int // rounds since it became reachable
	required          int // consecutive answers to become reachable again; 0: it has not failed yet
}

// New returns a prober. isReady reports the condition Ready of a Node. changed is called when the State of a node has changed.
func New(dial Dial, isReady func(node string) bool, changed func()) *Prober {
	return &Prober{dial: dial, isReady: isReady, changed: changed, nodes: map[string]*node{}}
}

// Set adds a node with a State that an earlier leader has recorded. Of a node that is probed already it changes the address.
func (p *Prober) Set(name string, addr netip.Addr, recorded State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[name]
	switch {
	case n == nil:
		p.nodes[name] = &node{addr: addr, State: recorded}
	case n.addr != addr:
		n.addr, n.answers, n.failures = addr, 0, 0
	}
}

// Remove ends the probes of a node.
func (p *Prober) Remove(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.nodes, name)
}

// State returns the state of a node.
func (p *Prober) State(name string) State {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.nodes[name]; n != nil {
		return n.State
	}
	return State{}
}

// Run probes until the context ends.
func (p *Prober) Run(ctx context.Context) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		answers := p.probe(ctx)
		if ctx.Err() != nil {
			return
		}
		if p.evaluate(answers) {
			p.changed()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// probe probes all nodes once, and returns which have answered.
func (p *Prober) probe(ctx context.Context) map[string]answer {
	p.mu.Lock()
	addrs := make(map[string]netip.Addr, len(p.nodes))
	for name, n := range p.nodes {
		addrs[name] = n.addr
	}
	p.mu.Unlock()
	var mu sync.Mutex
	answers := make(map[string]answer, len(addrs))
	var probes errgroup.Group
	probes.SetLimit(maxParallel)
	for name, addr := range addrs {
		probes.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, interval)
			defer cancel()
			err := p.dial(ctx, addr)
			mu.Lock()
			defer mu.Unlock()
			answers[name] = answer{addr: addr, answered: err == nil}
			return nil
		})
	}
	_ = probes.Wait() // returns no error
	return answers
}

// answer is the result of one probe.
type answer struct {
	addr     netip.Addr
	answered bool
}

// evaluate counts the answers of a round, and returns whether a State has changed.
func (p *Prober) evaluate(answers map[string]answer) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	isCutOff := !slices.ContainsFunc(slices.Collect(maps.Values(answers)), func(a answer) bool { return a.answered })
	next, hasReachable := map[*node]State{}, false
	for name, n := range p.nodes {
		a, isProbed := answers[name]
		switch {
		case !isProbed || a.addr != n.addr:
			next[n] = n.State // it was added, or got another address, during the round
		case a.answered:
			n.answers, n.failures, n.ready = n.answers+1, 0, 0
			next[n] = n.answered()
		case n.Answered && isCutOff:
			next[n] = n.State
		default:
			n.answers, n.failures = 0, n.failures+1
			next[n] = n.failed(p.isReady(name))
		}
		hasReachable = hasReachable || !next[n].Unreachable
	}
	for n, state := range next {
		if !hasReachable {
			state.Unreachable = n.Unreachable
		}
		changed = changed || n.State != state
		n.set(state)
	}
	return changed
}

// set sets the state. A node that fails again soon needs twice as many answers each time: each return moves egress IPs.
func (n *node) set(s State) {
	switch {
	case !s.Unreachable:
		n.reachable++
	case !n.Unreachable && n.required > 0 && n.reachable < stable:
		n.required = min(2*n.required, maxRequired)
	case !n.Unreachable:
		n.required = threshold
	}
	if s.Unreachable {
		n.reachable = 0
	}
	n.State = s
}

// answered returns the state after an answer.
func (n *node) answered() State {
	return State{Answered: true, Unreachable: n.Unreachable && n.answers < max(n.required, threshold)}
}

// failed returns the state after a probe without an answer. A node that is Ready for long is not dead: a firewall has begun to drop the probes, and its egress IPs
// must not stay away until it is changed. Then the condition Ready decides as about a node that has never answered.
func (n *node) failed(isReady bool) State {
	if n.ready++; !isReady || !n.Unreachable {
		n.ready = 0
	}
	s := n.State
	switch {
	case n.failures < threshold:
	case n.Answered && n.ready < blockedAfter:
		s.Unreachable = true
	default:
		s = State{Unanswered: true, Unreachable: !isReady}
	}
	return s
}

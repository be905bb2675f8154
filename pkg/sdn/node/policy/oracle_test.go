package policy

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/test/oracle"
)

var (
	seeds = flag.Int("seeds", 24, "how many random clusters")                 //nolint:gochecknoglobals // a test binary parses its flags before any test runs
	seed  = flag.Uint64("seed", 0, "the one random cluster to look at again") //nolint:gochecknoglobals // as above
)

// compiled is what the engine's pieces make of a packet, as a switch would.
type compiled struct {
	engine   *Engine
	parts    map[Piece][]Part
	outcomes map[uint32]Action
	levels   map[uint32]Level
	local    map[PodKey]bool

	isolated map[PodKey][2]bool // what the flows of pods say; the engine says it of others
}

func newCompiled() *compiled {
	return &compiled{engine: New(oracle.HostNetwork()...), parts: map[Piece][]Part{}, outcomes: map[uint32]Action{}, levels: map[uint32]Level{}, local: map[PodKey]bool{}}
}

// drain takes over what changed, and nothing else: what the engine forgot to mention is missing.
func (c *compiled) drain() { c.compile(c.engine.Drain()) }

func (c *compiled) compile(pieces []Piece) {
	for _, p := range pieces {
		c.compilePiece(p)()
	}
}

// compilePiece compiles the piece, and returns what puts it in place of what there was.
func (c *compiled) compilePiece(p Piece) func() {
	if p.Kind == Outcome {
		_, level, action, ok := c.engine.Outcome(p)
		return func() {
			if ok {
				c.outcomes[p.ID], c.levels[p.ID] = action, level
			} else {
				delete(c.outcomes, p.ID)
				delete(c.levels, p.ID)
			}
		}
	}
	parts := kept(c.engine.Compile(p))
	return func() {
		if len(parts) > 0 {
			c.parts[p] = parts
		} else {
			delete(c.parts, p)
		}
	}
}

// kept are the parts, longer than the engine keeps them.
func kept(parts []Part) []Part {
	parts = slices.Clone(parts)
	for i := range parts {
		parts[i].Conj = slices.Clone(parts[i].Conj)
	}
	return parts
}

// met are the rules' parts that a packet belongs to.
type met map[Conj]bool

func (c *compiled) meet(m met, d Direction, p Piece) {
	for _, part := range c.parts[p] {
		if part.Direction == d {
			for _, conj := range part.Conj {
				m[conj] = true
			}
		}
	}
}

// between are those that follow from the two ends, seen from one of the node's pods.
func (c *compiled) between(d Direction, target PodKey, peer netip.Addr, vnid uint32) met {
	m := met{}
	c.meet(m, d, Piece{Kind: Target, Pod: target})
	c.meetPrefixes(m, d, Peer, peer)
	c.meet(m, d, Piece{Kind: Anything})
	if d == Ingress {
		c.meet(m, d, Piece{Kind: Tenant, VNID: vnid})
	}
	return m
}

// meetNode adds the pieces that match a peer that is a node, by its other address.
func (c *compiled) meetNode(m met, other netip.Addr) {
	c.meet(m, Ingress, Piece{Kind: Nodes})
	c.meetPrefixes(m, Ingress, NodeBlock, other)
}

func (c *compiled) meetPrefixes(m met, d Direction, kind Kind, addr netip.Addr) {
	for bits := range addr.BitLen() + 1 {
		p, _ := addr.Prefix(bits)
		c.meet(m, d, Piece{Kind: kind, Prefix: p})
	}
}

// verdict adds the port, and decides.
func (c *compiled) verdict(d Direction, target PodKey, ends met, protocol corev1.Protocol, port uint16) bool {
	m := maps.Clone(ends)
	if protocol != "" {
		for bits := range 17 {
			mask := uint16(0xffff) << (16 - bits)
			c.meet(m, d, Piece{Kind: Port, PortMatch: PortMatch{protocol, port & mask, mask}})
		}
	}
	return c.decide(d, target, m)
}

// decide goes down from the highest level. What passes leaves out its tier.
func (c *compiled) decide(d Direction, target PodKey, m met) bool {
	byLevel := map[Level]Action{}
	count := map[uint32]uint8{}
	for conj := range m {
		if count[conj.ID]++; count[conj.ID] == conj.N {
			byLevel[c.levels[conj.ID]] = c.outcomes[conj.ID]
		}
	}
	isolated, sent := c.isolated[target]
	if !sent {
		isolated[Ingress], isolated[Egress] = c.engine.Isolated(target)
	}
	if isolated[d] {
		byLevel[Isolation] = Deny
	}
	below := Highest + 1
	for _, level := range slices.Backward(slices.Sorted(maps.Keys(byLevel))) {
		switch {
		case level >= below:
		case byLevel[level] == Pass && level.IsAdmin():
			below = lowestAdmin
		case byLevel[level] == Pass:
			return true
		default:
			return byLevel[level] == Allow
		}
	}
	return true
}

// nodes is the compiled state of every node of a world, as its watcher.
type nodes struct {
	byName map[string]*compiled
	vnids  map[string]uint32
}

func (n *nodes) SetNamespace(ns *corev1.Namespace) {
	// VNIDs change with the labels: some namespaces share one, some have their own, some have none.
	n.vnids[ns.Name] = map[string]uint32{"a": 10, "b": 11, "c": 12}[ns.Labels["app"]]
	for _, c := range n.byName {
		c.engine.SetNamespace(ns.Name, ns.Labels)
		c.engine.SetVNID(ns.Name, n.vnids[ns.Name])
	}
}

func (n *nodes) DeleteNamespace(ns *corev1.Namespace) {
	for _, c := range n.byName {
		c.engine.DeleteNamespace(ns.Name)
		c.engine.SetVNID(ns.Name, 0)
	}
}

func (n *nodes) SetPod(p *corev1.Pod) {
	key := PodKey{p.Namespace, p.Name}
	for name, c := range n.byName {
		if name == p.Spec.NodeName && p.Status.PodIP != "" && p.Status.Phase == "" && !c.local[key] {
			c.local[key] = true
			c.engine.Attach(key, netip.MustParseAddr(p.Status.PodIP))
		} else if p.Status.Phase != "" && c.local[key] {
			delete(c.local, key)
			c.engine.Detach(key)
		}
		c.engine.SetPod(NewPod(p))
	}
}

func (n *nodes) DeletePod(p *corev1.Pod) {
	key := PodKey{p.Namespace, p.Name}
	for _, c := range n.byName {
		if c.local[key] {
			delete(c.local, key)
			c.engine.Detach(key)
		}
		c.engine.DeletePod(key)
	}
}

func (n *nodes) SetPolicy(p *networkingv1.NetworkPolicy) {
	for _, c := range n.byName {
		if err := c.engine.SetNetworkPolicy(p); err != nil {
			panic(err)
		}
	}
}

func (n *nodes) DeletePolicy(p *networkingv1.NetworkPolicy) {
	for _, c := range n.byName {
		c.engine.DeleteNetworkPolicy(p.Namespace, p.Name)
	}
}

func (n *nodes) SetClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) {
	for _, c := range n.byName {
		if err := c.engine.SetClusterNetworkPolicy(p); err != nil {
			panic(err)
		}
	}
}

func (n *nodes) DeleteClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) {
	for _, c := range n.byName {
		c.engine.DeleteClusterNetworkPolicy(p.Name)
	}
}

// newNodes are a world's two nodes.
func newNodes() *nodes {
	n := &nodes{byName: map[string]*compiled{"n1": newCompiled(), "n2": newCompiled()}, vnids: map[string]uint32{}}
	for _, c := range n.byName {
		for i, app := range []string{"a", "b"} {
			name := fmt.Sprintf("n%d", i+1)
			c.engine.SetNode(name, map[string]string{"app": app}, oracle.NodeAddr(i), oracle.NodeIP(i))
			c.engine.SetNodeNetwork(name, oracle.NodeIP(i), oracle.NodeAddr(i))
		}
	}
	return n
}

// judge says for a pair of ends what becomes of a protocol and port.
func (n *nodes) judge(from, to oracle.Endpoint) func(corev1.Protocol, uint16) bool {
	if exempt(from, to) {
		return func(corev1.Protocol, uint16) bool { return true }
	}
	var vnid uint32
	out := func(corev1.Protocol, uint16) bool { return true }
	in := out
	if pod := from.Pod; pod != nil {
		vnid = n.vnids[pod.Namespace]
		c, key := n.byName[pod.Spec.NodeName], PodKey{pod.Namespace, pod.Name}
		ends := c.between(Egress, key, to.Addr, 0)
		out = func(protocol corev1.Protocol, port uint16) bool { return c.verdict(Egress, key, ends, protocol, port) }
	}
	if pod := to.Pod; pod != nil {
		c, key := n.byName[pod.Spec.NodeName], PodKey{pod.Namespace, pod.Name}
		ends := c.between(Ingress, key, from.Addr, vnid)
		if from.Node != "" {
			c.meetNode(ends, otherAddr(from))
		}
		in = func(protocol corev1.Protocol, port uint16) bool { return c.verdict(Ingress, key, ends, protocol, port) }
	}
	return func(protocol corev1.Protocol, port uint16) bool { return out(protocol, port) && in(protocol, port) }
}

// otherAddr returns the address that tables 0 and 10 load into reg6 for packets of a node itself.
func otherAddr(e oracle.Endpoint) netip.Addr {
	i := map[string]int{"n1": 0, "n2": 1}[e.Node]
	if e.Addr == oracle.NodeIP(i) {
		return oracle.NodeAddr(i)
	}
	return oracle.NodeIP(i)
}

// exempt is what the tables decide before any rule: a pod's way to itself, and a node's to its own pods.
func exempt(from, to oracle.Endpoint) bool {
	own := from.Pod != nil && from.Pod == to.Pod
	probe := from.Node != "" && to.Pod != nil && to.Pod.Spec.NodeName == from.Node
	return own || probe
}

// compare asks about pairs of endpoints, all or a sample.
func (n *nodes) compare(w *oracle.World, sample func() bool) error {
	for _, c := range n.byName {
		c.drain()
	}
	ends := w.Endpoints()
	for _, from := range ends {
		for _, to := range ends {
			if from.Pod == nil && to.Pod == nil || to.Through != "" || !sample() {
				continue
			}
			allowed := n.judge(from, to)
			for _, protocol := range oracle.Protocols() {
				for _, port := range oracle.Ports(protocol) {
					conn := oracle.Connection{From: from, To: to, Protocol: protocol, Port: port}
					if got, want := allowed(protocol, uint16(port)), w.Judge(conn); got != want.Allowed { //nolint:gosec // small
						return fmt.Errorf("%s to %s, %s %d: allowed %v, want %v: %s", end(from), end(to), protocol, port, got, want.Allowed, want.Why)
					}
				}
			}
		}
	}
	return nil
}

func end(e oracle.Endpoint) string {
	if e.Pod != nil {
		return fmt.Sprintf("pod %s/%s (%s)", e.Pod.Namespace, e.Pod.Name, e.Addr)
	}
	return e.Node + " " + e.Addr.String()
}

// comparison holds what nodes judge against the oracle, for some of the pairs of ends.
type comparison func(n *nodes, w *oracle.World, sample func() bool) error

func all() bool { return true }

// inClusters compares in random clusters: after each of fifty changes some pairs, at first and in the end all. What else the end shows is seen by its function.
func (compare comparison) inClusters(t *testing.T, end func(t *testing.T, n *nodes, w *oracle.World)) {
	t.Helper()
	from, to := uint64(1), uint64(*seeds) //nolint:gosec // a flag of ours
	if *seed != 0 {
		from, to = *seed, *seed
	}
	for s := from; s <= to; s++ {
		t.Run(fmt.Sprintf("seed %d", s), func(t *testing.T) {
			t.Parallel()
			n := newNodes()
			w := oracle.NewWorld(s, n)
			r := rand.New(rand.NewPCG(s, 1)) //nolint:gosec // to be repeatable
			if err := compare(n, w, all); err != nil {
				t.Fatalf("at first: %v", err)
			}
			for i := range 50 {
				what := w.Step(n)
				if err := compare(n, w, func() bool { return r.IntN(40) == 0 }); err != nil {
					t.Fatalf("step %d, %s: %v", i, what, err)
				}
			}
			if err := compare(n, w, all); err != nil {
				t.Fatalf("in the end: %v", err)
			}
			end(t, n, w)
		})
	}
}

// onCases compares after each step of all of cyclonus' cases.
func (compare comparison) onCases(t *testing.T) {
	t.Helper()
	for _, c := range oracle.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			n := newNodes()
			c.Play(n, func(step int, w *oracle.World) {
				if err := compare(n, w, all); err != nil {
					t.Errorf("step %d: %v", step, err)
				}
			})
		})
	}
}

// Random clusters are judged as the oracle does, after every one of fifty changes; and the pieces that came about step by
// step are those of an engine that sees the end only.
func TestAgreesWithTheOracle(t *testing.T) {
	comparison((*nodes).compare).inClusters(t, compareAnew)
}

// All of cyclonus' cases are judged as the oracle does, after each of their steps.
func TestCases(t *testing.T) { comparison((*nodes).compare).onCases(t) }

func compareAnew(t *testing.T, n *nodes, w *oracle.World) {
	t.Helper()
	anew := newNodes()
	anew.vnids = n.vnids
	for _, p := range w.ClusterPolicies {
		anew.SetClusterPolicy(p)
	}
	for _, p := range w.Policies {
		anew.SetPolicy(p)
	}
	for _, p := range w.Pods {
		anew.SetPod(p)
	}
	for _, ns := range w.Namespaces {
		anew.SetNamespace(ns)
	}
	for name, c := range anew.byName {
		c.drain()
		if diff := c.differs(n.byName[name]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

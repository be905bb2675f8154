package policies

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/oracle"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

var (
	seeds  = flag.Int("seeds", 40, "how many random clusters")                       //nolint:gochecknoglobals // a test binary parses its flags before any test runs
	seed   = flag.Uint64("seed", 0, "the one random cluster to look at again")       //nolint:gochecknoglobals // as above
	sample = flag.Int("sample", 100, "how many questions the switch gets in a step") //nolint:gochecknoglobals // as above
)

// station is one node of a world: an engine, and a switch whose flows the store keeps.
type station struct {
	compiler
	index   int
	written map[pipeline.Owner]bool
	store   *store.Store
	tracer  *ovstest.Tracer
}

func vtep(i int) netip.Addr { return netip.AddrFrom4([4]byte{172, 31, 0, byte(11 + i)}) }

func subnet(i int) netip.Prefix {
	p, _ := oracle.NodeAddr(i).Prefix(23)
	return p
}

// newStation returns the i-th of two nodes, with an empty engine.
func newStation(t *testing.T, i int) *station {
	t.Helper()
	sw := ovstest.Start(t)
	bridge := ovs.NewNative(ovstest.Bridge, sw.RunDir)
	t.Cleanup(bridge.Close)
	if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: ovstest.DatapathType(t), TableNames: pipeline.TableNames()}); err != nil {
		t.Fatal(err)
	}
	s := &station{index: i, store: store.New(bridge), tracer: sw.NewTracer(t), written: map[pipeline.Owner]bool{}}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- s.store.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	s.reset()
	return s
}

// reset forgets the world.
func (s *station) reset() {
	s.compiler = compiler{
		node: pipeline.Node{
			Mode:            config.ModeNetworkPolicy,
			ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
			ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
			Subnets:         []netip.Prefix{subnet(s.index)},
			VXLANPort:       4789,
		},
		engine: policy.New(),
		local:  map[policy.PodKey]map[pipeline.Owner]pipeline.Pod{},
	}
	for i, set := range []map[string]string{{"app": "a"}, {"app": "b"}} {
		s.engine.SetNode(fmt.Sprintf("n%d", i+1), set, oracle.NodeAddr(i))
	}
}

// ofport of a pod follows from its address, whose last byte is unique on a node.
func ofport(addr netip.Addr) int { return 10 + int(addr.As4()[3]) }

// write brings the switch to the state of the engine. Of the rules, what the engine did not mention stays as it is.
func (s *station) write(t *testing.T, anew bool) {
	t.Helper()
	static, err := s.node.Static()
	if err != nil {
		t.Fatal(err)
	}
	peer := pipeline.Peer{VTEP: vtep(1 - s.index), Subnets: []netip.Prefix{subnet(1 - s.index)}}
	wanted := map[pipeline.Owner]pipeline.State{
		{Kind: pipeline.KindNode, Key: "static"}:     static,
		{Kind: pipeline.KindHostSubnet, Key: "peer"}: s.node.Peer(peer),
	}
	for key, pods := range s.local {
		for owner, pod := range pods {
			pod.Policies = s.podPolicies(key)
			wanted[owner] = s.node.Pod(pod)
		}
	}
	for _, piece := range s.engine.Drain() {
		owner, state := s.compile(piece)
		wanted[owner] = state
	}
	for owner := range s.written {
		if _, ok := wanted[owner]; !ok && (anew || owner.Kind == pipeline.KindPod) {
			wanted[owner] = pipeline.State{}
		}
	}
	var changes []store.Change
	for owner, state := range wanted {
		changes = append(changes, store.Change{Owner: owner, State: state})
		s.written[owner] = true
	}
	for _, commit := range s.store.SetAll(changes...) {
		if err := commit.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// allows asks the switch what it would do with the first packet of a connection that starts or ends here.
func (s *station) allows(t *testing.T, conn oracle.Connection, vnids map[string]uint32) bool {
	t.Helper()
	fields := fmt.Sprintf("nw_src=%s,nw_dst=%s", conn.From.Addr, conn.To.Addr)
	switch conn.Protocol {
	case "":
		fields = "icmp," + fields
	default:
		word := strings.ToLower(string(conn.Protocol))
		fields = fmt.Sprintf("%s,%s,%s_dst=%d", word, fields, word, conn.Port)
	}
	from := "in_port=2," // the host: the node itself, or whom it routes for
	switch {
	case conn.From.Pod != nil && s.here(conn.From.Pod):
		from = fmt.Sprintf("in_port=%d,dl_src=%s,", ofport(conn.From.Addr), config.MAC(conn.From.Addr))
	case conn.From.Pod != nil:
		from = fmt.Sprintf("in_port=1,tun_src=%s,tun_id=%d,", vtep(1-s.index), vnids[conn.From.Pod.Namespace])
	case conn.From.Node != "" && !s.is(conn.From.Node):
		from = fmt.Sprintf("in_port=1,tun_src=%s,", vtep(1-s.index))
	}
	return regexp.MustCompile(`(?m)^ +(output:|>> output port is |.*-> output port is )[0-9]+`).MatchString(s.tracer.Trace(t, from+fields))
}

func (s *station) is(node string) bool { return node == fmt.Sprintf("n%d", s.index+1) }

func (s *station) here(p *corev1.Pod) bool { return s.is(p.Spec.NodeName) }

// stations are the two nodes of a world, as its watcher.
type stations struct {
	all   [2]*station
	vnids map[string]uint32
	anew  bool // of the former world nothing stays
}

func (n *stations) SetNamespace(ns *corev1.Namespace) {
	n.vnids[ns.Name] = map[string]uint32{"a": 10, "b": 11, "c": 12}[ns.Labels["app"]]
	for _, s := range n.all {
		s.engine.SetNamespace(ns.Name, ns.Labels)
		s.engine.SetVNID(ns.Name, n.vnids[ns.Name])
		for key, pods := range s.local {
			for owner, pod := range pods {
				if key.Namespace == ns.Name {
					pod.VNID = config.VNID(n.vnids[ns.Name])
					pods[owner] = pod
				}
			}
		}
	}
}

func (n *stations) DeleteNamespace(ns *corev1.Namespace) {
	for _, s := range n.all {
		s.engine.DeleteNamespace(ns.Name)
		s.engine.SetVNID(ns.Name, 0)
	}
}

func (n *stations) SetPod(p *corev1.Pod) {
	key := policy.PodKey{Namespace: p.Namespace, Name: p.Name}
	ended := p.Status.Phase != ""
	for _, s := range n.all {
		switch attached := s.local[key] != nil; {
		case s.here(p) && !p.Spec.HostNetwork && !ended && !attached:
			addr := netip.MustParseAddr(p.Status.PodIP)
			s.local[key] = map[pipeline.Owner]pipeline.Pod{{Kind: pipeline.KindPod, Key: key.Namespace + "/" + key.Name}: {
				OFPort: ofport(addr), MAC: config.MAC(addr), Addrs: []netip.Addr{addr}, VNID: config.VNID(n.vnids[p.Namespace]),
			}}
			s.engine.Attach(key, addr)
		case ended && attached:
			s.detach(key)
		}
		s.engine.SetPod(policy.NewPod(p))
	}
}

func (s *station) detach(key policy.PodKey) {
	delete(s.local, key)
	s.engine.Detach(key)
}

func (n *stations) DeletePod(p *corev1.Pod) {
	key := policy.PodKey{Namespace: p.Namespace, Name: p.Name}
	for _, s := range n.all {
		if s.local[key] != nil {
			s.detach(key)
		}
		s.engine.DeletePod(key)
	}
}

func (n *stations) SetPolicy(p *networkingv1.NetworkPolicy) {
	for _, s := range n.all {
		if err := s.engine.SetNetworkPolicy(p); err != nil {
			panic(err)
		}
	}
}

func (n *stations) DeletePolicy(p *networkingv1.NetworkPolicy) {
	for _, s := range n.all {
		s.engine.DeleteNetworkPolicy(p.Namespace, p.Name)
	}
}

func (n *stations) SetClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) {
	for _, s := range n.all {
		if err := s.engine.SetClusterNetworkPolicy(p); err != nil {
			panic(err)
		}
	}
}

func (n *stations) DeleteClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) {
	for _, s := range n.all {
		s.engine.DeleteClusterNetworkPolicy(p.Name)
	}
}

// allows asks the source's node, and the destination's.
func (n *stations) allows(t *testing.T, conn oracle.Connection) bool {
	t.Helper()
	for _, s := range n.all {
		if concerned := conn.From.Pod != nil && s.here(conn.From.Pod) || conn.To.Pod != nil && s.here(conn.To.Pod); concerned && !s.allows(t, conn, n.vnids) {
			return false
		}
	}
	return true
}

// questions are all that can be asked about a world. A pod's own connections to itself never reach the switch.
func questions(w *oracle.World) []oracle.Connection {
	var all []oracle.Connection
	ends := w.Endpoints()
	for _, from := range ends {
		for _, to := range ends {
			if from.Pod == nil && to.Pod == nil || from.Pod != nil && from.Pod == to.Pod {
				continue
			}
			for _, protocol := range oracle.Protocols() {
				for _, port := range oracle.Ports() {
					all = append(all, oracle.Connection{From: from, To: to, Protocol: protocol, Port: port})
				}
			}
		}
	}
	return all
}

func (n *stations) compare(t *testing.T, when string, w *oracle.World, questions []oracle.Connection) {
	t.Helper()
	for _, s := range n.all {
		s.write(t, n.anew)
	}
	n.anew = false
	for _, conn := range questions {
		if got, want := n.allows(t, conn), w.Judge(conn); got != want.Allowed {
			t.Fatalf("%s: %s to %s, %s %d: the switch allows it: %v, want %v: %s", when, end(conn.From), end(conn.To),
				conn.Protocol, conn.Port, got, want.Allowed, want.Why)
		}
	}
}

func end(e oracle.Endpoint) string {
	if e.Pod != nil {
		return fmt.Sprintf("pod %s/%s (%s) on %s", e.Pod.Namespace, e.Pod.Name, e.Addr, e.Pod.Spec.NodeName)
	}
	return e.Node + " " + e.Addr.String()
}

func newStations(t *testing.T) *stations {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	return &stations{all: [2]*station{newStation(t, 0), newStation(t, 1)}, vnids: map[string]uint32{}}
}

func (n *stations) reset() {
	clear(n.vnids)
	n.anew = true
	for _, s := range n.all {
		s.reset()
	}
}

// What the switch does with packets in random clusters is what the oracle says, after every one of fifty changes.
func TestSwitchAgreesWithTheOracle(t *testing.T) {
	n := newStations(t)
	from, to := uint64(1), uint64(*seeds) //nolint:gosec // a flag of ours
	if *seed != 0 {
		from, to = *seed, *seed
	}
	for s := from; s <= to; s++ {
		t.Run(fmt.Sprintf("seed %d", s), func(t *testing.T) {
			n.reset()
			r := rand.New(rand.NewPCG(s, 1)) //nolint:gosec // to be repeatable
			ask := func(w *oracle.World, count int) []oracle.Connection {
				all := questions(w)
				r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				return all[:min(count, len(all))]
			}
			w := oracle.NewWorld(s, n)
			n.compare(t, "at first", w, ask(w, *sample))
			for i := range 50 {
				what := w.Step(n)
				n.compare(t, fmt.Sprintf("step %d, %s", i, what), w, ask(w, *sample/10))
			}
			n.compare(t, "in the end", w, ask(w, 10**sample))
		})
	}
}

// All of cyclonus' cases, on a switch.
func TestSwitchAgreesOnCases(t *testing.T) {
	n := newStations(t)
	for _, c := range oracle.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			n.reset()
			r := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // to be repeatable
			c.Play(n, func(step int, w *oracle.World) {
				all := questions(w)
				r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				n.compare(t, fmt.Sprintf("step %d", step), w, all[:min(*sample, len(all))])
			})
		})
	}
}

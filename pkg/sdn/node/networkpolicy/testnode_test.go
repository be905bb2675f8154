package networkpolicy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressip"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/testcluster"
)

// testNode is a node of a world: an engine, and a switch whose flows the store installs.
type testNode struct {
	*Compiler
	index   int
	sw      *ovstest.Switch
	written map[pipeline.Owner]bool
	store   *flowstore.Store
	tracer  *ovstest.Tracer
	bridge  *native.Native
	parser  *ovs.TraceParser

	firewalls map[string]pipeline.EgressFirewall // by namespace
	egressIPs *egressip.Table
}

func subnet(i int) netip.Prefix {
	p, _ := testcluster.NodeAddr(i).Prefix(23)
	return p
}

// newTestNode returns the i-th of two nodes.
func newTestNode(t *testing.T, i int) *testNode {
	t.Helper()
	sw := ovstest.Start(t)
	bridge := native.New(ovstest.Bridge, sw.RunDir)
	t.Cleanup(bridge.Close)
	if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: ovstest.DatapathType(t), TableNames: pipeline.TableNames()}); err != nil {
		t.Fatal(err)
	}
	s := &testNode{index: i, sw: sw, store: flowstore.New(bridge), tracer: sw.NewTracer(t), bridge: bridge, parser: ovs.NewTraceParser(pipeline.TableNames()), written: map[pipeline.Owner]bool{}}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- s.store.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	return s
}

// reset begins an empty world. It sets the addresses of the node.
func (s *testNode) reset(node pipeline.Node) {
	node.ClusterNetworks = []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")}
	node.ServiceNetwork = netip.MustParsePrefix("172.30.0.0/16")
	node.Subnets = []netip.Prefix{subnet(s.index)}
	node.VTEP = testcluster.NodeIP(s.index)
	node.VXLANPort = 4789
	s.firewalls, s.egressIPs = nil, egressip.New(nil)
	s.Compiler = NewCompiler(node, policy.New(testcluster.HostNetwork()...))
	for i, set := range []map[string]string{{"app": "a"}, {"app": "b"}} {
		name := fmt.Sprintf("n%d", i+1)
		s.engine.SetNode(name, set, testcluster.NodeAddr(i), testcluster.NodeIP(i))
		s.engine.SetNodeNetwork(name, testcluster.NodeIP(i), testcluster.NodeAddr(i))
	}
}

// ofport returns the ofport of a pod, derived from the last byte of its address, which is unique on a node.
func ofport(addr netip.Addr) int { return 10 + int(addr.As4()[3]) }

// write installs the flows of the node, its pods and the changed clauses of the engine. clear removes the flows of all other owners; else only those of pods,
// egress firewalls and egress IPs are removed.
func (s *testNode) write(t *testing.T, clear bool) {
	t.Helper()
	static, err := s.node.Static()
	if err != nil {
		t.Fatal(err)
	}
	peer := pipeline.Peer{VTEP: testcluster.NodeIP(1 - s.index), Subnets: []netip.Prefix{subnet(1 - s.index)}, IsNode: true}
	wanted := map[pipeline.Owner]pipeline.State{
		{Kind: pipeline.KindNode, Key: "static"}:     static,
		{Kind: pipeline.KindHostSubnet, Key: "peer"}: s.node.Peer(peer),
	}
	for key, pods := range s.local {
		for owner, pod := range pods {
			if s.node.Mode != config.ModeSubnet {
				pod.Policies = s.podPolicies(key)
			}
			pod.EgressFirewall = s.firewalls[key.Namespace].ID
			pod.EgressIP = s.egressIP(key.Namespace, pod.Addrs[0])
			wanted[owner] = s.node.Pod(pod)
		}
	}
	for namespace, f := range s.firewalls {
		wanted[pipeline.Owner{Kind: pipeline.KindEgressFirewall, Key: namespace}] = f.Compile(pipeline.EgressVerdicts{}).State()
	}
	for owner, state := range s.egressFlows() {
		wanted[owner] = state
	}
	for _, clause := range s.engine.Drain() {
		if s.node.Mode == config.ModeSubnet {
			continue // the agent does not compile policies
		}
		owner, state := s.Compile(clause)
		wanted[owner] = state
	}
	for owner := range s.written {
		if _, ok := wanted[owner]; !ok && (clear || slices.Contains([]pipeline.Kind{pipeline.KindPod, pipeline.KindEgressFirewall, pipeline.KindEgressIP}, owner.Kind)) {
			wanted[owner] = pipeline.State{}
		}
	}
	var changes []flowstore.Change
	for owner, state := range wanted {
		changes = append(changes, flowstore.Change{Owner: owner, State: state})
		s.written[owner] = true
	}
	for _, commit := range s.store.SetAll(changes...) {
		if err := commit.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// allows traces the first packets of connections that start or end on this node.
func (s *testNode) allows(conns []oracle.Connection, vnids map[string]uint32) ([]bool, error) {
	packets := make([]string, len(conns))
	for i, conn := range conns {
		packets[i] = s.packet(conn, vnids)
	}
	reports, err := s.tracer.Trace(packets...)
	if err != nil {
		return nil, err
	}
	allowed := make([]bool, len(conns))
	for i, report := range reports {
		switch port := sentTo(report); port {
		case 0:
		case s.outputTo(conns[i].To):
			allowed[i] = true
		default:
			return nil, fmt.Errorf("%s goes to port %d:\n%s", packets[i], port, report)
		}
	}
	return allowed, nil
}

// sentTo returns the port to which a trace outputs the packet, by output:2 or output:reg2; 0 if it is dropped.
func sentTo(report string) int {
	for line := range strings.Lines(report) {
		line = strings.TrimSpace(line)
		_, port, byRegister := strings.Cut(line, "-> output port is ")
		if !byRegister {
			port = strings.TrimPrefix(line, "output:")
		}
		if number, err := strconv.Atoi(port); err == nil {
			return number
		}
	}
	return 0
}

// outputTo returns the port to which the switch outputs packets to an endpoint.
func (s *testNode) outputTo(e oracle.Endpoint) int {
	switch {
	case s.isLocal(e.Pod):
		return ofport(e.Addr)
	case e.Pod != nil || e.Addr == testcluster.NodeAddr(1-s.index):
		return pipeline.PortVXLAN
	}
	return pipeline.PortTun // also for the own address of another node, which is outside of the pod network
}

// packet returns the connection's first packet as this switch receives it.
func (s *testNode) packet(conn oracle.Connection, vnids map[string]uint32) string {
	if conn.Hairpin { // returned by the host's proxy
		conn.From = oracle.Endpoint{Addr: testcluster.NodeAddr(s.index)}
	}
	fields := fmt.Sprintf("nw_src=%s,nw_dst=%s", conn.From.Addr, conn.To.Addr)
	switch conn.Protocol {
	case "":
		fields = "icmp," + fields
	default:
		word := strings.ToLower(string(conn.Protocol))
		fields = fmt.Sprintf("%s,%s,%s_dst=%d", word, fields, word, conn.Port)
	}
	switch {
	case conn.Hairpin:
		return fmt.Sprintf("in_port=2,%s,nw_tos=%d", fields, pipeline.HairpinDSCP<<2)
	case conn.From.Pod != nil && s.isLocal(conn.From.Pod):
		return fmt.Sprintf("in_port=%d,dl_src=%s,", ofport(conn.From.Addr), config.MAC(conn.From.Addr)) + fields
	case conn.From.Pod != nil:
		return fmt.Sprintf("in_port=1,tun_src=%s,tun_id=%d,", testcluster.NodeIP(1-s.index), vnids[conn.From.Pod.Namespace]) + fields
	case conn.From.Node != "" && !s.hasName(conn.From.Node):
		return fmt.Sprintf("in_port=1,tun_src=%s,dl_src=%s,", testcluster.NodeIP(1-s.index), config.NodeMAC(testcluster.NodeAddr(1-s.index))) + fields
	case conn.From.Through != "" && !s.hasName(conn.From.Through):
		return fmt.Sprintf("in_port=1,tun_src=%s,dl_src=%s,", testcluster.NodeIP(1-s.index), config.MAC(testcluster.NodeAddr(1-s.index))) + fields
	case conn.From.Through != "":
		return fmt.Sprintf("in_port=2,%s,nw_tos=%d", fields, pipeline.ForwardedDSCP<<2)
	}
	return "in_port=2," + fields // the node itself, or a host for which it routes
}

func (s *testNode) hasName(node string) bool { return node == fmt.Sprintf("n%d", s.index+1) }

func (s *testNode) isLocal(p *corev1.Pod) bool { return p != nil && s.hasName(p.Spec.NodeName) }

func (s *testNode) attach(p *corev1.Pod, vnid uint32) {
	key, addr := policy.KeyOf(p), netip.MustParseAddr(p.Status.PodIP)
	s.AddSandbox(key, pipeline.Owner{Kind: pipeline.KindPod, Key: key.Namespace + "/" + key.Name}, pipeline.Pod{
		OFPort: ofport(addr), MAC: config.MAC(addr), Addrs: []netip.Addr{addr}, VNID: config.VNID(vnid),
	})
	s.engine.Attach(key, addr)
}

func (s *testNode) detach(key policy.PodKey) {
	delete(s.local, key)
	s.engine.Detach(key)
}

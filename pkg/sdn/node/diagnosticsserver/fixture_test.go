package diagnosticsserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/certificates"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/fakeca"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// client sends requests with the certificate of a controller.
type client struct {
	*Handler
	certificate *x509.Certificate
}

func newClient(t testing.TB, change ...func(*Options)) *client {
	t.Helper()
	ca := fakeca.New(t, "diagnostics")
	o := Options{
		NodeName: "node1", Datapath: "netdev", CAs: ca.Pool, Ready: func() error { return nil },
		Version: func(*http.Request) (agent, ovs string) { return "v1.2.3", "3.1.0" },
	}
	for _, f := range change {
		f(&o)
	}
	return &client{New(o), ca.Issue(t, certificates.ControllerName, x509.ExtKeyUsageClientAuth).Leaf}
}

func (c *client) do(ctx context.Context, method, path string) *httptest.ResponseRecorder {
	return c.send(ctx, method, path, nil)
}

func (c *client) send(ctx context.Context, method, path string, body io.Reader) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, method, path, body)
	r.TLS = c.state()
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return w
}

// state is that of a connection with the certificate.
func (c *client) state() *tls.ConnectionState {
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.certificate}}
}

func (c *client) get(t *testing.T, path string, into any) {
	t.Helper()
	w := c.do(t.Context(), http.MethodGet, path)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: got %d: %s", path, w.Code, w.Body)
	}
	if err := json.NewDecoder(w.Body).Decode(into); err != nil {
		t.Fatal(err)
	}
}

func (c *client) flows(t *testing.T, object string) *diagnostics.NodeFlows {
	t.Helper()
	var flows diagnostics.NodeFlows
	c.get(t, diagnostics.FlowsPath+"?object="+object, &flows)
	return &flows
}

// fakePolicies has the rule 77 of policy default/allow, on the node.
type fakePolicies struct{}

func (fakePolicies) RuleIDs(namespace, name string) (ids []uint32, isolates, ok bool) {
	switch namespace + "/" + name {
	case "default/allow":
		return []uint32{77}, true, true
	case "default/deny":
		return nil, true, true
	}
	return nil, false, false
}

func (fakePolicies) RuleNames(ids []uint32) (names []string) {
	for _, id := range ids {
		if id == 77 {
			names = append(names, "default/allow/ingress/0")
		}
		if id == 79 {
			names = append(names, "baseline/ingress/2")
		}
	}
	return names
}

// Isolators returns that pod default/db is isolated for ingress, and pod shop/out for egress.
func (fakePolicies) Isolators(pod netip.Addr, egress bool, _ int) (names []string, more int) {
	switch {
	case pod == netip.MustParseAddr("10.128.0.4") && !egress:
		return []string{"default/allow", "default/deny"}, 3
	case pod == netip.MustParseAddr("10.128.0.5") && egress:
		return []string{"shop/closed"}, 0
	}
	return nil, 0
}

func (fakePolicies) NameOf(addr netip.Addr) (namespace, name string, ok bool) {
	if addr == netip.MustParseAddr("10.129.0.9") {
		return "default", "remote", true
	}
	return "", "", false
}

// node is a node with an Open vSwitch and the flows of some objects.
type node struct {
	*client
	sw      *ovstest.Switch
	store   *flowstore.Store
	bridge  *native.Native
	network *Network
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{client: newClient(t), sw: ovstest.Start(t)}
	n.bridge = native.New(ovstest.Bridge, n.sw.RunDir)
	t.Cleanup(n.bridge.Close)
	if err := n.bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: ovstest.DatapathNetdev, TableNames: pipeline.TableNames()}); err != nil {
		t.Fatal(err)
	}
	n.store = flowstore.New(n.bridge)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() { defer close(ended); _ = n.store.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	n.network = newNetwork(n.store, n.bridge)
	n.install(t)
	n.SetNetwork(n.network)
	return n
}

// webPod is the pod of the tests.
func webPod() sandbox.Pod {
	return sandbox.Pod{
		Attachment: sandbox.Attachment{Sandbox: "0123456789abcdef", IfName: "eth0"}, Namespace: "default", Name: "web", UID: "u1",
		Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")}, OFPort: 3,
	}
}

func newNetwork(st *flowstore.Store, sw Switch) *Network {
	return &Network{
		Mode:       config.ModeNetworkPolicy,
		HostSubnet: &config.HostSubnet{HostIP: netip.MustParseAddr("192.0.2.1"), Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")}},
		Store:      st, Switch: sw, SwitchHealthy: func() error { return nil }, Policies: fakePolicies{},
		Pods: func() []sandbox.Pod { return []sandbox.Pod{webPod()} }, Addrs: func() ipam.Usage { return ipam.Usage{Total: 509, Free: 508} },
		Drops: func() []diagnostics.NodeDrop {
			return []diagnostics.NodeDrop{{Table: "isolation", Reason: "isolation", Packets: 7}}
		},
		Peers: func(int) (problems []diagnostics.PeerProblem, nodes, answering int) {
			return []diagnostics.PeerProblem{{Node: "node2", Problem: "no answer"}}, 4, 3
		},
		EgressIPsNotPlaced: func() []diagnostics.EgressIPNotPlaced {
			return []diagnostics.EgressIPNotPlaced{{IP: "198.51.100.9", Problem: "no network"}}
		},
		HasEgressPolicy: func(namespace, name string) bool { return namespace == "default" && name == "limits" },
	}
}

// install installs flows of all kinds: with groups, meters, conjunctions of several owners, conntrack and learn.
func (n *node) install(t *testing.T) {
	t.Helper()
	p := pipeline.Node{
		Mode: config.ModeNetworkPolicy, ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")}, ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"),
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")}, VTEP: netip.MustParseAddr("192.0.2.1"), VXLANPort: config.DefaultVXLANPort, BalancesServices: true,
	}
	static, err := p.Static()
	if err != nil {
		t.Fatal(err)
	}
	compiled := pipeline.Pod{
		OFPort: webPod().OFPort, MAC: net.HardwareAddr{0x0a, 0x58, 10, 128, 0, 5}, Addrs: webPod().Addrs, VNID: 17,
		Policies: pipeline.PodPolicies{Evaluated: true, Ingress: true, Logged: true}, Bandwidth: config.Bandwidth{Egress: 10_000_000, Ingress: 20_000_000},
	}
	part := func(k uint8) []pipeline.RulePart {
		return []pipeline.RulePart{{Level: 100, Shares: []pipeline.RuleShare{{ID: 77, K: k, N: 2}}}}
	}
	other := []pipeline.RulePart{{Level: 100, Shares: []pipeline.RuleShare{{ID: 78, K: 2, N: 2}}}}
	service := pipeline.BalancedService{VNID: 17, Frontends: []pipeline.Frontend{
		{Addr: netip.MustParseAddr("172.30.0.10"), Protocol: goovs.ProtocolTCPv4, Port: 80, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.128.0.5:8080")}},
		{Addr: netip.MustParseAddr("172.30.0.11"), Protocol: goovs.ProtocolUDPv4, Port: 53, Affinity: 100, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.129.0.7:53")}},
	}}
	peer := netip.MustParsePrefix("10.129.0.9/32")
	commits := n.store.Update(flowstore.Update{
		Publish: []flowstore.Published{{Input: inputs.VNID("default"), Value: config.VNID(17)}},
		Changes: []flowstore.Change{
			{Owner: pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}, State: static},
			{Owner: webPod().Owner(), State: p.Pod(compiled)},
			{Owner: pipeline.Owner{Kind: pipeline.KindService, Key: "default/web"}, State: p.BalancedService(service)},
			{Owner: pipeline.Owner{Kind: pipeline.KindHostSubnet, Key: "node2"}, State: p.Peer(pipeline.Peer{
				VTEP: netip.MustParseAddr("192.0.2.2"), Subnets: []netip.Prefix{netip.MustParsePrefix("10.129.0.0/23")}, IsNode: true})},
			{Owner: pipeline.Owner{Kind: pipeline.KindNodeAddresses, Key: "node2"}, State: p.NodeAddresses(false, []netip.Addr{netip.MustParseAddr("198.51.100.2")})},
			{Owner: pipeline.Owner{Kind: pipeline.KindMulticast, Key: "vnid/17"}, State: p.Multicast(pipeline.Multicast{VNID: 17, OFPorts: []int{3}})},
			{Owner: pipeline.Owner{Kind: pipeline.KindPolicy, Key: "target default/web/u1"}, State: p.PolicyTarget(compiled, part(1))},
			{Owner: pipeline.Owner{Kind: pipeline.KindPolicy, Key: "peer 10.129.0.9/32"}, State: p.PolicyPeer(peer, part(2))},
			{Owner: pipeline.Owner{Kind: pipeline.KindPolicy, Key: "the same key as that of another clause"}, State: p.PolicyPeer(peer, other)},
			{Owner: pipeline.Owner{Kind: pipeline.KindPolicy, Key: "rule 77"}, State: p.PolicyOutcome(77, pipeline.RulePart{Level: 100}, pipeline.PolicyAllow)},
		},
	})
	if err := flowstore.WaitAll(t.Context(), commits); err != nil {
		t.Fatal(err)
	}
}

package diagnosticsserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"golang.org/x/time/rate"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// traceNode is a node with an Open vSwitch that has ports, for traces.
type traceNode struct {
	*client
	sw      *ovstest.Switch
	bridge  *native.Native
	store   *flowstore.Store
	network *Network
}

// tracePods are the pods of the node, by port. The last byte of a pod's address is its port's number.
func tracePods() []sandbox.Pod {
	var pods []sandbox.Pod
	for i, name := range []string{"default/web", "default/db", "shop/out", "shop/cart", "eip/here", "eip/there", "eip/nowhere"} {
		port := i + 3
		namespace, name, _ := strings.Cut(name, "/")
		pods = append(pods, sandbox.Pod{
			Attachment: sandbox.Attachment{Sandbox: fmt.Sprintf("%064d", port), IfName: "eth0"}, Namespace: namespace, Name: name, UID: name,
			Addrs: []netip.Addr{addr(fmt.Sprintf("10.128.0.%d", port))}, OFPort: port,
		})
	}
	return pods
}

func addr(text string) netip.Addr         { return netip.MustParseAddr(text) }
func prefix(text string) []netip.Prefix   { return []netip.Prefix{netip.MustParsePrefix(text)} }
func endpoint(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

func traceNodeFlows(mode config.Mode, balances bool) pipeline.Node {
	return pipeline.Node{
		Mode: mode, ClusterNetworks: prefix("10.128.0.0/14"), ServiceNetwork: prefix("172.30.0.0/16")[0], Subnets: prefix("10.128.0.0/23"),
		VTEP: addr("192.0.2.1"), VXLANPort: config.DefaultVXLANPort, BalancesServices: balances,
	}
}

func newTraceNode(t testing.TB) *traceNode {
	t.Helper()
	n := &traceNode{client: newClient(t), sw: ovstest.Start(t)}
	n.limiter = rate.NewLimiter(rate.Inf, 0)
	n.bridge = native.New(ovstest.Bridge, n.sw.RunDir)
	t.Cleanup(n.bridge.Close)
	if err := n.bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: ovstest.DatapathNetdev, TableNames: pipeline.TableNames()}); err != nil {
		t.Fatal(err)
	}
	n.addPorts(t)
	n.store = flowstore.New(n.bridge)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() { defer close(ended); _ = n.store.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	return n
}

// addPorts adds the ports of br0, and the underlay, without which the userspace datapath outputs nothing to the tunnel.
func (n *traceNode) addPorts(t testing.TB) {
	t.Helper()
	args := []string{"add-br", "br-ex", "--", "set", "bridge", "br-ex", "datapath_type=netdev"}
	add := func(name, kind string, port int, options ...string) {
		args = append(args, "--", "add-port", ovstest.Bridge, name, "--", "set", "interface", name, "type="+kind, fmt.Sprintf("ofport_request=%d", port))
		args = append(args, options...)
	}
	add("vxlan0", "vxlan", pipeline.PortVXLAN, "options:remote_ip=flow", "options:key=flow")
	add("tun0", "internal", pipeline.PortTun)
	for _, p := range tracePods() {
		add(fmt.Sprintf("pod%d", p.OFPort), "internal", p.OFPort)
	}
	n.sw.VSCtl(t, args...)
	err := n.sw.NS.Do(func(ns.NetNS) error {
		return exec.CommandContext(t.Context(), "sh", "-ec", "ip link set br-ex up; ip addr add 192.0.2.1/24 dev br-ex").Run()
	})
	if err != nil {
		t.Fatal(err)
	}
	peer := addr("192.0.2.2")
	await.OK(t, await.SyncTime, func(ctx context.Context) error { // vswitchd reads the routes asynchronously
		_, err := n.bridge.TunnelHop(ctx, peer)
		return err
	})
	if err := n.bridge.SetTunnelNeighbour(t.Context(), ovs.TunnelNeighbour{Bridge: "br-ex", Addr: peer, MAC: config.MAC(peer)}); err != nil {
		t.Fatal(err)
	}
}

// setMode installs the flows of a mode.
func (n *traceNode) setMode(t testing.TB, mode config.Mode, balances bool) {
	t.Helper()
	p := traceNodeFlows(mode, balances)
	n.network = &Network{
		Mode: mode, HostSubnet: &config.HostSubnet{HostIP: p.VTEP, Subnets: p.Subnets}, Store: n.store, Switch: n.bridge, Policies: fakePolicies{}, Node: p, Pods: tracePods,
		HasEgressPolicy: func(string, string) bool { return true }, EgressPolicies: func(string) []string { return []string{"limits"} },
		UnresolvedNames: func(string, int) ([]string, int) { return nil, 0 },
		HostSubnetOf: func(node string) (*config.HostSubnet, bool) {
			return &config.HostSubnet{Node: node, HostIP: addr("192.0.2.2"), Subnets: prefix("10.129.0.0/23")}, node == "node2"
		},
		NodeOf: func(hostIP netip.Addr) (string, bool) { return "node2", hostIP == addr("192.0.2.2") },
	}
	n.SetNetwork(n.network)
	static, err := p.Static()
	if err != nil {
		t.Fatal(err)
	}
	changes := []flowstore.Change{{Owner: staticOwner(), State: static}}
	add := func(k pipeline.Kind, key string, states ...pipeline.State) {
		var all pipeline.State
		for _, s := range states {
			all.Flows, all.Groups, all.Meters = append(all.Flows, s.Flows...), append(all.Groups, s.Groups...), append(all.Meters, s.Meters...)
		}
		changes = append(changes, flowstore.Change{Owner: pipeline.Owner{Kind: k, Key: key}, State: all})
	}
	compiled := tracePodsIn()
	for i, pod := range tracePods() {
		changes = append(changes, flowstore.Change{Owner: pod.Owner(), State: p.Pod(compiled[i])})
	}
	add(pipeline.KindEgressIP, "198.51.100.7", p.EgressIP(pipeline.EgressIP{IP: addr("198.51.100.7")}))
	add(pipeline.KindEgressIP, "198.51.100.8", p.EgressIP(pipeline.EgressIP{IP: addr("198.51.100.8"), VTEP: addr("192.0.2.2")}))
	add(pipeline.KindEgressFirewall, "shop", pipeline.EgressFirewall{ID: 7, Rules: []pipeline.EgressFirewallRule{{To: prefix("203.0.113.0/24"), Deny: true}}}.Compile(pipeline.EgressVerdicts{}).State())
	add(pipeline.KindHostSubnet, "node2", p.Peer(pipeline.Peer{VTEP: addr("192.0.2.2"), Subnets: prefix("10.129.0.0/23"), IsNode: true}))
	add(pipeline.KindService, "default/web", traceService(p)...)
	if balances {
		add(pipeline.KindService, "default/other", p.BalancedService(pipeline.BalancedService{VNID: 17, Frontends: []pipeline.Frontend{
			{Addr: addr("172.30.0.15"), Protocol: goovs.ProtocolTCPv4, Port: 80, Endpoints: []netip.AddrPort{endpoint("10.129.0.6:8080")}},
		}}))
	} else {
		add(pipeline.KindService, "shop/mine", p.Service(pipeline.Service{VNID: 23, ClusterIPs: []netip.Addr{addr("172.30.0.20")}, Ports: []pipeline.ServicePort{
			{Protocol: goovs.ProtocolTCPv4, Port: 80, Outside: pipeline.OutsideEndpoints{Addrs: []netip.AddrPort{endpoint("203.0.113.5:443"), endpoint("203.0.114.5:443")}}},
		}}))
	}
	add(pipeline.KindPolicy, "rules", traceRules(p, compiled[1])...)
	if err := flowstore.WaitAll(t.Context(), n.store.Update(flowstore.Update{Changes: changes})); err != nil {
		t.Fatal(err)
	}
}

func staticOwner() pipeline.Owner { return pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"} }

func tracePodsIn() []pipeline.Pod {
	var all []pipeline.Pod
	for i, pod := range tracePods() {
		all = append(all, pipeline.Pod{OFPort: pod.OFPort, MAC: config.MAC(pod.Addrs[0]), Addrs: pod.Addrs, VNID: []config.VNID{17, 17, 23, 23, 24, 24, 24}[i]})
	}
	all[1].Policies = pipeline.PodPolicies{Evaluated: true, Ingress: true, Logged: true}
	all[2].Policies = pipeline.PodPolicies{Evaluated: true, Egress: true}
	all[3].EgressFirewall = 7
	all[4].EgressIP, all[5].EgressIP, all[6].EgressIP = addr("198.51.100.7"), addr("198.51.100.8"), addr("198.51.100.9")
	return all
}

func traceService(p pipeline.Node) []pipeline.State {
	here, there := endpoint("10.128.0.3:8080"), endpoint("10.129.0.7:8080")
	tcp := goovs.ProtocolTCPv4
	if !p.BalancesServices {
		outside := pipeline.OutsideEndpoints{Addrs: []netip.AddrPort{endpoint("198.51.100.5:443"), endpoint("203.0.113.5:443")}}
		var many pipeline.OutsideEndpoints
		for i := range 60 {
			many.Addrs = append(many.Addrs, netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(100 + i)}), 443))
		}
		return []pipeline.State{p.Service(pipeline.Service{VNID: 17, ClusterIPs: []netip.Addr{addr("172.30.0.10")}, Ports: []pipeline.ServicePort{
			{Protocol: tcp, Port: 80}, {Protocol: tcp, Port: 443, Outside: outside}, {Protocol: tcp, Port: 8443, Outside: many},
		}})}
	}
	return []pipeline.State{p.BalancedService(pipeline.BalancedService{VNID: 17, Frontends: []pipeline.Frontend{
		{Addr: addr("172.30.0.10"), Protocol: tcp, Port: 80, Endpoints: []netip.AddrPort{here, there}},
		{Kind: pipeline.FromOutside, Addr: addr("172.30.0.10"), Protocol: tcp, Port: 80, Endpoints: []netip.AddrPort{here, there}},
		{Addr: addr("172.30.0.11"), Protocol: tcp, Port: 80, Endpoints: []netip.AddrPort{here, there}, Affinity: 100},
		{Addr: addr("172.30.0.12"), Protocol: tcp, Port: 80},
		{Addr: addr("172.30.0.13"), Protocol: tcp, Port: 80, Endpoints: []netip.AddrPort{endpoint("10.129.0.5:8080")}},
		{Addr: addr("172.30.0.14"), Protocol: tcp, Port: 80, Endpoints: manyEndpoints()},
	}})}
}

// manyEndpoints are as many as a service has at most.
func manyEndpoints() []netip.AddrPort {
	var all []netip.AddrPort
	for i := range pipeline.MaxEndpoints {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 129, 1, byte(i)}), 8080))
	}
	return all
}

// traceRules are rule 77, by which pods web and 10.129.0.7 reach db, and rule 79 of a ClusterNetworkPolicy, by which 10.129.0.9 and db itself do not.
func traceRules(p pipeline.Node, db pipeline.Pod) []pipeline.State {
	if p.Mode == config.ModeSubnet {
		return nil
	}
	part := func(id uint32, k uint8) []pipeline.RulePart {
		return []pipeline.RulePart{{Level: 26000, Shares: []pipeline.RuleShare{{ID: id, K: k, N: 2}}}}
	}
	admin := func(id uint32, k uint8) []pipeline.RulePart {
		return []pipeline.RulePart{{Level: 50000, Admin: true, Shares: []pipeline.RuleShare{{ID: id, K: k, N: 2}}}}
	}
	return []pipeline.State{
		p.PolicyTarget(db, part(77, 1)), p.PolicyPeer(prefix("10.128.0.3/32")[0], part(77, 2)), p.PolicyPeer(prefix("10.129.0.7/32")[0], part(77, 2)),
		p.PolicyOutcome(77, pipeline.RulePart{Level: 26000}, pipeline.PolicyAllow),
		p.PolicyTarget(db, admin(79, 1)), p.PolicyPeer(prefix("10.129.0.9/32")[0], admin(79, 2)), p.PolicyPeer(prefix("10.128.0.4/32")[0], admin(79, 2)),
		p.PolicyOutcome(79, pipeline.RulePart{Level: 50000, Admin: true}, pipeline.PolicyDeny),
	}
}

// request returns the path of a request with the parameters: name=value, separated by spaces.
func request(parameters string) string {
	values := url.Values{}
	for field := range strings.FieldsSeq(parameters) {
		name, value, _ := strings.Cut(field, "=")
		values.Add(name, value)
	}
	return diagnostics.NodeTracePath + "?" + values.Encode()
}

func (n *traceNode) traced(t *testing.T, parameters string) *diagnostics.NodeTrace {
	t.Helper()
	w := n.do(t.Context(), http.MethodGet, request(parameters))
	var got diagnostics.NodeTrace
	if err := json.Unmarshal(w.Body.Bytes(), &got); w.Code != http.StatusOK || err != nil {
		t.Fatalf("%s: got %d: %s", parameters, w.Code, w.Body)
	}
	return &got
}

package datapath_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	sdn "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// product is a cluster whose nodes have the flows and the firewall that the agent installs.
type product struct {
	*datapath.Network
	mode      config.Mode
	hostPorts func() []hostnet.HostPort // nil: none
}

// The pods of the second node: a tenant's that only nodes may reach, and one of VNID 0 without policies. Each has a node port. The
// first node has another pod of that tenant.
const (
	isolatedPort = 30053
	freePort     = 30054
	podPort      = 53
)

func (p *product) isolated() *datapath.Pod { return p.Nodes[1].Pods[0] }
func (p *product) free() *datapath.Pod     { return p.Nodes[1].Pods[1] }

// compiler compiles the node's flows for a mode.
func (p *product) compiler(node *datapath.Node) sdn.Node {
	userspace := p.Type == ovstest.DatapathNetdev
	return sdn.Node{
		Mode:            p.mode,
		ClusterNetworks: []netip.Prefix{netip.MustParsePrefix(datapath.ClusterNetwork)},
		ServiceNetwork:  netip.MustParsePrefix(datapath.ServiceNetwork),
		Subnets:         []netip.Prefix{node.Subnet},
		VTEP:            node.VTEP,
		VXLANPort:       config.DefaultVXLANPort,
		Userspace:       userspace,
	}
}

// apply installs the node's flows for a mode.
func (p *product) apply(t *testing.T, node *datapath.Node) {
	t.Helper()
	n := p.compiler(node)
	var states []sdn.State
	var rules []string
	for _, pod := range node.Pods {
		compiled := sdn.Pod{OFPort: pod.OFPort, MAC: pod.MAC, Addrs: []netip.Addr{pod.Addr}}
		if pod != p.free() {
			compiled.VNID = 0x20
		}
		if pod == p.isolated() {
			compiled.Policies = sdn.PodPolicies{Evaluated: true, Ingress: true}
			rules = append(rules, fmt.Sprintf("table=81,priority=26026,ip,reg2=%d,reg4=0x400/0x400,actions=goto_table:82", pod.OFPort))
		}
		states = append(states, n.Pod(compiled))
	}
	p.install(t, node, states, rules)
}

// install installs the node's static flows, those of its peers, and others.
func (p *product) install(t *testing.T, node *datapath.Node, states []sdn.State, rules []string) {
	t.Helper()
	n := p.compiler(node)
	static, err := n.Static()
	if err != nil {
		t.Fatal(err)
	}
	states = append(states, static)
	for _, peer := range p.Nodes {
		if peer != node {
			states = append(states, n.Peer(sdn.Peer{VTEP: peer.VTEP, Subnets: []netip.Prefix{peer.Subnet}, IsNode: true}))
		}
	}
	node.Switch.OFCtl(t, "set-frags", ovstest.Bridge, "nx-match") // as the agent does
	node.SetFlows(t, strings.Join(rules, "\n")+"\n"+stateText(t, states...))
}

// serve makes the host a node with a firewall and node ports, as the agent and kube-proxy do.
func (p *product) serve(t *testing.T, node *datapath.Node) {
	t.Helper()
	p.protect(t, node)
	nodePort(t, node, "udp", isolatedPort, p.isolated())
	nodePort(t, node, "udp", freePort, p.free())
}

// protect gives the host the agent's firewall.
func (p *product) protect(t *testing.T, node *datapath.Node) {
	t.Helper()
	inSubnet := p.hostPorts != nil && p.mode == config.ModeSubnet // other tests call it for several modes, without subnet
	err := node.NS.Do(func(ns.NetNS) error {
		f, err := hostnet.NewFirewall(t.Context(), hostnet.FirewallConfig{
			ClusterNetworks:  []netip.Prefix{netip.MustParsePrefix(datapath.ClusterNetwork)},
			Subnets:          []netip.Prefix{node.Subnet},
			IPMasq:           true,
			ServiceNetwork:   netip.MustParsePrefix(datapath.ServiceNetwork),
			VXLANPort:        config.DefaultVXLANPort,
			PodDevices:       sandbox.HostVethPattern(p.Type),
			SourcesEvaluated: !inSubnet, RoutedDSCP: sdn.RoutedDSCP, ForwardedDSCP: sdn.ForwardedDSCP, HairpinDSCP: sdn.HairpinDSCP,
			MasqueradeServices: inSubnet,
			HostPorts:          p.hostPorts, MasqueradeHostPorts: p.mode == config.ModeMultitenant,
		})
		if err != nil {
			return err
		}
		_, err = f.Sync(t.Context())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// nodePort makes the host's proxy translate a node port to a pod. Only connections from elsewhere are masqueraded: kube-proxy does not change the
// source of packets from pods of this node.
func nodePort(t *testing.T, node *datapath.Node, protocol string, port uint16, pod *datapath.Pod) {
	t.Helper()
	node.Sh(t, fmt.Sprintf("iptables -t nat -A PREROUTING -d %s -p %s --dport %d -j DNAT --to-destination %s:%d", node.VTEP, protocol, port, pod.Addr, podPort),
		fmt.Sprintf("iptables -t nat -I POSTROUTING -s 192.0.2.0/24 -d %s -p %s --dport %d -m conntrack --ctstate DNAT -j MASQUERADE", pod.Addr, protocol, podPort))
}

// TestNodeSource: of the packets that a pod receives from other nodes, only those of the nodes themselves count as a node's.
func TestNodeSource(t *testing.T) {
	tier.Parallel(t)
	p := &product{Network: datapath.New(t, 3)}
	for i, count := range []int{1, 2, 0} {
		for range count {
			p.Nodes[i].AddPod(t)
		}
	}
	for _, node := range p.Nodes {
		p.serve(t, node)
	}
	// A host outside that routes to the pods of the second node through the first.
	p.Outside.Sh(t, fmt.Sprintf("ip route add %s via %s", p.Nodes[1].Subnet, p.Nodes[0].VTEP))
	for _, mode := range []config.Mode{config.ModeMultitenant, config.ModeNetworkPolicy} {
		p.mode = mode
		for _, node := range p.Nodes {
			p.apply(t, node)
		}
		t.Run(mode.String(), p.test)
	}
}

func (p *product) test(t *testing.T) {
	isolated, free := p.isolated().UDP(t, podPort), p.free().UDP(t, podPort)
	defer isolated.Close()
	defer free.Close()
	outside, pod := p.Outside.UDP(t, 0), p.Nodes[0].Pods[0].UDP(t, 0)
	for i, node := range p.Nodes {
		t.Run(fmt.Sprintf("node %d", i), func(t *testing.T) {
			itself, ownIP := node.UDP(t, 0), (&datapath.Host{NS: node.NS, Addr: node.VTEP}).UDP(t, 0)
			itself.MustReach(t, isolated.Addr(), isolated)
			isolated.MustReach(t, itself.Addr(), itself)
			if from := ownIP.MustReach(t, isolated.Addr(), isolated); from.Addr() != node.VTEP {
				t.Errorf("the pod sees %s, want %s", from, node.VTEP)
			}
			itself.MustReach(t, free.Addr(), free)
			for name, client := range map[string]*datapath.Socket{"a host outside": outside, "a pod": pod} {
				t.Log(name + " through the node's ports")
				nodePort := netip.AddrPortFrom(node.VTEP, freePort)
				from := client.MustReach(t, nodePort, free)
				if from := free.MustReach(t, from, client); from != nodePort {
					t.Errorf("%s is answered by %s, want %s", name, from, nodePort)
				}
				client.MustNotReach(t, netip.AddrPortFrom(node.VTEP, isolatedPort), isolated)
			}
		})
	}
	outside.MustReach(t, free.Addr(), free)
	outside.MustNotReach(t, isolated.Addr(), isolated)
	pod.MustReach(t, free.Addr(), free)
	pod.MustNotReach(t, isolated.Addr(), isolated)
	// Hosts are not reached through other nodes' tunnels.
	p.Outside.Sh(t, fmt.Sprintf("ip route get %s | grep -q %s", p.Nodes[1].Addr, p.Nodes[0].VTEP))
	outside.MustNotReach(t, netip.AddrPortFrom(p.Nodes[1].Addr, podPort), p.Nodes[1].UDP(t, podPort))
	free.Close()
	t.Run("a stolen node", p.testStolenNode)
}

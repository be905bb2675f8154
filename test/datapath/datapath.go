// Package datapath builds the smallest real data path for a test with packets: nodes with an Open vSwitch each, joined
// by VXLAN, pods on them, and one host outside. There is no Kubernetes and no agent: a test gives each node its flows.
//
// Every node, pod and host is a network namespace. All ends with the test.
//
//	pod 10.128.N.P ── br0 ── vxlan0 ── underlay 192.0.2.0/24 ── other nodes
//	                   └──── tun0 10.128.N.1, the node itself      └── outside 192.0.2.100
package datapath

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/test/ovstest"
)

// The addresses of every network.
const (
	ClusterNetwork = "10.128.0.0/14"
	ServiceNetwork = "172.30.0.0/16"
	underlayPrefix = 24
)

// The ports with a fixed OpenFlow number; pods come after them.
const (
	PortVXLAN = 1
	PortTun   = 2
	portPods  = 3
)

// MTUs in bytes: VXLAN over IPv4 takes 50.
const (
	underlayMTU = 1500
	podMTU      = underlayMTU - 50
)

// Network is the nodes and what they are joined by.
type Network struct {
	Type    string // ovstest.DatapathType
	Nodes   []*Node
	Outside *Host // knows no route to the pods until RouteTo

	underlay *Host
}

// Node is a node; as a host it is tun0's address.
type Node struct {
	Host
	Switch *ovstest.Switch
	VTEP   netip.Addr
	Subnet netip.Prefix
	Pods   []*Pod

	network *Network
	meters  map[string]bool // that are set, by their text
}

// Pod is a pod on a node.
type Pod struct {
	Host
	MAC    net.HardwareAddr
	OFPort int
}

// New builds a network with the number of nodes. Their bridges drop everything until SetFlows. It skips the test without root.
func New(t testing.TB, nodes int) *Network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	n := &Network{Type: ovstest.DatapathType(t)}
	n.underlay = newHost(t, netip.Addr{})
	n.underlay.Sh(t, "ip link add bridge type bridge", "ip link set bridge up")
	n.Outside = newHost(t, netip.MustParseAddr("192.0.2.100"))
	n.join(t, n.Outside, "outside")
	n.Outside.Sh(t, fmt.Sprintf("ip addr add %s/%d dev eth0", n.Outside.Addr, underlayPrefix))
	for i := 1; i <= nodes; i++ {
		n.Nodes = append(n.Nodes, n.addNode(t, i))
	}
	return n
}

// join plugs the host's eth0 into the underlay.
func (n *Network) join(t testing.TB, h *Host, name string) {
	t.Helper()
	h.veth(t, "eth0", n.underlay, name, underlayMTU)
	n.underlay.Sh(t, fmt.Sprintf("ip link set %s master bridge up", name))
	h.Sh(t, "ip link set eth0 up")
	if n.Type == ovstest.DatapathNetdev {
		// OVS's own datapath takes checksums as it finds them.
		h.Sh(t, "ethtool -K eth0 tx off")
	}
}

func (n *Network) addNode(t testing.TB, i int) *Node {
	t.Helper()
	node := &Node{
		network: n,
		meters:  map[string]bool{},
		Switch:  ovstest.Start(t),
		VTEP:    netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}),
		Subnet:  netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128, byte(i), 0}), 24),
	}
	node.Host = Host{NS: node.Switch.NS, Addr: node.Subnet.Addr().Next()}
	node.Sh(t, "ip link set lo up", "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 "+
		"net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.default.send_redirects=0",
		// As on a node with a firewall, the host tracks connections, in its own zone.
		"nft add table ip track", "nft add chain ip track in '{ type filter hook input priority filter; }'", "nft add rule ip track in ct state new counter")
	n.join(t, &node.Host, fmt.Sprintf("node%d", i))
	// SetFlows waits for a round of revalidation, of which there are two a second by default.
	node.Switch.VSCtl(t, "set", "open_vswitch", ".", "other_config:max-revalidator=100")
	uplink := "eth0"
	if n.Type == ovstest.DatapathNetdev {
		// A tunnel of OVS's own datapath leaves only by a bridge of that datapath, which must own the address.
		uplink = "br-ex"
		node.Sh(t, fmt.Sprintf("ip link set eth0 address %s", MAC(node.VTEP)))
		node.Switch.VSCtl(t, "add-br", uplink, "--", "set", "bridge", uplink, "datapath_type=netdev",
			fmt.Sprintf("other-config:hwaddr=%q", MAC(node.VTEP)), "--", "add-port", uplink, "eth0")
	}
	node.Sh(t, fmt.Sprintf("ip addr add %s/%d dev %s", node.VTEP, underlayPrefix, uplink), "ip link set "+uplink+" up")
	node.Switch.VSCtl(t, "add-br", ovstest.Bridge,
		"--", "set", "bridge", ovstest.Bridge, "datapath_type="+n.Type, "fail_mode=secure", "protocols=[]",
		"--", "add-port", ovstest.Bridge, "vxlan0", "--", "set", "interface", "vxlan0", "type=vxlan",
		"options:remote_ip=flow", "options:key=flow", fmt.Sprintf("ofport_request=%d", PortVXLAN),
		"--", "add-port", ovstest.Bridge, "tun0", "--", "set", "interface", "tun0", "type=internal",
		fmt.Sprintf("mtu_request=%d", podMTU), fmt.Sprintf("ofport_request=%d", PortTun))
	node.Sh(t, fmt.Sprintf("ip link set tun0 mtu %d address %s up", podMTU, MAC(node.Addr)),
		fmt.Sprintf("ip addr add %s/%d dev tun0", node.Addr, node.Subnet.Bits()),
		"ip route add "+ClusterNetwork+" dev tun0", "ip route add "+ServiceNetwork+" dev tun0",
		"sysctl -qw net.ipv4.conf.tun0.arp_announce=2") // as the agent does: the bridge drops ARP of other senders
	return node
}

// MAC is the hardware address of an interface with the address.
func MAC(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return append(net.HardwareAddr{0x0a, 0x58}, b[:]...)
}

// AddPod adds a pod to the node. Pods are numbered from 2: addresses 10.128.N.2, …, and OpenFlow ports 3, ….
func (n *Node) AddPod(t testing.TB) *Pod {
	t.Helper()
	i := len(n.Pods)
	addr := n.Addr
	for range i + 1 {
		addr = addr.Next()
	}
	p := &Pod{Host: *newHost(t, addr), MAC: MAC(addr), OFPort: portPods + i}
	name := fmt.Sprintf("veth%d", p.OFPort)
	p.veth(t, "eth0", &n.Host, name, podMTU)
	p.Sh(t, fmt.Sprintf("ip link set eth0 address %s up", p.MAC),
		fmt.Sprintf("ip addr add %s/%d dev eth0", addr, n.Subnet.Bits()),
		"ip route add "+ClusterNetwork+" dev eth0", fmt.Sprintf("ip route add default via %s", n.Addr))
	if n.network.Type == ovstest.DatapathNetdev {
		p.Sh(t, "ethtool -K eth0 tx off")
	}
	// As the agent does: the kernel must not answer for tun0's address with a MAC that leads past the bridge.
	n.Sh(t, "ip link set "+name+" up", "sysctl -qw net.ipv4.conf."+name+".arp_ignore=8")
	n.Switch.VSCtl(t, "add-port", ovstest.Bridge, name, "--", "set", "interface", name, fmt.Sprintf("ofport_request=%d", p.OFPort))
	n.Pods = append(n.Pods, p)
	return p
}

// SetFlows makes br0's flows the ones in the text, one a line, in one bundle. Empty lines and those that start with # don't count. Lines that start
// with meter= are meters, which are set before and stay.
func (n *Node) SetFlows(t testing.TB, text string) {
	t.Helper()
	var flows strings.Builder
	for line := range strings.Lines(text) {
		switch line = strings.TrimSpace(line); {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "meter="):
			n.setMeter(t, line)
		default:
			flows.WriteString(line + "\n")
		}
	}
	cmd := n.Switch.Command(t.Context(), "ovs-ofctl", "--timeout=30", "-O", "OpenFlow14", "--bundle", "replace-flows", ovstest.Bridge, "-")
	cmd.Stdin = strings.NewReader(flows.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("replace-flows: %v\n%s\n%s", err, out, flows.String())
	}
	n.Revalidate(t)
}

func (n *Node) setMeter(t testing.TB, meter string) {
	t.Helper()
	command := "add-meter"
	if n.meters[meter] {
		command = "mod-meter"
	}
	n.Switch.OFCtl(t, command, ovstest.Bridge, meter)
	n.meters[meter] = true
}

// Revalidate waits until the datapath's cache has followed the flows. What is waited for is the end of a round of vswitchd's, and the first one
// may have begun before the flows changed.
func (n *Node) Revalidate(t testing.TB) {
	t.Helper()
	for range 2 {
		n.AppCtl(t, "revalidator/wait")
	}
}

// AppCtl runs ovs-appctl at the node's ovs-vswitchd and returns its standard output.
func (n *Node) AppCtl(t testing.TB, args ...string) string {
	t.Helper()
	// Clean-up functions run after the test's context has ended.
	cmd := n.Switch.Command(context.WithoutCancel(t.Context()), "ovs-appctl", append([]string{"--timeout=30", "--target=" + n.Switch.RunDir + "/ovs-vswitchd.ctl"}, args...)...)
	var stderr strings.Builder // has warnings about a machine that did not run
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("ovs-appctl %v: %v\n%s%s", args, err, out, &stderr)
	}
	return string(out)
}

// Connections returns the entries of the connection tracker in a zone, one a line as dpctl/dump-conntrack prints them.
func (n *Node) Connections(t testing.TB, zone uint16) []string {
	t.Helper()
	var all []string
	for line := range strings.Lines(n.AppCtl(t, "dpctl/dump-conntrack", fmt.Sprintf("zone=%d", zone))) {
		all = append(all, strings.TrimSpace(line))
	}
	return all
}

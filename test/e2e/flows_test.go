package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// The layout of OpenShift SDN on a node, and nothing else.
func TestSwitchLayout(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities compares the flows")
	}
	testSwitchLayout(t, newCluster(t))
}

func testSwitchLayout(t *testing.T, c *cluster) {
	// Services of namespaces that are being deleted may still go.
	fixture.EventuallyEqual(t, fixture.PodTime, "the flows of "+fixture.Node1, func(ctx context.Context) (string, error) {
		want := c.expectedFlows(t)
		flows, err := c.DumpFlows(ctx, fixture.Node1, "-O", "OpenFlow13")
		if err != nil {
			return "", err
		}
		got := map[string][]string{}
		for table := range want {
			got[table] = fixture.TableOf(flows, table)
		}
		return cmp.Diff(want, got), nil
	})

	flows := c.Flows(t, fixture.Node1)
	version := fixture.TableOf(flows, "253")
	if len(version) != 1 || !strings.HasPrefix(version[0], " actions=note:00.") {
		t.Errorf("table 253 has %q, want one note that begins with mode subnet's 00", version)
	}
	t.Run("without -O", func(t *testing.T) {
		fixture.Within(t, fixture.SyncTime, "ovs-ofctl dump-flows br0", func(ctx context.Context) error {
			plain, err := c.DumpFlows(ctx, fixture.Node1)
			if err == nil && len(plain) != len(flows) {
				err = fmt.Errorf("it shows %d flows, with -O OpenFlow13 there are %d", len(plain), len(flows))
			}
			return err
		})
	})
	t.Run("names", func(t *testing.T) {
		fixture.Within(t, fixture.SyncTime, "ovs-ofctl --names dump-flows br0", func(ctx context.Context) error {
			named, err := c.DumpFlows(ctx, fixture.Node1, "-O", "OpenFlow13", "--names")
			if err != nil {
				return err
			}
			seen := map[string]bool{}
			for _, f := range named {
				seen[f.Table] = true
			}
			for _, name := range []string{
				"classify", "tunnel-ingress", "pod-ingress", "service-address", "own-node-port", "service-return", "egress-track", "egress-policy", "egress-allowed", "egress-denied", "route", "idled",
				"arp-local", "arp-remote", "arp-answer", "service", "node-port", "endpoint", "endpoint-verdict",
				"affinity", "select", "learn", "translate", "translated", "reject", "service-reply", "output", "local-pod", "isolation", "ingress-policy", "ingress-allowed", "ingress-denied", "icmp-error", "remote", "egress-firewall", "egress-ip", "egress-ip-reply", "egress-ip-output", "multicast-egress", "multicast-nodes", "multicast-pods", "commit", "collision", "outside-reply", "version",
			} {
				if !seen[name] {
					err = fmt.Errorf("no flow is in a table called %q: there are %v", name, seen)
				}
				delete(seen, name)
			}
			if len(seen) > 0 {
				err = fmt.Errorf("there are tables %v beside the known ones", seen)
			}
			return err
		})
	})
}

// expectedFlows follow from the API's objects, by table.
func (c *cluster) expectedFlows(t *testing.T) map[string][]string {
	t.Helper()
	want := map[string][]string{
		"10": {"priority=0 actions=drop"},
		"50": {"priority=0 actions=drop"},
		"60": {"priority=0 actions=drop", "priority=200,ip,reg0=0 actions=output:2"},
		"80": {
			"priority=0 actions=drop",
			"priority=200 actions=goto_table:133",
			fmt.Sprintf("priority=300,ip,nw_src=%s actions=goto_table:133", c.Gateway(t, fixture.Node1)),
		},
		"90": {"priority=0 actions=drop"},
	}
	add := func(table, format string, args ...any) {
		want[table] = append(want[table], fmt.Sprintf(format, args...))
	}
	hostSubnets, err := c.Network.NetworkV1().HostSubnets().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	replicate := "move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],"
	for _, h := range hostSubnets.Items {
		if h.Name == fixture.Node1 {
			continue
		}
		tunnel := "move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],set_field:" + h.HostIP + "->tun_dst,output:1"
		add("10", "priority=110,ip,reg4=0x800/0x800,tun_src=%s actions=goto_table:30", h.HostIP)
		add("10", "priority=100,ip,tun_src=%s,nw_src=%s actions=goto_table:30", h.HostIP, h.Subnet)
		add("10", "priority=100,arp,tun_src=%s,arp_spa=%s actions=goto_table:30", h.HostIP, h.Subnet)
		add("10", "priority=50,tun_src=%s actions=drop", h.HostIP)
		add("50", "priority=100,arp,arp_tpa=%s,arp_op=1 actions=move:NXM_OF_ARP_TPA[]->NXM_NX_REG1[],goto_table:51", h.Subnet)
		add("90", "priority=100,ip,nw_dst=%s actions=%s", h.Subnet, tunnel)
		replicate += "set_field:" + h.HostIP + "->tun_dst,output:1,"
	}
	want["111"] = []string{"priority=0 actions=drop", "priority=100 actions=" + replicate + "goto_table:120"}

	services, err := c.Kube.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const toProxy = "load:0->NXM_NX_REG1[],load:0x2->NXM_NX_REG2[],goto_table:80"
	for _, s := range services.Items {
		for _, p := range s.Spec.Ports {
			add("60", "priority=100,%s,nw_dst=%s,tp_dst=%d actions=%s", strings.ToLower(string(p.Protocol)), s.Spec.ClusterIP, p.Port, toProxy)
		}
		add("60", "priority=100,ip,nw_dst=%s,nw_frag=later actions=%s", s.Spec.ClusterIP, toProxy)
		add("60", "priority=100,ip,nw_dst=%s,nw_frag=first actions=%s", s.Spec.ClusterIP, toProxy)
	}
	for _, flows := range want {
		slices.Sort(flows)
	}
	return want
}

func TestBridgeFacts(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities compares the bridge")
	}
	testBridgeFacts(t, newCluster(t))
}

func testBridgeFacts(t *testing.T, c *cluster) {
	for _, tc := range []struct {
		table, record, column, want string
	}{
		{"Bridge", "br0", "fail_mode", "secure"},
		{"Bridge", "br0", "protocols", "[OpenFlow10, OpenFlow13, OpenFlow14, OpenFlow15]"},
		{"Bridge", "br0", "datapath_type", string(c.Shape().Datapath)},
		{"Interface", "vxlan0", "ofport", "1"},
		{"Interface", "vxlan0", "type", "vxlan"},
		{"Interface", "vxlan0", "options", "{key=flow, remote_ip=flow}"},
		{"Interface", "tun0", "ofport", "2"},
		{"Interface", "tun0", "type", "internal"},
	} {
		got := strings.TrimSpace(c.Output(t, fixture.Node1, "ovs-vsctl", "get", tc.table, tc.record, tc.column))
		if got != tc.want {
			t.Errorf("%s of %s %s is %s, want %s", tc.column, tc.table, tc.record, got, tc.want)
		}
	}
}

func TestHostFacts(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities compares the hosts")
	}
	testHostFacts(t, newCluster(t))
}

func testHostFacts(t *testing.T, c *cluster) {
	for _, node := range []string{fixture.Node1, fixture.Node2} {
		t.Run(node, func(t *testing.T) {
			subnet, gateway := c.Subnet(t, node), c.Gateway(t, node)
			if err := c.Machine(t, node).NetNS.Do(func() error { return checkTun0(subnet, gateway, c.Shape()) }); err != nil {
				t.Error(err)
			}
			for name, want := range map[string]string{
				"net.ipv4.ip_forward":              "1",
				"net.ipv4.conf.tun0.forwarding":    "1",
				"net.ipv4.conf.tun0.rp_filter":     "2",
				"net.ipv4.conf.tun0.arp_announce":  "2",
				"net.ipv4.conf.all.send_redirects": "0",
			} {
				if got := strings.TrimSpace(c.Output(t, node, "sysctl", "-n", name)); got != want {
					t.Errorf("sysctl %s is %s, want %s", name, got, want)
				}
			}
		})
	}
}

// checkTun0 compares tun0 and the routes by it with what OpenShift SDN had.
func checkTun0(subnet netip.Prefix, gateway netip.Addr, shape lab.Shape) error {
	link, err := netlinksafe.LinkByName("tun0")
	if err != nil {
		return err
	}
	addrs, err := netlinksafe.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	routes, err := netlinksafe.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	type tun0 struct {
		MTU       int
		MAC       string
		Up        bool
		Addresses []string
		Routes    []string
	}
	got := tun0{MTU: link.Attrs().MTU, MAC: link.Attrs().HardwareAddr.String(), Up: link.Attrs().Flags&net.FlagUp != 0}
	for _, a := range addrs {
		got.Addresses = append(got.Addresses, a.IPNet.String())
	}
	for _, r := range routes {
		if r.LinkIndex == link.Attrs().Index {
			got.Routes = append(got.Routes, fmt.Sprintf("%s scope %s", r.Dst, r.Scope))
		} else if r.Dst.String() == subnet.String() {
			got.Routes = append(got.Routes, fmt.Sprintf("%s by another interface", r.Dst))
		}
	}
	slices.Sort(got.Routes)
	want := tun0{
		MTU: podMTU, MAC: fixture.MACOf(gateway).String(), Up: true,
		Addresses: []string{netip.PrefixFrom(gateway, subnet.Bits()).String()},
		Routes:    []string{shape.ClusterNetwork.String() + " scope link", shape.ServiceNetwork.String() + " scope universe"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("tun0 (-want +got):\n%s", diff)
	}
	return nil
}

// firewallTime is how soon rules that another program deletes are back, so that pods need not wait for long.
const firewallTime = 5 * time.Second

// The firewall accepts pods' packets, and is restored after a flush.
func TestFirewall(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities flushes and deletes the rules")
	}
	testFirewall(t, newTrio(t), firewallTime)
}

// testFirewall requires that the rules are back within that time.
func testFirewall(t *testing.T, x *trio, within time.Duration) {
	checkFirewall(t, x.cluster, fixture.Node1, within)

	t.Run("flushed", func(t *testing.T) {
		x.Output(t, fixture.Node1, "iptables", "-t", "nat", "-F")
		x.Output(t, fixture.Node1, "iptables", "-F")
		began := time.Now()
		checkFirewall(t, x.cluster, fixture.Node1, within)
		t.Logf("the rules are back after %v", time.Since(began))
		outside := end{Name: "outside", NetNS: x.outside.NetNS, Addr: lab.OutsideAddr()}
		testTCP(t, x.a.End(), outside, x.Addr(t, fixture.Node1))
		x.warned(t, eventreason.FirewallRestored, "OVSDN-")
	})
	t.Run("deleted", func(t *testing.T) {
		x.Output(t, fixture.Node2, "sh", "-c", "iptables-save -t nat | sed /OVSDN/d | iptables-restore -T nat && iptables-save -t filter | sed /OVSDN/d | iptables-restore -T filter")
		checkFirewall(t, x.cluster, fixture.Node2, within)
		fixture.Echoed(t, x.c.NetNS, lab.OutsideAddr(), wire.Echo{})
	})
}

// checkFirewall waits for the rules that OpenShift SDN's users know, in whatever chain they are, as long as packets get there.
func checkFirewall(t *testing.T, c *cluster, node string, within time.Duration) {
	t.Helper()
	cluster := c.Shape().ClusterNetwork.String()
	for _, tc := range []struct {
		table, chain string
		words        []string // in this order, with others between
	}{
		{"nat", "POSTROUTING", []string{"-s", cluster, "!", "-d", cluster, "-j", "MASQUERADE"}},
		{"filter", "INPUT", []string{"-p", "udp", "--dport", "4789", "-j", "ACCEPT"}},
		{"filter", "INPUT", []string{"-i", "tun0", "-j", "ACCEPT"}},
		{"filter", "FORWARD", []string{"-s", cluster, "-j", "ACCEPT"}},
		{"filter", "FORWARD", []string{"-d", cluster, "-j", "ACCEPT"}},
	} {
		fixture.Eventually(t, within, fmt.Sprintf("%s lets pass %q", node, tc.words), func(ctx context.Context) error {
			rules, err := c.TryOutput(ctx, node, "iptables", "-t", tc.table, "-S")
			if err != nil {
				return err
			}
			if !reachable(rules, tc.chain, tc.words) {
				return fmt.Errorf("no such rule is reached from %s of table %s:\n%s", tc.chain, tc.table, rules)
			}
			return nil
		})
	}
}

// reachable reports whether a chain, or one that it jumps to, has a rule with these words in this order.
func reachable(rules, chain string, words []string) bool {
	for line := range strings.Lines(rules) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[0] != "-A" || fields[1] != chain {
			continue
		}
		if inOrder(fields[2:], words) {
			return true
		}
		if target := fields[len(fields)-1]; fields[len(fields)-2] == "-j" && strings.Contains(rules, "-N "+target+"\n") && reachable(rules, target, words) {
			return true
		}
	}
	return false
}

func inOrder(fields, words []string) bool {
	for _, f := range fields {
		if len(words) > 0 && f == words[0] {
			words = words[1:]
		}
	}
	return len(words) == 0
}

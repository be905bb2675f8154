package hostnet

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
)

// notMasqueraded is --ip-masq=false.
func notMasqueraded(c FirewallConfig) FirewallConfig {
	c.IPMasq = false
	return c
}

// excepting is a cluster with NonMasqueradeCIDRs.
func excepting(c FirewallConfig) FirewallConfig {
	c.NonMasqueradeCIDRs = prefixes("192.0.2.0/24", "fd00::/8", "203.0.113.7/32")
	return c
}

// masqueraded is a configuration and the source of a packet that it causes.
type masqueraded struct {
	config FirewallConfig
	isNode bool
	masq   bool // to 192.0.2.1
}

// A pod's packets to another host have the node's address, or the pod's own. Those to another node always have the node's.
func TestMasquerade_destinations(t *testing.T) {
	elsewhere := openShift()
	elsewhere.NonMasqueradeCIDRs = prefixes("198.51.100.0/24", "192.0.2.2/32")
	all := openShift()
	all.NonMasqueradeCIDRs = prefixes("0.0.0.0/0")
	for name, tc := range map[string]masqueraded{
		"on":                        {openShift(), false, true},
		"off":                       {notMasqueraded(openShift()), false, false},
		"off, to another node":      {notMasqueraded(openShift()), true, true},
		"exception":                 {excepting(openShift()), false, false},
		"exception of another host": {elsewhere, false, true},
		"exception of all":          {all, false, false},
		"exception, to a node":      {all, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newRoutedNetwork(t, tc.config, tc.isNode)
			pod, server := udp(t, n.pods, "10.128.0.2:5000"), udp(t, n.outside, "192.0.2.1:53")
			send(t, pod, "192.0.2.1:53")
			from := sender(t, server)
			want := "10.128.0.2"
			if tc.masq {
				want = "192.0.2.10"
			}
			if from.Addr() != netip.MustParseAddr(want) {
				t.Errorf("got a packet from %s, want %s", from, want)
			}
			send(t, server, from.String())
			if from := sender(t, pod); from != netip.MustParseAddrPort("192.0.2.1:53") {
				t.Errorf("pod: got a reply from %s", from)
			}
		})
	}
}

// newRoutedNetwork is newNetwork with an outside host that routes the pods' network, and that is another node or not.
func newRoutedNetwork(t *testing.T, c FirewallConfig, isNode bool) network {
	t.Helper()
	n := newNetwork(t, c)
	f := newFirewall(t, c)
	if isNode {
		f.vteps.Allow(t.Context(), "outside", netip.MustParseAddr("192.0.2.1"))
	}
	syncFirewall(t, f)
	must(t, n.outside.Do(func(ns.NetNS) error { sh(t, "ip route add 10.128.0.0/14 via 192.0.2.10"); return nil }))
	return n
}

// The node forwards packets of another node's pod, of a host, and of its own as they are.
func TestMasquerade_others(t *testing.T) {
	n := newRoutedNetwork(t, openShift(), false)
	here, err := ns.GetCurrentNS()
	must(t, err)
	defer here.Close()
	far := newNetNS(t) // behind the node
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(far.Fd()))}))
	// The pod of another node has no route back by eth0.
	sh(t, `ip addr add 198.51.100.10/24 dev eth1; ip link set eth1 up; sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0
		iptables -P FORWARD ACCEPT`)
	must(t, far.Do(func(ns.NetNS) error {
		sh(t, "ip addr add 198.51.100.1/24 dev eth0; ip link set eth0 up; ip route add default via 198.51.100.10")
		return nil
	}))
	must(t, n.outside.Do(func(ns.NetNS) error {
		sh(t, "ip addr add 10.130.0.2/32 dev eth0; ip route add 198.51.100.0/24 via 192.0.2.10")
		return nil
	}))
	server := udp(t, far, "198.51.100.1:53")
	for _, tc := range []struct {
		netns      ns.NetNS
		from, want string
	}{
		{n.outside, "10.130.0.2:5000", "10.130.0.2:5000"}, {n.outside, "192.0.2.1:5000", "192.0.2.1:5000"}, {here, "192.0.2.10:5000", "192.0.2.10:5000"},
	} {
		send(t, udp(t, tc.netns, tc.from), "198.51.100.1:53")
		if from := sender(t, server); from.String() != tc.want {
			t.Errorf("packet of %s: got source %s, want %s", tc.from, from, tc.want)
		}
	}
	send(t, udp(t, n.pods, "10.128.0.2:5000"), "198.51.100.1:53")
	if from := sender(t, server); from.Addr().String() != "198.51.100.10" {
		t.Errorf("packet of a pod of this node: got source %s, want 198.51.100.10", from)
	}
}

// Source ports are random: the pod's own would be retained otherwise.
func TestMasquerade_randomPorts(t *testing.T) {
	n := newNetwork(t, openShift())
	server := udp(t, n.outside, "192.0.2.1:53")
	var ports []uint16
	for _, source := range []string{"10.128.0.2:5001", "10.128.0.2:5002", "10.128.0.2:5003"} {
		send(t, udp(t, n.pods, source), "192.0.2.1:53")
		ports = append(ports, sender(t, server).Port())
	}
	if slices.Equal(ports, []uint16{5001, 5002, 5003}) {
		t.Errorf("got source ports %d, those of the pod", ports)
	}
}

// A change applies to new connections. Existing ones retain their source.
func TestMasquerade_change(t *testing.T) {
	n := newRoutedNetwork(t, openShift(), false)
	server := udp(t, n.outside, "192.0.2.1:53")
	source := func(conn string) netip.Addr {
		pod := udp(t, n.pods, conn)
		defer pod.Close()
		send(t, pod, "192.0.2.1:53")
		return sender(t, server).Addr()
	}
	node, pod := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("10.128.0.2")
	for i, tc := range []struct {
		config FirewallConfig
		want   netip.Addr
	}{{openShift(), node}, {excepting(openShift()), pod}, {openShift(), node}, {notMasqueraded(openShift()), pod}} {
		syncFirewall(t, newFirewall(t, tc.config))
		if got := source("10.128.0.2:" + string(rune('1'+i)) + "000"); got != tc.want {
			t.Errorf("new connection %d: got source %s, want %s", i, got, tc.want)
		}
		if got := source("10.128.0.2:1000"); got != node {
			t.Errorf("existing connection after change %d: got source %s, want %s", i, got, node)
		}
	}
}

// A change of the networks applies to the running firewall, and the next Sync retains it.
func TestFirewall_setNonMasqueradeCIDRs(t *testing.T) {
	n := newRoutedNetwork(t, openShift(), false)
	f, server := newFirewall(t, openShift()), udp(t, n.outside, "192.0.2.1:53")
	syncFirewall(t, f)
	for i, tc := range []struct {
		networks []netip.Prefix
		want     string
	}{{prefixes("192.0.2.0/24"), "10.128.0.2"}, {prefixes("198.51.100.0/24"), "192.0.2.10"}, {prefixes("0.0.0.0/0"), "10.128.0.2"}, {nil, "192.0.2.10"}} {
		changes, err := f.SetNonMasqueradeCIDRs(t.Context(), tc.networks)
		must(t, err)
		if len(changes) == 0 {
			t.Errorf("networks %v: got no changes", tc.networks)
		}
		if changes := syncFirewall(t, f); len(changes) > 0 {
			t.Errorf("Sync after networks %v: got changes %q, want none", tc.networks, changes)
		}
		send(t, udp(t, n.pods, "10.128.0.2:"+string(rune('1'+i))+"000"), "192.0.2.1:53")
		if from := sender(t, server); from.Addr().String() != tc.want {
			t.Errorf("networks %v: got source %s, want %s", tc.networks, from, tc.want)
		}
	}
}

// With --ip-masq=false, a pod through a service and another host through a host port are masqueraded as before.
func TestMasquerade_offInside(t *testing.T) {
	c := notMasqueraded(withHostPorts())
	n := newNetwork(t, c)
	hostPort(t)
	pod, outside := udp(t, n.pods, "10.128.0.2:53"), udp(t, n.outside, "192.0.2.1:5000")
	send(t, outside, "192.0.2.10:5353")
	if from := sender(t, pod); from.Addr() != netip.MustParseAddr("10.128.0.1") {
		t.Errorf("host port: got source %s, want 10.128.0.1", from)
	}
	c = notMasqueraded(openShift())
	c.MasqueradeServices = true
	syncFirewall(t, newFirewall(t, c))
	sh(t, "iptables -t nat -A PREROUTING -d 172.30.0.10 -p udp --dport 53 -j DNAT --to-destination 10.128.0.3:5353")
	client, endpoint := udp(t, n.pods, "10.128.0.2:5000"), udp(t, n.pods, "10.128.0.3:5353")
	send(t, client, "172.30.0.10:53")
	if from := sender(t, endpoint); from.Addr() != netip.MustParseAddr("10.128.0.1") {
		t.Errorf("service: got source %s, want 10.128.0.1", from)
	}
}

// Kernels that lack the option or sets get the other rules, without changes in the next Sync, and all as soon as they have both.
func TestMasquerade_fallbacks(t *testing.T) {
	const option, set, all = randomly, "--match-set OVSDN-VTEPS dst", `-s 10.128.0.0/14 -m comment --comment "pod to the world" -j MASQUERADE`
	for name, tc := range map[string]struct {
		config FirewallConfig
		lacks  []string
		has    []string
		hasNot []string
	}{
		"default without option":     {openShift(), []string{randomly}, []string{"-s 10.128.0.0/14 ! -d 10.128.0.0/14"}, []string{option}},
		"off without option":         {notMasqueraded(openShift()), []string{randomly}, []string{set}, []string{option, all}},
		"off without sets":           {notMasqueraded(openShift()), []string{"--match-set"}, []string{option, all}, []string{set}},
		"off without both":           {notMasqueraded(openShift()), []string{randomly, "--match-set"}, []string{all}, []string{option, set}},
		"exceptions without sets":    {excepting(balancedServices()), []string{"--match-set"}, []string{option, all}, []string{set, "not masqueraded"}},
		"exceptions without options": {excepting(balancedServices()), []string{randomly}, []string{set, all, "not masqueraded"}, []string{option}},
	} {
		t.Run(name, func(t *testing.T) {
			onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
				f, r := b.firewall(t, tc.config)
				client := iptablesClient(r)
				for _, word := range tc.lacks {
					client = &lacking{iptablesClient: client, word: word, err: exits(t, 2)}
				}
				f.iptables = client
				syncFirewall(t, f)
				rules := chainRules(b.save(t))
				for _, want := range tc.has {
					if !strings.Contains(rules, want) {
						t.Errorf("got rules\n%swant %q", rules, want)
					}
				}
				for _, not := range tc.hasNot {
					if strings.Contains(rules, not) {
						t.Errorf("got rules\n%swant no %q", rules, not)
					}
				}
				if changes := syncFirewall(t, f); len(changes) > 0 {
					t.Errorf("second Sync: got changes %q, want none", changes)
				}
				if got, want := f.lacks(FeatureNotMasqueraded), slices.Contains(tc.hasNot, set); got != want {
					t.Errorf("exceptions skipped: got %t, want %t", got, want)
				}
				f.iptables = r
				syncFirewall(t, f)
				if f.lacks(FeatureNotMasqueraded) {
					t.Error("exceptions skipped with all extensions")
				}
				if diff := cmp.Diff(sorted(Rules(tc.config).String()), sorted(b.save(t))); diff != "" {
					t.Errorf("iptables-save with all extensions differs (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// lacks reports whether the feature is skipped.
func (f *iptablesFirewall) lacks(feature Feature) bool {
	return slices.ContainsFunc(f.Skipped(), func(s Skipped) bool { return s.Feature == feature })
}

// Exceptions that are removed are no longer reported.
func TestMasquerade_exceptionsRemoved(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		config := excepting(openShift())
		f, r := b.firewall(t, config)
		f.config = config
		f.iptables = &lacking{iptablesClient: r, word: "--match-set", err: exits(t, 2)}
		syncFirewall(t, f)
		if !f.lacks(FeatureNotMasqueraded) {
			t.Error("got exceptions without sets that are not skipped")
		}
		if _, err := f.SetNonMasqueradeCIDRs(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if f.lacks(FeatureNotMasqueraded) {
			t.Error("got skipped exceptions, want none")
		}
		if _, err := f.SetNonMasqueradeCIDRs(t.Context(), prefixes("192.0.2.0/24")); err != nil {
			t.Fatal(err)
		}
		if !f.lacks(FeatureNotMasqueraded) {
			t.Error("got new exceptions without sets that are not skipped")
		}
	})
}

// A previous agent without exceptions may have left no set of nodes. Until all are in it, pods' packets to them are masqueraded as those to other hosts. The rules
// of a previous agent with exceptions remain.
func TestMasquerade_beforeRestrict(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		previous, _ := b.firewall(t, openShift())
		syncFirewall(t, previous)
		for _, config := range []FirewallConfig{excepting(openShift()), notMasqueraded(openShift())} {
			f, _ := b.firewall(t, config)
			f.vteps = newVTEPs(kernelSets{})
			syncFirewall(t, f)
			if rules := chainRules(b.save(t)); strings.Contains(rules, "not masqueraded") || !strings.Contains(rules, "pod to the world") {
				t.Errorf("before the nodes are known: got rules\n%swant all destinations", rules)
			}
			if changes := syncFirewall(t, f); len(changes) > 0 {
				t.Errorf("second Sync: got changes %q, want none", changes)
			}
			_, err := f.Restrict(t.Context())
			must(t, err)
			want := chainRules(Rules(config).String())
			if diff := cmp.Diff(want, chainRules(b.save(t))); diff != "" {
				t.Errorf("rules after Restrict differ (-want +got):\n%s", diff)
			}
			restarted, _ := b.firewall(t, config)
			restarted.vteps = newVTEPs(kernelSets{})
			syncFirewall(t, restarted)
			if diff := cmp.Diff(want, chainRules(b.save(t))); diff != "" {
				t.Errorf("rules after a restart differ (-want +got):\n%s", diff)
			}
			syncFirewall(t, previous)
		}
	})
}

// A program that has the lock for a moment is no reason for the fallbacks, which masquerade packets to other destinations.
func TestMasquerade_lockedNoFallback(t *testing.T) {
	inNetNS(t)
	f, r := legacy.firewall(t, openShift())
	f.legacy = true
	syncFirewall(t, f)
	f.rules = Rules(notMasqueraded(openShift()))
	f.iptables = &lacking{iptablesClient: r, word: "--match-set", err: exits(t, 4)}
	if _, err := f.Sync(t.Context()); err == nil {
		t.Errorf("got rules\n%swant an error, for a Sync that tries the same rules", chainRules(legacy.save(t)))
	}
	f.iptables = r
	syncFirewall(t, f)
	if diff := cmp.Diff(chainRules(f.rules.String()), chainRules(legacy.save(t))); diff != "" {
		t.Errorf("rules differ (-want +got):\n%s", diff)
	}
}

// chainRules returns the rules of OVSDN-MASQUERADE.
func chainRules(saved string) string {
	var lines strings.Builder
	for line := range strings.Lines(saved) {
		if strings.HasPrefix(line, "-A OVSDN-MASQUERADE ") {
			lines.WriteString(line)
		}
	}
	return lines.String()
}

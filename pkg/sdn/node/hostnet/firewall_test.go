package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/coreos/go-iptables/iptables"
	"github.com/google/go-cmp/cmp"
)

func openShift() FirewallConfig {
	return FirewallConfig{ClusterNetworks: prefixes("10.128.0.0/14"), VXLANPort: 4789}
}

func tenants() FirewallConfig {
	c := openShift()
	c.Tenants, c.ServiceNetwork, c.RoutedDSCP = true, netip.MustParsePrefix("172.30.0.0/16"), 0x3f
	return c
}

func TestRules(t *testing.T) {
	for _, test := range []struct {
		name   string
		config FirewallConfig
		want   string
	}{
		{"one network", openShift(), `
*mangle
:OVSDN-GUARD - [0:0]
:OVSDN-ROUTED - [0:0]
-A FORWARD -m comment --comment "ovsdn: what must not be forwarded" -j OVSDN-GUARD
-A PREROUTING -m comment --comment "ovsdn: routed by this node for others" -j OVSDN-ROUTED
-A OVSDN-GUARD -s 10.128.0.0/14 -p udp -m udp --dport 4789 -m comment --comment "VXLAN made by a pod" -j DROP
-A OVSDN-GUARD -d 10.128.0.0/14 -m comment --comment "to a pod" -j RETURN
-A OVSDN-GUARD -p udp -m udp --dport 4789 -m conntrack --ctstate DNAT -m comment --comment "VXLAN through a service" -j DROP
COMMIT
*nat
:OVSDN-MASQUERADE - [0:0]
-A POSTROUTING -m comment --comment "ovsdn: pods outside the cluster network" -j OVSDN-MASQUERADE
-A OVSDN-MASQUERADE -m mark --mark 0x4000/0x4000 -m comment --comment "masqueraded by kube-proxy" -j RETURN
-A OVSDN-MASQUERADE -s 10.128.0.0/14 ! -d 10.128.0.0/14 -m comment --comment "pod to the world" -j MASQUERADE
COMMIT
*filter
:OVSDN-INPUT - [0:0]
:OVSDN-FORWARD - [0:0]
-A INPUT -m comment --comment "ovsdn: to this node" -j OVSDN-INPUT
-A FORWARD -m comment --comment "ovsdn: from and to pods" -j OVSDN-FORWARD
-A OVSDN-INPUT -p udp -m udp --dport 4789 -m comment --comment "VXLAN from nodes" -j ACCEPT
-A OVSDN-INPUT -i tun0 -m comment --comment "from pods" -j ACCEPT
-A OVSDN-FORWARD -s 10.128.0.0/14 -m comment --comment "from pods" -j ACCEPT
-A OVSDN-FORWARD -d 10.128.0.0/14 -m comment --comment "to pods" -j ACCEPT
COMMIT
`},
		{"several networks, services, another port", FirewallConfig{
			ClusterNetworks: prefixes("10.128.0.0/14", "fd00::/48", "10.64.0.0/16"), VXLANPort: 4790, MasqueradeServices: true,
		}, `
*mangle
:OVSDN-GUARD - [0:0]
:OVSDN-ROUTED - [0:0]
-A FORWARD -m comment --comment "ovsdn: what must not be forwarded" -j OVSDN-GUARD
-A PREROUTING -m comment --comment "ovsdn: routed by this node for others" -j OVSDN-ROUTED
-A OVSDN-GUARD -s 10.128.0.0/14 -p udp -m udp --dport 4790 -m comment --comment "VXLAN made by a pod" -j DROP
-A OVSDN-GUARD -s 10.64.0.0/16 -p udp -m udp --dport 4790 -m comment --comment "VXLAN made by a pod" -j DROP
-A OVSDN-GUARD -d 10.128.0.0/14 -m comment --comment "to a pod" -j RETURN
-A OVSDN-GUARD -d 10.64.0.0/16 -m comment --comment "to a pod" -j RETURN
-A OVSDN-GUARD -p udp -m udp --dport 4790 -m conntrack --ctstate DNAT -m comment --comment "VXLAN through a service" -j DROP
COMMIT
*nat
:OVSDN-MASQUERADE - [0:0]
-A POSTROUTING -m comment --comment "ovsdn: pods outside the cluster network" -j OVSDN-MASQUERADE
-A OVSDN-MASQUERADE -m mark --mark 0x4000/0x4000 -m comment --comment "masqueraded by kube-proxy" -j RETURN
-A OVSDN-MASQUERADE -s 10.128.0.0/14 -o tun0 -m conntrack --ctstate DNAT -m comment --comment "pod to pod through a service" -j MASQUERADE
-A OVSDN-MASQUERADE -s 10.64.0.0/16 -o tun0 -m conntrack --ctstate DNAT -m comment --comment "pod to pod through a service" -j MASQUERADE
-A OVSDN-MASQUERADE -d 10.128.0.0/14 -m comment --comment "to a pod" -j RETURN
-A OVSDN-MASQUERADE -d 10.64.0.0/16 -m comment --comment "to a pod" -j RETURN
-A OVSDN-MASQUERADE -s 10.128.0.0/14 -m comment --comment "pod to the world" -j MASQUERADE
-A OVSDN-MASQUERADE -s 10.64.0.0/16 -m comment --comment "pod to the world" -j MASQUERADE
COMMIT
*filter
:OVSDN-INPUT - [0:0]
:OVSDN-FORWARD - [0:0]
-A INPUT -m comment --comment "ovsdn: to this node" -j OVSDN-INPUT
-A FORWARD -m comment --comment "ovsdn: from and to pods" -j OVSDN-FORWARD
-A OVSDN-INPUT -p udp -m udp --dport 4790 -m comment --comment "VXLAN from nodes" -j ACCEPT
-A OVSDN-INPUT -i tun0 -m comment --comment "from pods" -j ACCEPT
-A OVSDN-FORWARD -s 10.128.0.0/14 -m comment --comment "from pods" -j ACCEPT
-A OVSDN-FORWARD -d 10.128.0.0/14 -m comment --comment "to pods" -j ACCEPT
-A OVSDN-FORWARD -s 10.64.0.0/16 -m comment --comment "from pods" -j ACCEPT
-A OVSDN-FORWARD -d 10.64.0.0/16 -m comment --comment "to pods" -j ACCEPT
COMMIT
`},
		{"tenants", tenants(), `
*mangle
:OVSDN-GUARD - [0:0]
:OVSDN-ROUTED - [0:0]
-A FORWARD -m comment --comment "ovsdn: what must not be forwarded" -j OVSDN-GUARD
-A PREROUTING -m comment --comment "ovsdn: routed by this node for others" -j OVSDN-ROUTED
-A OVSDN-GUARD -s 10.128.0.0/14 ! -i tun0 -o tun0 -m comment --comment "pod address from elsewhere" -j DROP
-A OVSDN-GUARD -s 10.128.0.0/14 -i tun0 -o tun0 -m conntrack ! --ctorigdst 172.30.0.0/16 -m comment --comment "pod to pod through a node port" -j MARK --set-xmark 0x0/0x4000
-A OVSDN-GUARD -s 10.128.0.0/14 -p udp -m udp --dport 4789 -m comment --comment "VXLAN made by a pod" -j DROP
-A OVSDN-GUARD -d 10.128.0.0/14 -m comment --comment "to a pod" -j RETURN
-A OVSDN-GUARD -p udp -m udp --dport 4789 -m conntrack --ctstate DNAT -m comment --comment "VXLAN through a service" -j DROP
-A OVSDN-ROUTED -d 10.128.0.0/14 ! -i tun0 -m comment --comment "routed for others" -j DSCP --set-dscp 0x3f
-A OVSDN-ROUTED -d 172.30.0.0/16 ! -i tun0 -m comment --comment "routed for others" -j DSCP --set-dscp 0x3f
COMMIT
*nat
:OVSDN-MASQUERADE - [0:0]
-A POSTROUTING -m comment --comment "ovsdn: pods outside the cluster network" -j OVSDN-MASQUERADE
-A OVSDN-MASQUERADE -m mark --mark 0x4000/0x4000 -m comment --comment "masqueraded by kube-proxy" -j RETURN
-A OVSDN-MASQUERADE -s 10.128.0.0/14 ! -d 10.128.0.0/14 -m comment --comment "pod to the world" -j MASQUERADE
COMMIT
*filter
:OVSDN-INPUT - [0:0]
:OVSDN-FORWARD - [0:0]
-A INPUT -m comment --comment "ovsdn: to this node" -j OVSDN-INPUT
-A FORWARD -m comment --comment "ovsdn: from and to pods" -j OVSDN-FORWARD
-A OVSDN-INPUT -p udp -m udp --dport 4789 -m comment --comment "VXLAN from nodes" -j ACCEPT
-A OVSDN-INPUT -i tun0 -m comment --comment "from pods" -j ACCEPT
-A OVSDN-FORWARD -s 10.128.0.0/14 -m comment --comment "from pods" -j ACCEPT
-A OVSDN-FORWARD -d 10.128.0.0/14 -m comment --comment "to pods" -j ACCEPT
COMMIT
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(strings.TrimPrefix(test.want, "\n"), Rules(test.config).String()); diff != "" {
				t.Errorf("rules differ (-want +got):\n%s", diff)
			}
		})
	}
}

// recorder counts iptables' runs and calls after every one that writes.
type recorder struct {
	program
	reads  int
	writes []string
	after  func()
}

func (r *recorder) wrote(err error, format string, args ...any) error {
	r.writes = append(r.writes, fmt.Sprintf(format, args...))
	if r.after != nil {
		r.after()
	}
	return err
}

func (r *recorder) List(table, chain string) ([]string, error) {
	r.reads++
	return r.program.List(table, chain)
}

func (r *recorder) NewChain(table, chain string) error {
	return r.wrote(r.program.NewChain(table, chain), "%s new %s", table, chain)
}

func (r *recorder) ClearAndDeleteChain(table, chain string) error {
	return r.wrote(r.program.ClearAndDeleteChain(table, chain), "%s remove %s", table, chain)
}

func (r *recorder) Insert(table, chain string, pos int, rule ...string) error {
	return r.wrote(r.program.Insert(table, chain, pos, rule...), "%s insert %s %d", table, chain, pos)
}

func (r *recorder) Delete(table, chain string, rule ...string) error {
	return r.wrote(r.program.Delete(table, chain, rule...), "%s delete %s", table, chain)
}

func (r *recorder) DeleteById(table, chain string, id int) error {
	return r.wrote(r.program.DeleteById(table, chain, id), "%s delete %s %d", table, chain, id)
}

// backend is one of the two programs that hosts have as iptables.
type backend string

// onBackends runs the test on each that this kernel supports, in a namespace of its own.
func onBackends(t *testing.T, test func(*testing.T, backend, ns.NetNS)) {
	ran := false
	for _, b := range []backend{"iptables-nft", "iptables-legacy"} {
		t.Run(string(b), func(t *testing.T) {
			netns := inNetNS(t)
			if out, err := exec.Command(string(b), "-t", "nat", "-S").CombinedOutput(); err != nil {
				t.Logf("this machine has no %s: %v: %s", b, err, out)
				return
			}
			ran = true
			test(t, b, netns)
		})
	}
	if !ran && !t.Failed() {
		t.Skip("needs root")
	}
}

func (b backend) firewall(t *testing.T, c FirewallConfig) (*Firewall, *recorder) {
	t.Helper()
	ipt, err := iptables.New(iptables.Path(string(b)), iptables.Timeout(lockWait))
	must(t, err)
	r := &recorder{program: ipt}
	return &Firewall{iptables: r, rules: Rules(c)}, r
}

// save returns the rules of the namespace as iptables-save prints them, without comments, counters and empty tables.
func (b backend) save(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	for _, table := range []string{"mangle", "nat", "filter"} {
		lines := strings.Split(sh(t, string(b)+"-save -t "+table), "\n")
		lines = slices.DeleteFunc(lines, func(l string) bool {
			return l == "" || l[0] == '#' || l[0] == '*' || l == "COMMIT" || builtIn.MatchString(l)
		})
		fmt.Fprintf(&out, "*%s\n", table)
		for _, l := range lines {
			fmt.Fprintln(&out, counters.ReplaceAllString(l, "[0:0]"))
		}
		fmt.Fprintln(&out, "COMMIT")
	}
	return out.String()
}

var (
	builtIn  = regexp.MustCompile(`^:[A-Z]+ (ACCEPT|DROP)`)
	counters = regexp.MustCompile(`\[\d+:\d+\]`)
)

func syncFirewall(t *testing.T, f *Firewall) []string {
	t.Helper()
	changes, err := f.Sync(t.Context())
	must(t, err)
	return changes
}

// sorted is for comparing rules whose chains are listed in another order.
func sorted(rules string) []string {
	lines := strings.Split(rules, "\n")
	slices.Sort(lines)
	return lines
}

func TestFirewallSync(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		f, r := b.firewall(t, openShift())
		syncFirewall(t, f)
		if diff := cmp.Diff(sorted(Rules(openShift()).String()), sorted(b.save(t))); diff != "" {
			t.Errorf("iptables-save differs (-want +got):\n%s", diff)
		}
		r.reads, r.writes = 0, nil
		if changes := syncFirewall(t, f); len(changes) > 0 || len(r.writes) > 0 {
			t.Errorf("the second Sync changed %q with %q", changes, r.writes)
		}
		if r.reads != 10 { // five chains of ours and five built-in ones
			t.Errorf("%d runs of iptables to see that nothing changed", r.reads)
		}
	})
}

// The mode may change on a host: nothing of the one before is left.
func TestFirewallOfTenants(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		for _, config := range []FirewallConfig{tenants(), openShift(), tenants()} {
			f, _ := b.firewall(t, config)
			syncFirewall(t, f)
			if diff := cmp.Diff(sorted(Rules(config).String()), sorted(b.save(t))); diff != "" {
				t.Errorf("iptables-save differs (-want +got):\n%s", diff)
			}
			if changes := syncFirewall(t, f); len(changes) > 0 {
				t.Errorf("the second Sync changed %q", changes)
			}
		}
	})
}

func TestFirewallLeavesOthersAlone(t *testing.T) {
	const others = `
for t in mangle filter; do B -t $t -N THEIRS; B -t $t -A THEIRS -s 10.1.1.1/32 -j DROP; B -t $t -A FORWARD -j THEIRS; done
B -t nat -A POSTROUTING -s 10.9.0.0/16 -m comment --comment "somebody's" -j SNAT --to-source 192.0.2.9
B -N KUBE-FORWARD; B -N KUBE-SERVICES; B -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
B -I FORWARD -j KUBE-FORWARD; B -I FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
B -A FORWARD -j REJECT --reject-with icmp-host-prohibited
B -A INPUT -p tcp --dport 22 -j ACCEPT; B -A INPUT -j KUBE-SERVICES; B -P INPUT DROP`
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		sh(t, strings.ReplaceAll(others, "B ", string(b)+" "))
		before := b.save(t)
		f, _ := b.firewall(t, openShift())
		syncFirewall(t, f)

		forward := strings.TrimSpace(sh(t, string(b)+" -S FORWARD"))
		want := []string{
			"-P FORWARD ACCEPT",
			"-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES",
			"-A FORWARD -j KUBE-FORWARD",
			`-A FORWARD -m comment --comment "ovsdn: from and to pods" -j OVSDN-FORWARD`,
			"-A FORWARD -j THEIRS",
			"-A FORWARD -j REJECT --reject-with icmp-host-prohibited",
		}
		if diff := cmp.Diff(want, strings.Split(forward, "\n")); diff != "" {
			t.Errorf("the jump behind kube-proxy's (-want +got):\n%s", diff)
		}
		if input := sh(t, string(b)+" -S INPUT 1"); !strings.Contains(input, "OVSDN-INPUT") {
			t.Errorf("the jump before all others, but first is %s", input)
		}

		// What is put before the jump later, stays before it.
		sh(t, string(b)+" -I FORWARD -s 10.128.0.66/32 -j DROP")
		if changes := syncFirewall(t, f); len(changes) > 0 {
			t.Errorf("overrode an administrator: %q", changes)
		}
		sh(t, string(b)+" -D FORWARD -s 10.128.0.66/32 -j DROP")

		must(t, f.Remove(t.Context()))
		if diff := cmp.Diff(before, b.save(t)); diff != "" {
			t.Errorf("Remove left another ruleset (-before +after):\n%s", diff)
		}
		must(t, f.Remove(t.Context()))
	})
}

func TestFirewallRepairs(t *testing.T) {
	for _, test := range []struct{ name, harm string }{
		{"flushed table", "B -t nat -F"},
		{"flushed and deleted", "B -F; B -X"},
		{"flushed chain", "B -t mangle -F OVSDN-GUARD"},
		{"jump deleted", `B -D INPUT -m comment --comment "ovsdn: to this node" -j OVSDN-INPUT`},
		{"a rule deleted", "B -D OVSDN-FORWARD 1"},
		{"a rule too much", "B -I OVSDN-FORWARD 2 -s 10.7.0.0/16 -j ACCEPT; B -t nat -A OVSDN-MASQUERADE -j MASQUERADE"},
		{"a rule twice", "B -t nat -I OVSDN-MASQUERADE 1 -s 10.128.0.0/14 ! -d 10.128.0.0/14 -m comment --comment 'pod to the world' -j MASQUERADE"},
		{"another order", `B -D OVSDN-INPUT 1; B -A OVSDN-INPUT -p udp --dport 4789 -m comment --comment "VXLAN from nodes" -j ACCEPT`},
		{"another version's jump", "B -D INPUT 1; B -I INPUT 1 -m comment --comment old -j OVSDN-INPUT"},
		{"another version's chain", "B -N OVSDN-OLD; B -A OVSDN-OLD -j ACCEPT; B -I FORWARD 1 -j OVSDN-OLD"},
	} {
		t.Run(test.name, func(t *testing.T) {
			onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
				f, _ := b.firewall(t, openShift())
				syncFirewall(t, f)
				sh(t, strings.ReplaceAll(test.harm, "B ", string(b)+" "))
				if changes := syncFirewall(t, f); len(changes) == 0 {
					t.Error("nothing was wrong")
				}
				if diff := cmp.Diff(sorted(Rules(openShift()).String()), sorted(b.save(t))); diff != "" {
					t.Errorf("iptables-save differs (-want +got):\n%s", diff)
				}
				if changes := syncFirewall(t, f); len(changes) > 0 {
					t.Errorf("the second Sync changed %q", changes)
				}
			})
		})
	}
}

// TestFirewallHasNoGap changes the rules under running traffic, so to speak: after every single run of iptables, what is masqueraded
// before and after must be masqueraded.
func TestFirewallHasNoGap(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		f, _ := b.firewall(t, openShift())
		syncFirewall(t, f)
		changed := openShift()
		changed.MasqueradeServices = true
		changed.VXLANPort = 4790
		f, r := b.firewall(t, changed)
		r.after = func() {
			rules := b.save(t)
			for _, want := range []string{
				"-s 10.128.0.0/14 ! -d 10.128.0.0/14 -m comment --comment \"pod to the world\" -j MASQUERADE",
				"-A POSTROUTING -m comment --comment \"ovsdn: pods outside the cluster network\" -j OVSDN-MASQUERADE",
				"-i tun0 -m comment --comment \"from pods\" -j ACCEPT",
			} {
				if !strings.Contains(rules, want) {
					t.Errorf("after %s there is no %s", r.writes[len(r.writes)-1], want)
				}
			}
		}
		syncFirewall(t, f)
		want := []string{
			"mangle insert OVSDN-GUARD 2", "mangle insert OVSDN-GUARD 5", "mangle delete OVSDN-GUARD 4", "mangle delete OVSDN-GUARD 1",
			"nat insert OVSDN-MASQUERADE 2",
			"filter insert OVSDN-INPUT 2", "filter delete OVSDN-INPUT 1",
		}
		if diff := cmp.Diff(want, r.writes); diff != "" {
			t.Errorf("runs differ (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(sorted(Rules(changed).String()), sorted(b.save(t))); diff != "" {
			t.Errorf("iptables-save differs (-want +got):\n%s", diff)
		}
	})
}

func TestFirewallErrors(t *testing.T) {
	t.Run("chain that nft wrote", func(t *testing.T) {
		inNetNS(t)
		f, _ := backend("iptables-nft").firewall(t, openShift())
		sh(t, "nft add table ip nat; nft add chain ip nat OVSDN-MASQUERADE; nft add rule ip nat OVSDN-MASQUERADE numgen inc mod 2 vmap { 0 : accept }")
		_, err := f.Sync(t.Context())
		wantError(t, err, "chain OVSDN-MASQUERADE of table nat", "nft list chain ip nat OVSDN-MASQUERADE")
	})
	t.Run("stopped", func(t *testing.T) {
		inNetNS(t)
		f, r := backend("iptables-nft").firewall(t, openShift())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := f.Sync(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Sync: %v", err)
		}
		if err := f.Remove(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Remove: %v", err)
		}
		if len(r.writes) > 0 {
			t.Errorf("wrote %q", r.writes)
		}
	})
	t.Run("no iptables", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		_, err := NewFirewall(openShift())
		wantError(t, err, "find iptables")
	})
	t.Run("writes that do not last", func(t *testing.T) {
		inNetNS(t)
		f, r := backend("iptables-nft").firewall(t, openShift())
		r.after = func() {
			if strings.HasPrefix(r.writes[len(r.writes)-1], "nat insert OVSDN-MASQUERADE") {
				sh(t, "iptables-nft -t nat -A OVSDN-MASQUERADE -s 10.6.6.6/32 -j RETURN")
			}
		}
		_, err := f.Sync(t.Context())
		wantError(t, err, "OVSDN-MASQUERADE", "does something else write to it", "10.6.6.6")
	})
}

func TestFirewallRun(t *testing.T) {
	netns := inNetNS(t)
	f, err := NewFirewall(openShift())
	must(t, err)
	b := backend("iptables-nft")
	want := sorted(Rules(openShift()).String())
	right := func() bool { return cmp.Equal(want, sorted(b.save(t))) }

	// No poll: what is restored was noticed.
	background(t, netns, func(ctx context.Context) { f.Run(ctx, time.Hour) })
	eventually(t, "Run makes the rules", right)
	for _, harm := range []string{
		"iptables-nft -t nat -F",
		"nft flush ruleset",
		"iptables-nft -D OVSDN-FORWARD 1",
		"iptables-nft -t mangle -F FORWARD",
	} {
		sh(t, harm)
		start := time.Now()
		eventually(t, "Run restores the rules after "+harm, right)
		t.Logf("restored %s after %s", time.Since(start).Round(time.Millisecond), harm)
	}
}

func TestFirewallRunPolls(t *testing.T) {
	netns := inNetNS(t)
	b := backend("iptables-legacy") // of which there are no events
	if exec.Command(string(b), "-t", "nat", "-S").Run() != nil {
		t.Logf("this machine has no %s", b)
		return
	}
	f, _ := b.firewall(t, openShift())
	right := func() bool { return cmp.Equal(sorted(Rules(openShift()).String()), sorted(b.save(t))) }
	background(t, netns, func(ctx context.Context) { f.Run(ctx, 50*time.Millisecond) })
	eventually(t, "Run makes the rules", right)
	sh(t, string(b)+" -t nat -F")
	eventually(t, "Run restores the rules", right)
}

func TestNetworkOfAnotherFamilyHasNoRules(t *testing.T) {
	c := FirewallConfig{ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("fd00::/48")}, VXLANPort: 4789}
	if rules := Rules(c).String(); strings.Contains(rules, "fd00") {
		t.Errorf("IPv6 in iptables:\n%s", rules)
	}
}

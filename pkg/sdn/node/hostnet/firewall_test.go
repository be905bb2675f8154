package hostnet

import (
	"context"
	"errors"
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
)

func openShift() FirewallConfig {
	return FirewallConfig{ClusterNetworks: prefixes("10.128.0.0/14"), Subnets: prefixes("10.128.0.0/23"), VXLANPort: 4789, IPMasq: true}
}

func sourcesEvaluated() FirewallConfig {
	c := openShift()
	c.SourcesEvaluated, c.ServiceNetwork, c.RoutedDSCP, c.ForwardedDSCP, c.HairpinDSCP = true, netip.MustParsePrefix("172.30.0.0/16"), 0x3f, 0x3e, 0x3d
	return c
}

func userspace() FirewallConfig {
	c := sourcesEvaluated()
	c.PodDevices = "veth+"
	return c
}

func balancedServices() FirewallConfig {
	c := sourcesEvaluated()
	c.BalancesServices, c.ServiceNextHop, c.ServiceOutside = true, balanced().ServiceNextHop, balanced().ServiceOutside
	return c
}

var update = flag.Bool("update", false, "write testdata/*.rules") //nolint:gochecknoglobals // a test binary parses its flags before any test runs

func TestRules(t *testing.T) {
	for name, config := range map[string]FirewallConfig{
		"one-network": openShift(),
		"several-networks": { // and another port, and services
			ClusterNetworks: prefixes("10.128.0.0/14", "fd00::/48", "10.64.0.0/16"), VXLANPort: 4790, MasqueradeServices: true, IPMasq: true,
			Subnets: prefixes("fd00::/64", "10.64.0.0/24"),
		},
		"sources-evaluated": sourcesEvaluated(),
		"userspace":         userspace(),
		"host-access":       accessible(HostAccessServices),
		"balanced-services": balancedServices(),
		"host-ports":        withHostPorts(),
		"not-masqueraded":   notMasqueraded(withHostPorts()),
		"exceptions":        excepting(balancedServices()),
		"exceptions-services": { // in several networks
			ClusterNetworks: prefixes("10.128.0.0/14", "10.64.0.0/16"), Subnets: prefixes("10.128.0.0/23"), VXLANPort: 4789, MasqueradeServices: true, IPMasq: true,
			NonMasqueradeCIDRs: prefixes("0.0.0.0/0"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, file := Rules(config).String(), filepath.Join("testdata", name+".rules")
			if *update {
				must(t, os.WriteFile(file, []byte(got), 0o644))
			}
			want, err := os.ReadFile(file)
			must(t, err)
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("rules differ (-want +got):\n%s", diff)
			}
		})
	}
}

func syncFirewall(t *testing.T, f Firewall) []string {
	t.Helper()
	changes, err := f.Sync(t.Context())
	must(t, err)
	return changes
}

func TestFirewall_sync(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		f, r := b.firewall(t, openShift())
		syncFirewall(t, f)
		if diff := cmp.Diff(sorted(Rules(openShift()).String()), sorted(b.save(t))); diff != "" {
			t.Errorf("iptables-save differs (-want +got):\n%s", diff)
		}
		r.reads, r.writes = 0, nil
		if changes := syncFirewall(t, f); len(changes) > 0 || len(r.writes) > 0 {
			t.Errorf("second Sync: got changes %q with %q", changes, r.writes)
		}
		if r.reads != 5 { // tables mangle, filter and raw, and the two chains of nat
			t.Errorf("got %d runs of iptables in a Sync without changes, want 5", r.reads)
		}
	})
}

// After a change of the mode no rules of the previous one remain.
func TestFirewall_modeChanged(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		for _, config := range []FirewallConfig{sourcesEvaluated(), openShift(), sourcesEvaluated(), balancedServices(), sourcesEvaluated(), balancedServices(), openShift()} {
			f, _ := b.firewall(t, config)
			syncFirewall(t, f)
			if diff := cmp.Diff(sorted(Rules(config).String()), sorted(b.save(t))); diff != "" {
				t.Errorf("iptables-save differs (-want +got):\n%s", diff)
			}
			if changes := syncFirewall(t, f); len(changes) > 0 {
				t.Errorf("second Sync: got changes %q", changes)
			}
		}
	})
}

func TestFirewall_foreignRules(t *testing.T) {
	const others = `
for t in mangle filter; do B -t $t -N THEIRS; B -t $t -A THEIRS -s 10.1.1.1/32 -j DROP; B -t $t -A FORWARD -j THEIRS; done
B -t nat -A POSTROUTING -s 10.9.0.0/16 -m comment --comment "foreign" -j SNAT --to-source 192.0.2.9
B -N KUBE-FORWARD; B -N KUBE-SERVICES; B -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
B -I FORWARD -j KUBE-FORWARD; B -I FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
B -A FORWARD -j REJECT --reject-with icmp-host-prohibited
B -A INPUT -p tcp --dport 22 -j ACCEPT; B -A INPUT -j KUBE-SERVICES; B -P INPUT DROP`
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		sh(t, strings.ReplaceAll(others, "B ", b.command()+" "))
		before := b.save(t)
		f, _ := b.firewall(t, openShift())
		syncFirewall(t, f)

		forward := strings.TrimSpace(sh(t, b.command()+" -S FORWARD"))
		want := []string{
			"-P FORWARD ACCEPT",
			"-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES",
			"-A FORWARD -j KUBE-FORWARD",
			`-A FORWARD -m comment --comment "ovsdn: from and to egress IPs" -j OVSDN-EGRESS`,
			`-A FORWARD -m comment --comment "ovsdn: from and to pods" -j OVSDN-FORWARD`,
			"-A FORWARD -j THEIRS",
			"-A FORWARD -j REJECT --reject-with icmp-host-prohibited",
		}
		if diff := cmp.Diff(want, strings.Split(forward, "\n")); diff != "" {
			t.Errorf("rules of FORWARD (-want +got):\n%s", diff)
		}
		if input := sh(t, b.command()+" -S INPUT 1"); !strings.Contains(input, "OVSDN-INPUT") {
			t.Errorf("first rule of INPUT: got %s, want the jump", input)
		}

		// A rule that is inserted before the jump later stays before it.
		sh(t, b.command()+" -I FORWARD -s 10.128.0.66/32 -j DROP")
		if changes := syncFirewall(t, f); len(changes) > 0 {
			t.Errorf("Sync after a rule was inserted before the jump: got changes %q", changes)
		}
		sh(t, b.command()+" -D FORWARD -s 10.128.0.66/32 -j DROP")

		must(t, f.Remove(t.Context()))
		if diff := cmp.Diff(before, b.save(t)); diff != "" {
			t.Errorf("ruleset after Remove (-before +after):\n%s", diff)
		}
		must(t, f.Remove(t.Context()))
	})
}

func TestFirewall_repair(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		f, _ := b.firewall(t, openShift())
		syncFirewall(t, f)
		if changed := f.foreign.take(); len(changed) > 0 {
			t.Errorf("after the first Sync: got chains %q changed by another program, want none", changed)
		}
		for _, test := range []struct{ name, change, restored string }{
			{"flushed table", "B -t nat -F", "nat/OVSDN-MASQUERADE"},
			{"flushed and deleted", "B -F; B -X", "filter/OVSDN-EGRESS filter/OVSDN-FORWARD filter/OVSDN-INPUT filter/OVSDN-INPUT-LAST"},
			{"flushed chain", "B -t mangle -F OVSDN-GUARD", "mangle/OVSDN-GUARD"},
			{"jump deleted", `B -D INPUT -m comment --comment "ovsdn: to this node" -j OVSDN-INPUT`, "filter/OVSDN-INPUT"},
			{"a rule deleted", "B -D OVSDN-FORWARD 1", "filter/OVSDN-FORWARD"},
			{"additional rules", "B -I OVSDN-FORWARD 2 -s 10.7.0.0/16 -j ACCEPT; B -t nat -A OVSDN-MASQUERADE -j MASQUERADE", "filter/OVSDN-FORWARD nat/OVSDN-MASQUERADE"},
			{"a rule twice", "B -t nat -I OVSDN-MASQUERADE 1 -s 10.128.0.0/14 ! -d 10.128.0.0/14 -m comment --comment 'pod to the world' -j MASQUERADE", "nat/OVSDN-MASQUERADE"},
			{"another order", `B -D OVSDN-INPUT 1; B -A OVSDN-INPUT -p udp --dport 4789 -m comment --comment "VXLAN from nodes" -j ACCEPT`, "filter/OVSDN-INPUT"},
			{"another version's jump", "B -D INPUT 1; B -I INPUT 1 -m comment --comment old -j OVSDN-INPUT", "filter/OVSDN-INPUT"},
			{"another version's chain", "B -N OVSDN-OLD; B -A OVSDN-OLD -j ACCEPT; B -I FORWARD 1 -j OVSDN-OLD", ""},
		} {
			sh(t, strings.ReplaceAll(test.change, "B ", b.command()+" "))
			if changes := syncFirewall(t, f); len(changes) == 0 {
				t.Errorf("%s: Sync after the change: got no changes", test.name)
			}
			if diff := cmp.Diff(sorted(Rules(openShift()).String()), sorted(b.save(t))); diff != "" {
				t.Errorf("%s: iptables-save differs (-want +got):\n%s", test.name, diff)
			}
			if changes := syncFirewall(t, f); len(changes) > 0 {
				t.Errorf("%s: second Sync: got changes %q", test.name, changes)
			}
			if got := strings.Join(f.foreign.take(), " "); got != test.restored {
				t.Errorf("%s: got chains %q changed by another program, want %q", test.name, got, test.restored)
			}
		}
	})
}

// After each run of iptables during a change of the rules, rules that exist before and after the change exist.
func TestFirewall_noGap(t *testing.T) {
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
					t.Errorf("after %s: got no rule %s", r.writes[len(r.writes)-1], want)
				}
			}
		}
		syncFirewall(t, f)
		want := []string{
			"mangle insert OVSDN-GUARD 2", "mangle insert OVSDN-GUARD 6", "mangle insert OVSDN-GUARD 7",
			"mangle delete OVSDN-GUARD 5", "mangle delete OVSDN-GUARD 4", "mangle delete OVSDN-GUARD 1",
			"mangle insert OVSDN-GUARD-INPUT 3", "mangle insert OVSDN-GUARD-INPUT 4", "mangle delete OVSDN-GUARD-INPUT 2", "mangle delete OVSDN-GUARD-INPUT 1",
			"mangle insert OVSDN-GUARD-VXLAN 2", "mangle delete OVSDN-GUARD-VXLAN 1",
			"nat insert OVSDN-MASQUERADE 2",
			"filter insert OVSDN-INPUT 2", "filter delete OVSDN-INPUT 1",
			"raw insert OVSDN-NOTRACK-IN 2", "raw delete OVSDN-NOTRACK-IN 1", "raw insert OVSDN-NOTRACK-OUT 2", "raw delete OVSDN-NOTRACK-OUT 1",
		}
		if diff := cmp.Diff(want, r.writes); diff != "" {
			t.Errorf("runs of iptables (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(sorted(Rules(changed).String()), sorted(b.save(t))); diff != "" {
			t.Errorf("iptables-save differs (-want +got):\n%s", diff)
		}
	})
}

func TestFirewall_errors(t *testing.T) {
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
			t.Errorf("Sync: got %v, want %v", err, context.Canceled)
		}
		if err := f.Remove(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Remove: got %v, want %v", err, context.Canceled)
		}
		if len(r.writes) > 0 {
			t.Errorf("got writes %q, want none", r.writes)
		}
	})
	t.Run("no iptables", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		_, err := NewFirewall(t.Context(), openShift())
		wantError(t, err, "find iptables")
	})
	t.Run("changes of another program", func(t *testing.T) {
		inNetNS(t)
		f, r := backend("iptables-nft").firewall(t, openShift())
		r.after = func() {
			if strings.HasPrefix(r.writes[len(r.writes)-1], "nat insert OVSDN-MASQUERADE") {
				sh(t, "iptables-nft -t nat -A OVSDN-MASQUERADE -s 10.6.6.6/32 -j RETURN")
			}
		}
		_, err := f.Sync(t.Context())
		wantError(t, err, "OVSDN-MASQUERADE", "another program changes the chain", "10.6.6.6")
	})
}

func TestFirewall_run(t *testing.T) {
	netns := inNetNS(t)
	c := openShift()
	restored := make(chan []string, 100)
	c.Restored = func(chains []string) { restored <- chains }
	f := newFirewall(t, c)
	b := backend("iptables-nft")
	want := sorted(Rules(openShift()).String())
	inSync := func() bool { return cmp.Equal(want, sorted(b.save(t))) }

	// The interval is too long for a poll: Run must receive the event.
	background(t, netns, func(ctx context.Context) { f.Run(ctx, time.Hour) })
	eventually(t, "Run adds the rules", inSync)
	for _, change := range []string{
		"iptables-nft -t nat -F",
		"nft flush ruleset",
		"iptables-nft -D OVSDN-FORWARD 1",
		"iptables-nft -t mangle -F FORWARD",
	} {
		sh(t, change)
		start := time.Now()
		eventually(t, "Run restores the rules after "+change, inSync)
		t.Logf("restored %s after %s", time.Since(start).Round(time.Millisecond), change)
		select {
		case <-restored:
		case <-time.After(90 * time.Second):
			t.Fatalf("%s: Run reported no chains", change)
		}
	}
}

func TestFirewall_runPolls(t *testing.T) {
	netns := inNetNS(t)
	b := backend("iptables-legacy") // has no events
	if exec.Command(string(b), waitForLock, "-t", "nat", "-S").Run() != nil {
		t.Logf("this host has no %s", b)
		return
	}
	f, _ := b.firewall(t, openShift())
	inSync := func() bool { return cmp.Equal(sorted(Rules(openShift()).String()), sorted(b.save(t))) }
	background(t, netns, func(ctx context.Context) { f.Run(ctx, 50*time.Millisecond) })
	eventually(t, "Run adds the rules", inSync)
	sh(t, b.command()+" -t nat -F")
	eventually(t, "Run restores the rules", inSync)
}

func TestRules_ipv6(t *testing.T) {
	c := FirewallConfig{ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("fd00::/48")}, VXLANPort: 4789}
	if rules := Rules(c).String(); strings.Contains(rules, "fd00") {
		t.Errorf("got IPv6 rules:\n%s", rules)
	}
}

// lacking is iptables on a kernel that lacks a match or target, which a rule with the word has.
type lacking struct {
	iptablesClient
	word    string
	err     error
	listErr error // of the first List
}

func (l *lacking) List(table, chain string) ([]string, error) {
	if err := l.listErr; err != nil {
		l.listErr = nil
		return nil, err
	}
	return l.iptablesClient.List(table, chain)
}

func (l *lacking) Insert(table, chain string, pos int, rule ...string) error {
	if l.err != nil && slices.Contains(rule, l.word) {
		return l.err
	}
	return l.iptablesClient.Insert(table, chain, pos, rule...)
}

// A kernel without the match icmp gets the stricter rule, and the other one as soon as it has the match.
func TestFirewall_fallbackWithoutMatchICMP(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		f, r := b.firewall(t, openShift())
		client := &lacking{iptablesClient: r, word: "--icmp-type", err: exits(t, 4)}
		f.iptables = client
		syncFirewall(t, f)
		const strict, exception = "-A OVSDN-GUARD -i tun0 -p icmp -m conntrack --ctstate INVALID", "--icmp-type"
		if rules := b.save(t); !strings.Contains(rules, strict) || strings.Contains(rules, exception) {
			t.Errorf("without the match: got rules\n%s\nwant %q and no %q", rules, strict, exception)
		}
		if changes := syncFirewall(t, f); len(changes) > 0 {
			t.Errorf("second Sync: got changes %q, want none", changes)
		}
		client.err = nil
		syncFirewall(t, f)
		if rules := b.save(t); strings.Contains(rules, strict) || strings.Count(rules, exception) != 3 {
			t.Errorf("with the match: got rules\n%s\nwant no %q and three with %q", rules, strict, exception)
		}
		before := b.save(t)
		client.listErr = exits(t, 4) // another program holds the lock
		if changes, err := f.Sync(t.Context()); err == nil || len(changes) > 0 {
			t.Errorf("Sync without the lock: got changes %q, error %v, want only an error", changes, err)
		}
		if diff := cmp.Diff(before, b.save(t)); diff != "" {
			t.Errorf("rules after a Sync without the lock (-before +after):\n%s", diff)
		}
	})
}

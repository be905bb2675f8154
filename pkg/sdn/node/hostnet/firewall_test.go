package hostnet

import (
	"context"
	"errors"
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
)

func openShift() FirewallConfig {
	return FirewallConfig{ClusterNetworks: prefixes("10.128.0.0/14"), VXLANPort: 4789}
}

func judging() FirewallConfig {
	c := openShift()
	c.SourcesJudged, c.ServiceNetwork, c.RoutedDSCP, c.ForwardedDSCP = true, netip.MustParsePrefix("172.30.0.0/16"), 0x3f, 0x3e
	return c
}

func userspace() FirewallConfig {
	c := judging()
	c.PodDevices = "veth+"
	return c
}

var update = flag.Bool("update", false, "write testdata/*.rules anew") //nolint:gochecknoglobals // a test binary parses its flags before any test runs

func TestRules(t *testing.T) {
	for name, config := range map[string]FirewallConfig{
		"one-network": openShift(),
		"several-networks": { // and another port, and services
			ClusterNetworks: prefixes("10.128.0.0/14", "fd00::/48", "10.64.0.0/16"), VXLANPort: 4790, MasqueradeServices: true,
		},
		"sources-judged": judging(),
		"userspace":      userspace(),
		"host-access":    accessible(HostAccessServices),
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

func syncFirewall(t *testing.T, f *Firewall) []string {
	t.Helper()
	changes, err := f.Sync(t.Context())
	must(t, err)
	return changes
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
		if r.reads != 22 { // eleven chains of ours and eleven built-in ones
			t.Errorf("%d runs of iptables to see that nothing changed", r.reads)
		}
	})
}

// The mode may change on a host: nothing of the one before is left.
func TestFirewallWhereSourcesAreJudged(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		for _, config := range []FirewallConfig{judging(), openShift(), judging()} {
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
		sh(t, strings.ReplaceAll(others, "B ", b.command()+" "))
		before := b.save(t)
		f, _ := b.firewall(t, openShift())
		syncFirewall(t, f)

		forward := strings.TrimSpace(sh(t, b.command()+" -S FORWARD"))
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
		if input := sh(t, b.command()+" -S INPUT 1"); !strings.Contains(input, "OVSDN-INPUT") {
			t.Errorf("the jump before all others, but first is %s", input)
		}

		// What is put before the jump later, stays before it.
		sh(t, b.command()+" -I FORWARD -s 10.128.0.66/32 -j DROP")
		if changes := syncFirewall(t, f); len(changes) > 0 {
			t.Errorf("overrode an administrator: %q", changes)
		}
		sh(t, b.command()+" -D FORWARD -s 10.128.0.66/32 -j DROP")

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
				sh(t, strings.ReplaceAll(test.harm, "B ", b.command()+" "))
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
			"mangle insert OVSDN-GUARD-INPUT 2", "mangle delete OVSDN-GUARD-INPUT 1",
			"mangle insert OVSDN-GUARD-VXLAN 2", "mangle delete OVSDN-GUARD-VXLAN 1",
			"nat insert OVSDN-MASQUERADE 2",
			"filter insert OVSDN-INPUT 2", "filter delete OVSDN-INPUT 1",
			"raw insert OVSDN-NOTRACK-IN 2", "raw delete OVSDN-NOTRACK-IN 1", "raw insert OVSDN-NOTRACK-OUT 2", "raw delete OVSDN-NOTRACK-OUT 1",
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
	f := newFirewall(t, openShift())
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
	if exec.Command(string(b), waitForLock, "-t", "nat", "-S").Run() != nil {
		t.Logf("this machine has no %s", b)
		return
	}
	f, _ := b.firewall(t, openShift())
	right := func() bool { return cmp.Equal(sorted(Rules(openShift()).String()), sorted(b.save(t))) }
	background(t, netns, func(ctx context.Context) { f.Run(ctx, 50*time.Millisecond) })
	eventually(t, "Run makes the rules", right)
	sh(t, b.command()+" -t nat -F")
	eventually(t, "Run restores the rules", right)
}

func TestNetworkOfAnotherFamilyHasNoRules(t *testing.T) {
	c := FirewallConfig{ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("fd00::/48")}, VXLANPort: 4789}
	if rules := Rules(c).String(); strings.Contains(rules, "fd00") {
		t.Errorf("IPv6 in iptables:\n%s", rules)
	}
}

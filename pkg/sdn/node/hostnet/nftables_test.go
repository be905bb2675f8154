package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/knftables"
)

// ruleConfigs are configurations that together have all rules.
func ruleConfigs() map[string]FirewallConfig {
	restricted := withHostPorts()
	restricted.HostAccess, restricted.NodeNetworks, restricted.PodConnections = HostAccessServices, accessible(HostAccessServices).NodeNetworks, limited(100).PodConnections
	balancedAccess := balancedServices()
	balancedAccess.HostAccess = HostAccessReplies
	return map[string]FirewallConfig{
		"one-network": openShift(), "sources-evaluated": sourcesEvaluated(), "userspace": userspace(), "host-access": restricted, "balanced-services": balancedAccess,
		"exceptions": notMasqueraded(excepting(withHostPorts())),
	}
}

// The kernel and nft accept all rules and their fallbacks. The files have the translations.
func TestNFT_rules(t *testing.T) {
	for name, config := range ruleConfigs() {
		t.Run(name, func(t *testing.T) {
			var got strings.Builder
			f := &firewallState{config: config, rules: Rules(config), podConnections: config.PodConnections}
			for _, c := range f.rules {
				c, err := f.limited(f.configured(c))
				must(t, err)
				for _, rules := range slices.Concat([][]Rule{c.Rules}, c.Fallbacks, c.Starting) {
					compiled, err := compile(c, rules)
					must(t, err)
					fmt.Fprintf(&got, "%s %s\n", c.baseName(), c.Name)
					for i, r := range compiled.rules {
						fmt.Fprintf(&got, "\t%s\n\t\t%s\n", rules[i], r.Rule)
					}
				}
			}
			file := filepath.Join("testdata", name+".nft")
			if *update {
				must(t, os.WriteFile(file, []byte(got.String()), 0o644))
			}
			want, err := os.ReadFile(file)
			must(t, err)
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("rules differ (-want +got):\n%s", diff)
			}
		})
		t.Run(name+" in the kernel", func(t *testing.T) {
			inNetNS(t)
			f := newNFT(t, config)
			for _, c := range f.rules {
				c, err := f.limited(f.configured(c))
				must(t, err)
				for _, rules := range slices.Concat([][]Rule{c.Rules}, c.Fallbacks, c.Starting) {
					c.Rules, c.Fallbacks = rules, nil
					if _, err := f.supported(t.Context(), c); err != nil {
						t.Error(err)
					}
				}
			}
			syncFirewall(t, f)
			if changes := syncFirewall(t, f); len(changes) > 0 || f.Skipped() != nil {
				t.Errorf("second Sync: got changes %q, skipped %v, want none", changes, f.Skipped())
			}
		})
	}
}

func TestNFT_noTranslation(t *testing.T) {
	for _, words := range []string{"-m recent --rcheck -j DROP", "-i eth0 -j TRACE", "-m conntrack --ctstate NEW,DNAT -j DROP", "-j REJECT --reject-with tcp-reset"} {
		r := Rule(strings.Fields(words))
		if text, err := r.nft(); !errors.Is(err, errNoTranslation) {
			t.Errorf("%s: got %q, error %v, want %v", words, text, err, errNoTranslation)
		}
	}
}

// unsupporting is nft on a kernel that does not support rules with a word.
type unsupporting struct {
	knftables.Interface
	word string
}

var errUnsupported = errors.New("not supported")

func (u *unsupporting) Run(ctx context.Context, tx *knftables.Transaction) error {
	if u.word != "" && strings.Contains(tx.String(), u.word) {
		return errUnsupported
	}
	return u.Interface.Run(ctx, tx)
}

func (u *unsupporting) Check(ctx context.Context, tx *knftables.Transaction) error {
	if u.word != "" && strings.Contains(tx.String(), u.word) {
		return errUnsupported
	}
	return u.Interface.Check(ctx, tx)
}

// On a kernel without an optional feature, all other rules are written. Fallbacks replace rules that it lacks.
func TestNFT_kernelWithoutFeature(t *testing.T) {
	for word, want := range map[string]struct {
		features []Feature
		instead  string
	}{
		"ct count":     {features: []Feature{FeaturePodLimit}, instead: "masquerade"},
		"fib daddr":    {features: []Feature{FeatureVTEPs, FeatureNotrack, FeatureEgressNotrack}, instead: "masquerade"},
		"fully-random": {instead: "masquerade comment"},
		"icmp type !=": {instead: "ct state invalid"},
		itselfSet:      {instead: "masquerade"},
	} {
		t.Run(word, func(t *testing.T) {
			inNetNS(t)
			c := sourcesEvaluated()
			c.PodConnections = limited(100).PodConnections
			f := newNFT(t, c)
			run, check := &unsupporting{f.nft, word}, &unsupporting{f.scratch, word}
			f.nft, f.scratch = run, check
			syncFirewall(t, f)
			var got []Feature
			for _, s := range f.Skipped() {
				got = append(got, s.Feature)
				if !errors.Is(s.Err, errUnsupported) {
					t.Errorf("%s: got error %v, want the cause", s.Feature, s.Err)
				}
			}
			if diff := cmp.Diff(want.features, got); diff != "" {
				t.Errorf("missing features (-want +got):\n%s", diff)
			}
			if rules := nftCounters.ReplaceAllString(sh(t, "nft list table ip "+nftTableName), ""); !strings.Contains(strings.ReplaceAll(rules, "  ", " "), strings.ReplaceAll(want.instead, " comment", "")) {
				t.Errorf("got rules\n%s\nwant %s", rules, want.instead)
			}
			if changes := syncFirewall(t, f); len(changes) > 0 {
				t.Errorf("second Sync: got changes %q, want none", changes)
			}
			run.word, check.word = "", ""
			if changes := syncFirewall(t, f); len(changes) == 0 || f.Skipped() != nil {
				t.Errorf("with the feature: got changes %q, skipped %v, want it in use", changes, f.Skipped())
			}
		})
	}
}

// A new agent changes neither the set nor its rule before Restrict.
func TestNFT_beforeRestrict(t *testing.T) {
	inNetNS(t)
	ctx := t.Context()
	start := func() *nftFirewall {
		f := newNFT(t, openShift())
		f.vteps = newVTEPs(nftSets{f.nft})
		return f
	}
	restricted := func() bool {
		return strings.Contains(sh(t, "nft list table ip "+nftTableName), "ip saddr != @"+vtepSet)
	}
	wantEntries := func(want string) {
		t.Helper()
		set, err := nftSets{start().nft}.list(ctx, vtepSet)
		must(t, err)
		var got []string
		for _, e := range set.Entries {
			got = append(got, e.IP.String())
		}
		slices.Sort(got)
		if strings.Join(got, " ") != want {
			t.Errorf("entries of the set: got %s, want %s", got, want)
		}
	}
	first := start()
	syncFirewall(t, first)
	if restricted() {
		t.Error("an agent that knows no peers restricts VXLAN")
	}
	for name, addr := range map[string]string{"node2": "192.0.2.2", "node3": "192.0.2.3"} {
		first.VTEPs().Allow(ctx, name, netip.MustParseAddr(addr))
	}
	_, err := first.Restrict(ctx)
	must(t, err)
	if !restricted() {
		t.Error("got no rule of the set after Restrict")
	}
	second := start() // node3 was deleted while the agent was stopped
	if changes := syncFirewall(t, second); len(changes) > 0 {
		t.Errorf("Sync of a new agent without peers: got changes %q", changes)
	}
	second.VTEPs().Allow(ctx, "node2", netip.MustParseAddr("192.0.2.2"))
	second.VTEPs().Allow(ctx, "node4", netip.MustParseAddr("192.0.2.4"))
	wantEntries("192.0.2.2 192.0.2.3 192.0.2.4")
	_, err = second.Restrict(ctx)
	must(t, err)
	wantEntries("192.0.2.2 192.0.2.4")
	second.VTEPs().Settle(ctx, "node4", netip.Addr{})
	wantEntries("192.0.2.2")
}

// A change of the configuration replaces only the chains that differ, and chains of other versions are deleted.
func TestNFT_changedConfiguration(t *testing.T) {
	inNetNS(t)
	syncFirewall(t, newNFT(t, openShift()))
	sh(t, "nft 'add chain ip ovsdn-host OVSDN-OLD; add rule ip ovsdn-host filter-input jump OVSDN-OLD'")
	changed := openShift()
	changed.MasqueradeServices = true
	f := newNFT(t, changed)
	want := []string{"chain OVSDN-MASQUERADE: wrote 4 rules", "chain OVSDN-OLD deleted", "chain filter-input: wrote 3 rules", "chain nat-postrouting: wrote 1 rules"}
	got := syncFirewall(t, f)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	must(t, f.SyncHostPorts(t.Context()))
	if _, err := f.SetNonMasqueradeCIDRs(t.Context(), prefixes("203.0.113.0/24")); err != nil {
		t.Error(err)
	}
	if rules := sh(t, "nft list chain ip ovsdn-host OVSDN-MASQUERADE"); !strings.Contains(rules, "203.0.113.0/24") {
		t.Errorf("got rules\n%s\nwant one for 203.0.113.0/24", rules)
	}
	if got := f.foreign.take(); len(got) > 0 {
		t.Errorf("got chains %q changed by another program, want none", got)
	}
}

// interfering deletes the table after the first transaction, as another program that writes at the same time.
type interfering struct {
	knftables.Interface
	done bool
}

func (i *interfering) Run(ctx context.Context, tx *knftables.Transaction) error {
	if err := i.Interface.Run(ctx, tx); err != nil || i.done {
		return err
	}
	i.done = true
	return removeTable(ctx, i.Interface)
}

// A change of another program directly after the write is found, restored and reported.
func TestNFT_changedDuringSync(t *testing.T) {
	inNetNS(t)
	f := newNFT(t, openShift())
	f.nft = &interfering{Interface: f.nft}
	if _, err := f.Sync(t.Context()); !errors.Is(err, errForeignWriter) {
		t.Errorf("Sync: got error %v, want %v", err, errForeignWriter)
	}
	if got := f.foreign.take(); got != nil {
		t.Errorf("got chains %q restored, want none", got)
	}
	syncFirewall(t, f)
	if got := f.foreign.take(); !slices.Contains(got, "nat/OVSDN-MASQUERADE") {
		t.Errorf("got chains %q restored, want those of the table", got)
	}
}

package hostnet

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
)

// A table with many rules of other programs is listed by chain, except once.
func TestFirewall_largeTable(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		var rules strings.Builder
		for i := range maxTableLines {
			fmt.Fprintf(&rules, "-A THEIRS -s 10.7.%d.%d/32 -j DROP\n", i/256, i%256)
		}
		sh(t, string(b)+"-restore "+waitForLock+" <<E\n*filter\n:THEIRS -\n"+rules.String()+"COMMIT\nE\n")
		f, r := b.firewall(t, openShift())
		syncFirewall(t, f)
		r.reads = 0
		if changes := syncFirewall(t, f); len(changes) > 0 {
			t.Errorf("second Sync: got changes %q, want none", changes)
		}
		if r.reads != 12 { // tables mangle and raw, two chains of nat, and four chains of filter with the built-in ones
			t.Errorf("got %d runs of iptables, want 12", r.reads)
		}
	})
}

// iptables-nft can't list a table in which another program wrote a chain with nft. It lists the other chains.
func TestFirewall_tableWithChainOfNFT(t *testing.T) {
	inNetNS(t)
	f, r := backend("iptables-nft").firewall(t, openShift())
	sh(t, "nft add table ip filter; nft add chain ip filter THEIRS; nft add rule ip filter THEIRS numgen inc mod 2 vmap { 0 : accept }")
	syncFirewall(t, f)
	r.writes = nil
	if changes := syncFirewall(t, f); len(changes) > 0 || len(r.writes) > 0 {
		t.Errorf("second Sync: got changes %q with %q, want none", changes, r.writes)
	}
	sh(t, "iptables-nft -F OVSDN-FORWARD")
	if changes := syncFirewall(t, f); len(changes) == 0 {
		t.Error("Sync after a flush of a chain: got no changes")
	}
}

// listener calls then after the listing of a table.
type listener struct {
	iptablesClient
	then func(table string)
}

func (l *listener) List(table, chain string) ([]string, error) {
	lines, err := l.iptablesClient.List(table, chain)
	if chain == allChains {
		l.then(table)
	}
	return lines, err
}

// A change by another program after the table was listed is not overlooked when the agent changes the same chain.
func TestFirewall_changedAfterListing(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		f, r := b.firewall(t, openShift())
		syncFirewall(t, f)
		sh(t, strings.ReplaceAll("B -F FORWARD; B -D OVSDN-FORWARD 1", "B ", b.command()+" "))
		f.iptables = &listener{iptablesClient: r, then: func(table string) {
			if table == tableFilter {
				sh(t, strings.ReplaceAll("B -N KUBE-FORWARD; B -I FORWARD -j KUBE-FORWARD; B -F OVSDN-FORWARD", "B ", b.command()+" "))
			}
		}}
		syncFirewall(t, f)
		want := []string{
			"-P FORWARD ACCEPT",
			"-A FORWARD -j KUBE-FORWARD",
			`-A FORWARD -m comment --comment "ovsdn: from and to egress IPs" -j OVSDN-EGRESS`,
			`-A FORWARD -m comment --comment "ovsdn: from and to pods" -j OVSDN-FORWARD`,
		}
		if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(sh(t, b.command()+" -S FORWARD")), "\n")); diff != "" {
			t.Errorf("rules of FORWARD (-want +got):\n%s", diff)
		}
		f.iptables = r
		if changes := syncFirewall(t, f); len(changes) > 0 {
			t.Errorf("second Sync: got changes %q, want none", changes)
		}
	})
}

package hostnet

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
)

var errRemoval = errors.New("the other program fails")

// A failure to remove the rules of a previous agent does not fail Sync, which tries again.
func TestFirewall_leftoversRemain(t *testing.T) {
	inNetNS(t)
	f := newFirewall(t, openShift())
	calls, err := 0, errRemoval
	f.leftovers.remove = func(context.Context) error { calls++; return err }
	for range 2 {
		syncFirewall(t, f)
	}
	err = nil
	for range 2 {
		syncFirewall(t, f)
	}
	if calls != 3 {
		t.Errorf("got %d attempts, want 2 that fail and one that succeeds", calls)
	}
}

// A host whose only iptables is legacy does not load nf_tables.
func TestFindIPTables_loadsNoModule(t *testing.T) {
	aloneInNetNS(t)
	isLoaded, err := isNFTLoaded()
	must(t, err)
	for version, want := range map[string]bool{"legacy": isLoaded, "nf_tables": true} {
		for _, name := range []string{iptablesProgram, legacyProgram} {
			writeProgram(t, filepath.Join(onlyPrograms(t), name), "#!/bin/sh\necho 'iptables v1.8.9 ("+version+")'\n")
			found, err := findIPTables(t.Context())
			must(t, err)
			if found.nft != want {
				t.Errorf("%s (%s): got nf_tables used %v, want %v", name, version, found.nft, want)
			}
			f, err := newIPTablesFirewall(t.Context(), openShift())
			must(t, err)
			if queries := f.leftovers.remove != nil; queries != want {
				t.Errorf("%s (%s): got a request for nf_tables %v, want %v", name, version, queries, want)
			}
		}
	}
}

// The rules of each backend are removed by the program that has them, and a failure in one table does not prevent the removal from others.
func TestRemoveStaleIPTables(t *testing.T) {
	aloneInNetNS(t)
	for _, b := range []backend{"iptables-nft", "iptables-legacy"} {
		f, _ := b.firewall(t, openShift())
		syncFirewall(t, f)
	}
	// A rule of another program in a chain of the agent's table mangle.
	sh(t, "iptables-nft -t mangle -N OTHER; iptables-nft -t mangle -A OTHER -g OVSDN-GUARD")
	if err := removeStaleIPTables(t.Context(), openShift()); err == nil {
		t.Error("with a jump of another program: got no error")
	}
	save := func() string { return sh(t, "iptables-nft-save; iptables-legacy-save") }
	if left := save(); strings.Contains(left, "OVSDN-MASQUERADE") || !strings.Contains(left, "OVSDN-GUARD") {
		t.Errorf("got\n%s\nwant chains of table mangle only", left)
	}
	sh(t, "iptables-nft -t mangle -F OTHER")
	must(t, removeStaleIPTables(t.Context(), openShift()))
	if left := save(); strings.Contains(left, chainPrefix) {
		t.Errorf("got\n%s", left)
	}

	// Without its program the legacy backend remains as it is, and so do the rules of the other.
	f, _ := backend("iptables-legacy").firewall(t, openShift())
	syncFirewall(t, f)
	path := os.Getenv("PATH")
	program, err := exec.LookPath("iptables-nft")
	must(t, err)
	dir := onlyPrograms(t, "nft")
	writeProgram(t, filepath.Join(dir, iptablesProgram), "#!/bin/sh\nexec "+program+" \"$@\"\n")
	must(t, removeStaleIPTables(t.Context(), openShift()))
	t.Setenv("PATH", path)
	if left := sh(t, "iptables-legacy-save"); !strings.Contains(left, chainPrefix) {
		t.Errorf("got\n%s\nwant the rules of the missing program", left)
	}
}

// A set that a rule matches is not waited for.
func TestRemoveStaleSets_busy(t *testing.T) {
	inNetNS(t)
	f := newFirewall(t, openShift())
	syncFirewall(t, f)
	start := time.Now()
	if err := removeStaleSets(t.Context()); !errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)) {
		t.Errorf("got error %v, want that the set is in use", err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %s", took)
	}
}

// When the program changes, its rules remain until the new agent knows all VTEPs, and egress IPs are in the new set before.
func TestFirewall_programChanged(t *testing.T) {
	aloneInNetNS(t)
	ctx, addr := t.Context(), netip.MustParseAddr(egressIP)
	inNFT := openShift()
	inNFT.Program = FirewallNFTables
	has := map[string]func() bool{
		BackendIPTables: func() bool { return strings.Contains(sh(t, "iptables-save"), "OVSDN-MASQUERADE") },
		BackendNFTables: func() bool { return strings.Contains(sh(t, "nft list tables"), nftTableName) },
	}
	previous := ""
	for _, c := range []FirewallConfig{openShift(), inNFT, openShift()} {
		f, err := NewFirewall(ctx, c)
		must(t, err)
		syncFirewall(t, f)
		if previous == "" {
			must(t, f.EgressIPs().Add(ctx, addr))
		} else if !has[previous]() {
			t.Errorf("from %s to %s: the rules were removed before Restrict", previous, f.Backend())
		}
		if got, err := f.EgressIPs().List(ctx); err != nil || !slices.Equal(got, []netip.Addr{addr}) {
			t.Errorf("from %s to %s: got egress IPs %v, error %v, want %s", previous, f.Backend(), got, err, addr)
		}
		restrict(t, f)
		if !has[f.Backend()]() {
			t.Errorf("%s: got no rules", f.Backend())
		}
		if previous != "" && has[previous]() {
			t.Errorf("from %s to %s: the rules remain after Restrict", previous, f.Backend())
		}
		previous = f.Backend()
	}
}

// Rules of the node's administrator are retained, with the set that one of them matches.
func TestRemoveStaleTable_nodeInput(t *testing.T) {
	aloneInNetNS(t)
	syncFirewall(t, newNFT(t, openShift()))
	sh(t, "nft add rule ip ovsdn-host node-input ip saddr @OVSDN-VTEPS tcp dport 10250 accept")
	for range 2 {
		f := newFirewall(t, openShift())
		syncFirewall(t, f)
		if f.leftovers.remove != nil {
			t.Error("got an error of the removal")
		}
		left := sh(t, "nft list table ip "+nftTableName)
		if !strings.Contains(left, "tcp dport 10250 accept") || !strings.Contains(left, vtepSet) {
			t.Errorf("got\n%s\nwant the rule of node-input with its set", left)
		}
		if strings.Contains(left, "hook") || strings.Contains(left, "OVSDN-GUARD") || strings.Contains(left, egressSet) {
			t.Errorf("got\n%s\nwant no other chains and sets", left)
		}
	}
	syncFirewall(t, newNFT(t, openShift()))
	if got := sh(t, "nft list chain ip ovsdn-host node-input"); !strings.Contains(got, "10250") {
		t.Errorf("node-input with nftables again: got\n%s", got)
	}
	sh(t, "nft flush chain ip ovsdn-host node-input")
	syncFirewall(t, newFirewall(t, openShift()))
	if left := sh(t, "nft list tables"); strings.Contains(left, nftTableName) {
		t.Errorf("without rules of the node: got tables\n%s", left)
	}
}

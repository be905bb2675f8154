package hostnet

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// removeAll removes all rules, as an uninstallation.
func removeAll(t *testing.T, c FirewallConfig) error {
	t.Helper()
	all, err := AllFirewalls(t.Context(), c)
	for _, f := range all {
		if removeErr := f.Remove(t.Context()); err == nil {
			err = removeErr
		}
	}
	return err
}

// A missing nft is an error, but the rules of iptables are removed.
func TestAllFirewalls_withoutNFT(t *testing.T) {
	aloneInNetNS(t)
	path := os.Getenv("PATH")
	syncFirewall(t, newNFT(t, openShift()))
	syncFirewall(t, func() Firewall { f, _ := backend("iptables-nft").firewall(t, openShift()); return f }())
	program, err := exec.LookPath("iptables-nft")
	must(t, err)
	dir := onlyPrograms(t)
	writeProgram(t, filepath.Join(dir, iptablesProgram), "#!/bin/sh\nexec "+program+" \"$@\"\n")
	wantError(t, removeAll(t, FirewallConfig{}), "find nft")
	t.Setenv("PATH", path)
	if left := sh(t, "iptables-save"); strings.Contains(left, chainPrefix) {
		t.Errorf("rules in iptables: got\n%s", left)
	}
	must(t, removeAll(t, FirewallConfig{}))
	if left := sh(t, "nft list ruleset"); strings.Contains(left, nftTableName) {
		t.Errorf("with nft: got\n%s", left)
	}
}

// An iptables that does not work does not prevent the uninstallation of a host whose rules are in nftables.
func TestAllFirewalls_unusableIPTables(t *testing.T) {
	for name, script := range map[string]string{
		"no program": "exit 1", "no kernel": "[ \"$1\" != --version ] || { echo 'iptables v1.8.9 (nf_tables)'; exit; }\nexit 4",
	} {
		t.Run(name, func(t *testing.T) {
			aloneInNetNS(t)
			syncFirewall(t, newNFT(t, openShift()))
			dir := onlyPrograms(t, "nft", "sh")
			writeProgram(t, filepath.Join(dir, iptablesProgram), "#!/bin/sh\n"+script+"\n")
			must(t, removeAll(t, FirewallConfig{}))
			if left := sh(t, "nft list ruleset"); strings.Contains(left, nftTableName) {
				t.Errorf("got\n%s", left)
			}
			must(t, removeAll(t, FirewallConfig{})) // repeated, without the table
			sh(t, "nft 'add table ip filter; add chain ip filter OVSDN-FORWARD'")
			if err := removeAll(t, FirewallConfig{}); err == nil {
				t.Error("with rules of iptables: got no error")
			}
			must(t, removeAll(t, FirewallConfig{Program: FirewallNFTables}))
			if left := sh(t, "nft list ruleset"); strings.Contains(left, "OVSDN-FORWARD") {
				t.Errorf("rules of iptables: got\n%s", left)
			}
		})
	}
}

// An uninstallation without iptables removes the rules of a previous agent that had it, too.
func TestAllFirewalls_withoutIPTables(t *testing.T) {
	aloneInNetNS(t)
	path := os.Getenv("PATH")
	syncFirewall(t, newNFT(t, openShift()))
	syncFirewall(t, func() Firewall { f, _ := backend("iptables-nft").firewall(t, openShift()); return f }())
	onlyPrograms(t, "nft")
	all, err := AllFirewalls(t.Context(), FirewallConfig{})
	must(t, err)
	for _, f := range all {
		must(t, f.Remove(t.Context()))
	}
	t.Setenv("PATH", path)
	if left := sh(t, "nft list ruleset; iptables-save"); strings.Contains(left, chainPrefix) {
		t.Errorf("after Remove: got\n%s", left)
	}
}

package hostnet

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// onlyPrograms sets PATH to a directory with some of the host's programs, and returns it.
func onlyPrograms(t *testing.T, names ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range names {
		path, err := exec.LookPath(name)
		must(t, err)
		must(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	t.Setenv("PATH", dir)
	return dir
}

// rejecting is iptables on a kernel without its matches.
const rejecting = "#!/bin/sh\ncase \" $* \" in *' -I '*|*' -A '*) echo 'RULE_INSERT failed (No such file or directory)' >&2; exit 4;; esac\nexec PROGRAM \"$@\"\n"

// restrict completes the VTEPs, as after the initial flows.
func restrict(t *testing.T, f Firewall) {
	t.Helper()
	_, err := f.Restrict(t.Context())
	must(t, err)
}

// A node without iptables, or with --firewall=nftables, has its rules in nftables. Rules of a previous agent in iptables are removed.
func TestNewFirewall_withoutIPTables(t *testing.T) {
	for name, test := range map[string]struct {
		program FirewallProgram
		script  string
	}{
		"not installed":          {FirewallAuto, ""},
		"kernel without matches": {FirewallNFTables, rejecting},
	} {
		t.Run(name, func(t *testing.T) {
			aloneInNetNS(t)
			path := os.Getenv("PATH")
			program, err := exec.LookPath("iptables-nft")
			must(t, err)
			iptables := newFirewall(t, openShift())
			iptables.vteps.Allow(t.Context(), "node2", netip.MustParseAddr("192.0.2.2"))
			syncFirewall(t, iptables)
			sh(t, "iptables -A FORWARD -s 10.6.6.6 -j ACCEPT")
			dir := onlyPrograms(t, "nft")
			if test.script != "" {
				writeProgram(t, filepath.Join(dir, "iptables"), strings.ReplaceAll(test.script, "PROGRAM", program))
			}
			c := openShift()
			c.Program = test.program
			f, err := NewFirewall(t.Context(), c)
			must(t, err)
			if got := f.Backend(); got != BackendNFTables {
				t.Fatalf("got backend %s, want %s", got, BackendNFTables)
			}
			restrict(t, f)
			eventually(t, "the set of iptables is removed", func() bool { // the kernel releases it some time after the rules
				syncFirewall(t, f)
				_, err := netlink.IpsetList(vtepSet)
				return errors.Is(err, unix.ENOENT)
			})
			t.Setenv("PATH", path)
			if left := sh(t, "iptables-save"); strings.Contains(left, chainPrefix) || !strings.Contains(left, "10.6.6.6") {
				t.Errorf("rules in iptables: got\n%s\nwant only those of another program", left)
			}

			// iptables is installed again.
			f, err = NewFirewall(t.Context(), openShift())
			must(t, err)
			if got := f.Backend(); got != BackendIPTables {
				t.Fatalf("got backend %s, want %s", got, BackendIPTables)
			}
			restrict(t, f)
			if rules := sh(t, "nft list ruleset"); strings.Contains(rules, nftTableName) || !strings.Contains(rules, "OVSDN-MASQUERADE") {
				t.Errorf("got rules\n%s\nwant them in iptables only", rules)
			}
		})
	}
}

// An iptables that is installed is never replaced. Its error has the remedy for a kernel without its modules.
func TestNewFirewall_iptablesFails(t *testing.T) {
	aloneInNetNS(t)
	program, err := exec.LookPath("iptables-nft")
	must(t, err)
	dir := onlyPrograms(t, "nft")
	for _, name := range []string{iptablesProgram, legacyProgram} {
		path := filepath.Join(dir, name)
		writeProgram(t, path, "#!/bin/sh\nexit 1\n")
		if f, err := NewFirewall(t.Context(), openShift()); err == nil || errors.Is(err, ErrNoFirewall) {
			t.Errorf("%s --version fails: got %v, error %v, want an error about it", name, f, err)
		}
		must(t, os.Remove(path))
	}
	writeProgram(t, filepath.Join(dir, iptablesProgram), strings.ReplaceAll(rejecting, "PROGRAM", program))
	f, err := NewFirewall(t.Context(), openShift())
	must(t, err)
	if got := f.Backend(); got != BackendIPTables {
		t.Errorf("got backend %s, want %s", got, BackendIPTables)
	}
	_, err = f.Sync(t.Context())
	wantError(t, err, "RULE_INSERT failed", "--firewall=nftables")
}

// An iptables-legacy that fails beside iptables matters only if the kernel has tables for it, which may have the agent's rules.
func TestFindPrograms_legacyFails(t *testing.T) {
	aloneInNetNS(t)
	legacy, err := exec.LookPath(legacyProgram)
	must(t, err)
	dir := onlyPrograms(t, iptablesProgram)
	writeProgram(t, filepath.Join(dir, legacyProgram), "#!/bin/sh\nexit 1\n")
	if found, err := findPrograms(); err != nil || len(found) != 1 {
		t.Errorf("without tables: got programs %v, error %v, want iptables", found, err)
	}
	if out, err := exec.CommandContext(t.Context(), legacy, "-t", "mangle", "-L").CombinedOutput(); err != nil {
		t.Skipf("needs root and ip_tables: %v: %s", err, out)
	}
	if _, err := findPrograms(); err == nil {
		t.Error("with a table: got no error, want one about iptables-legacy")
	}
}

func TestNewFirewall_errors(t *testing.T) {
	aloneInNetNS(t)
	onlyPrograms(t)
	_, err := NewFirewall(t.Context(), openShift())
	if !errors.Is(err, ErrNoFirewall) {
		t.Errorf("without programs: got error %v, want %v", err, ErrNoFirewall)
	}
	wantError(t, err, "find iptables", "install iptables", "nft 1.0.1", "nft_chain_nat")
	for program, want := range map[FirewallProgram]string{FirewallIPTables: "--firewall=nftables", FirewallNFTables: "--firewall=iptables"} {
		c := openShift()
		c.Program = program
		_, err := NewFirewall(t.Context(), c)
		wantError(t, err, "--firewall="+string(program), want)
	}
}

// The start runs no iptables that changes a rule.
func TestNewFirewall_writesNothing(t *testing.T) {
	aloneInNetNS(t)
	before := sh(t, "nft list ruleset")
	_, err := NewFirewall(t.Context(), openShift())
	must(t, err)
	if after := sh(t, "nft list ruleset"); strings.Contains(after, chainPrefix) {
		t.Errorf("got rules\n%s\nwant those before:\n%s", after, before)
	}
}

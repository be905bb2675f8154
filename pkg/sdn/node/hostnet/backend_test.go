package hostnet

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/nftables"
)

const legacy = backend("iptables-legacy")

func TestFindIPTables(t *testing.T) {
	for _, test := range []struct{ name, host, want string }{
		{"no rules", "", "nf_tables"},
		{"kubelet on nft", "iptables-nft -t mangle -N KUBE-KUBELET-CANARY", "nf_tables"},
		{"kubelet on legacy", legacy.command() + " -t mangle -N KUBE-KUBELET-CANARY", "legacy"},
		{"other rules on legacy", legacy.command() + " -t mangle -N DOCKER", "nf_tables"},
		{"left on legacy, kube-proxy on nft", legacy.command() + " -t mangle -N KUBE-PROXY-CANARY; iptables-nft -t mangle -N KUBE-PROXY-CANARY", "nf_tables"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inNetNS(t)
			sh(t, test.host)
			found, err := findIPTables(t.Context())
			must(t, err)
			got := "nf_tables"
			must(t, found.used.NewChain("filter", "PROBE"))
			if strings.Contains(sh(t, legacy.command()+" -S"), "PROBE") {
				got = "legacy"
			}
			if got != test.want {
				t.Errorf("got backend %s, want %s", got, test.want)
			}
		})
	}
}

// The backend is one that the kernel supports. scripts/test-kernel.sh masks the module of one backend, then that of the other.
func TestNewFirewall_kernelWithOneBackend(t *testing.T) {
	inNetNS(t)
	want := "iptables-nft"
	if out, err := exec.Command(want, "-S").CombinedOutput(); err != nil {
		t.Logf("this kernel has no nf_tables: %v: %s", err, out)
		want = "iptables-legacy"
	}
	f, err := NewFirewall(t.Context(), openShift())
	must(t, err)
	_, err = f.Sync(t.Context())
	must(t, err)
	if rules := sh(t, want+"-save"); !strings.Contains(rules, chainPrefix+"MASQUERADE") {
		t.Errorf("%s after Sync: got\n%s", want, rules)
	}
	t.Log("the rules are in ", want)
	all, err := AllFirewalls(t.Context(), openShift())
	must(t, err)
	for _, f := range all {
		must(t, f.Remove(t.Context()))
	}
	if rules := sh(t, want+"-save"); strings.Contains(rules, chainPrefix) {
		t.Errorf("%s after Remove: got\n%s", want, rules)
	}
}

// After the host changed its backend, or kube-proxy started after the agent, rules in the previous backend are removed.
func TestFirewall_backendChanged(t *testing.T) {
	inNetNS(t)
	const ofKubelet = " -t mangle -N KUBE-KUBELET-CANARY"
	for _, test := range []struct{ used, other backend }{
		{"iptables-nft", "iptables-legacy"}, {"iptables-legacy", "iptables-nft"}, {"iptables-nft", "iptables-legacy"},
	} {
		sh(t, test.used.command()+ofKubelet)
		f, err := NewFirewall(t.Context(), openShift())
		must(t, err)
		_, err = f.Sync(t.Context())
		must(t, err)
		if rules := sh(t, string(test.used)+"-save"); !strings.Contains(rules, chainPrefix) {
			t.Errorf("%s, the backend of the host: got\n%s", test.used, rules)
		}
		if rules := sh(t, string(test.other)+"-save"); strings.Contains(rules, chainPrefix) {
			t.Errorf("%s, the other backend: got\n%s", test.other, rules)
		}
		sh(t, test.used.command()+" -t mangle -X KUBE-KUBELET-CANARY")
	}
}

// Detection of the backend does not create tables: iptables-legacy would create each table that it lists.
func TestFindIPTables_createsNoTables(t *testing.T) {
	inNetNS(t)
	if _, err := findIPTables(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := AllFirewalls(t.Context(), FirewallConfig{}); err != nil {
		t.Fatal(err)
	}
	if tables, err := legacyTables(); err != nil || len(tables) > 0 {
		t.Errorf("got tables %v, error %v, want none", tables, err)
	}
	sh(t, legacy.command()+" -t raw -S")
	f, err := NewFirewall(t.Context(), openShift())
	must(t, err)
	_, err = f.Sync(t.Context())
	must(t, err)
	if tables, err := legacyTables(); err != nil || !slices.Equal(tables, []string{"raw"}) {
		t.Errorf("got tables %v, error %v, want raw", tables, err)
	}
}

func TestAllFirewalls(t *testing.T) {
	inNetNS(t)
	for _, b := range []backend{"iptables-nft", "iptables-legacy"} {
		f, _ := b.firewall(t, openShift())
		if _, err := f.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	all, err := AllFirewalls(t.Context(), FirewallConfig{})
	must(t, err)
	for _, f := range all {
		must(t, f.Remove(t.Context()))
	}
	if left := sh(t, "iptables-nft-save; iptables-legacy-save"); strings.Contains(left, chainPrefix) {
		t.Errorf("after Remove: got\n%s", left)
	}
}

// A backend that fails is not treated as one without rules.
func TestAllFirewalls_backendFails(t *testing.T) {
	aloneInNetNS(t)
	if supported, err := nftables.Supported(); err != nil || !supported {
		t.Fatalf("got nf_tables %v, error %v, want true", supported, err)
	}
	for _, test := range []struct {
		answer error
		fails  bool
	}{{unix.EINVAL, false}, {unix.EPROTONOSUPPORT, false}, {unix.EPERM, true}, {unix.ENOBUFS, true}} {
		if supported, err := nftables.IsSupported(test.answer); supported || (err != nil) != test.fails {
			t.Errorf("%v: got %v, error %v, want false and error %v", test.answer, supported, err, test.fails)
		}
	}
	dir := t.TempDir()
	writeProgram(t, filepath.Join(dir, "iptables"), []byte("#!/bin/sh\n[ \"$1\" != --version ] || exec iptables-nft --version\necho locked >&2; exit 4\n"))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	if _, err := findIPTables(t.Context()); err == nil {
		t.Error("findIPTables: got no error")
	}
	all, err := AllFirewalls(t.Context(), FirewallConfig{})
	must(t, err)
	if len(all) == 0 {
		t.Fatal("AllFirewalls: got none, want one for the backend that fails")
	}
	sh(t, "iptables-nft -N OVSDN-FORWARD")
	if err := all[0].Remove(t.Context()); err == nil {
		t.Error("Remove from the backend that fails: got no error")
	}
}

package hostnet

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const legacy = backend("iptables-legacy")

func TestBackendIsThatOfKubeletAndKubeProxy(t *testing.T) {
	for _, test := range []struct{ name, host, want string }{
		{"nobody's rules", "", "nf_tables"},
		{"kubelet on nft", "iptables-nft -t mangle -N KUBE-KUBELET-CANARY", "nf_tables"},
		{"kubelet on legacy", legacy.command() + " -t mangle -N KUBE-KUBELET-CANARY", "legacy"},
		{"other rules on legacy", legacy.command() + " -t mangle -N DOCKER", "nf_tables"},
		{"left on legacy, kube-proxy on nft", legacy.command() + " -t mangle -N KUBE-PROXY-CANARY; iptables-nft -t mangle -N KUBE-PROXY-CANARY", "nf_tables"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inNetNS(t)
			sh(t, test.host)
			found, err := findIPTables()
			must(t, err)
			got := "nf_tables"
			must(t, found.used.NewChain("filter", "PROBE"))
			if strings.Contains(sh(t, legacy.command()+" -S"), "PROBE") {
				got = "legacy"
			}
			if got != test.want {
				t.Errorf("its rules are %s, want %s", got, test.want)
			}
		})
	}
}

// On whatever kernel this runs: scripts/test-kernel.sh masks the module of one backend, then that of the other.
func TestBackendIsOneThatTheKernelHas(t *testing.T) {
	inNetNS(t)
	want := "iptables-nft"
	if out, err := exec.Command(want, "-S").CombinedOutput(); err != nil {
		t.Logf("this kernel has no nf_tables: %v: %s", err, out)
		want = "iptables-legacy"
	}
	f, err := NewFirewall(openShift())
	must(t, err)
	_, err = f.Sync(t.Context())
	must(t, err)
	if rules := sh(t, want+"-save"); !strings.Contains(rules, chainPrefix+"MASQUERADE") {
		t.Errorf("%s has\n%s", want, rules)
	}
	t.Log("the rules are in ", want)
	all, err := Everywhere(openShift())
	must(t, err)
	for _, f := range all {
		must(t, f.Remove(t.Context()))
	}
	if rules := sh(t, want+"-save"); strings.Contains(rules, chainPrefix) {
		t.Errorf("after their removal %s has\n%s", want, rules)
	}
}

// A host that changes its iptables, or whose kube-proxy came later than the agent, has no rules of the agent in what it used before.
func TestRulesFollowTheHostsBackend(t *testing.T) {
	inNetNS(t)
	const ofKubelet = " -t mangle -N KUBE-KUBELET-CANARY"
	for _, test := range []struct{ used, other backend }{
		{"iptables-nft", "iptables-legacy"}, {"iptables-legacy", "iptables-nft"}, {"iptables-nft", "iptables-legacy"},
	} {
		sh(t, test.used.command()+ofKubelet)
		f, err := NewFirewall(openShift())
		must(t, err)
		_, err = f.Sync(t.Context())
		must(t, err)
		if rules := sh(t, string(test.used)+"-save"); !strings.Contains(rules, chainPrefix) {
			t.Errorf("%s, which is used, has\n%s", test.used, rules)
		}
		if rules := sh(t, string(test.other)+"-save"); strings.Contains(rules, chainPrefix) {
			t.Errorf("%s has\n%s", test.other, rules)
		}
		sh(t, test.used.command()+" -t mangle -X KUBE-KUBELET-CANARY")
	}
}

// Only what the host has is asked: to look at the older backend's tables makes them.
func TestLookingForABackendMakesNoTables(t *testing.T) {
	inNetNS(t)
	if _, err := findIPTables(); err != nil {
		t.Fatal(err)
	}
	if _, err := Everywhere(FirewallConfig{}); err != nil {
		t.Fatal(err)
	}
	if tables, err := tablesOfLegacy(); err != nil || len(tables) > 0 {
		t.Errorf("there are %v, %v", tables, err)
	}
	sh(t, legacy.command()+" -t raw -S")
	f, err := NewFirewall(openShift())
	must(t, err)
	_, err = f.Sync(t.Context())
	must(t, err)
	if tables, err := tablesOfLegacy(); err != nil || !slices.Equal(tables, []string{"raw"}) {
		t.Errorf("beside raw there are %v, %v", tables, err)
	}
}

func TestRulesAreRemovedFromAllBackends(t *testing.T) {
	inNetNS(t)
	for _, b := range []backend{"iptables-nft", "iptables-legacy"} {
		f, _ := b.firewall(t, openShift())
		if _, err := f.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	all, err := Everywhere(FirewallConfig{})
	must(t, err)
	for _, f := range all {
		must(t, f.Remove(t.Context()))
	}
	if left := sh(t, "iptables-nft-save; iptables-legacy-save"); strings.Contains(left, chainPrefix) {
		t.Errorf("there is\n%s", left)
	}
}

// Rules that could not be asked for are not rules that are gone.
func TestBackendThatFailsIsNotTakenForNone(t *testing.T) {
	inNetNS(t)
	if there, err := hasNFTables(); err != nil || !there {
		t.Fatalf("this kernel has nf_tables, but %v, %v", there, err)
	}
	for _, test := range []struct {
		answer error
		fails  bool
	}{{unix.EINVAL, false}, {unix.EPROTONOSUPPORT, false}, {unix.EPERM, true}, {unix.ENOBUFS, true}} {
		if there, err := answersNFTables(test.answer); there || (err != nil) != test.fails {
			t.Errorf("%v: it says %v, %v", test.answer, there, err)
		}
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "iptables"), []byte("#!/bin/sh\n[ \"$1\" != --version ] || exec iptables-nft --version\necho locked >&2; exit 4\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	if _, err := findIPTables(); err == nil {
		t.Error("to look for the host's backend has not failed")
	}
	all, err := Everywhere(FirewallConfig{})
	must(t, err)
	if len(all) == 0 {
		t.Fatal("the backend that fails was left out")
	}
	if err := all[0].Remove(t.Context()); err == nil {
		t.Error("rules that could not be removed are said to be gone")
	}
}

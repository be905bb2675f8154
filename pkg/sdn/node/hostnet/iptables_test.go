package hostnet

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/coreos/go-iptables/iptables"
)

// recorder counts the runs of iptables, and calls after after each one that writes.
type recorder struct {
	iptablesClient
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
	return r.iptablesClient.List(table, chain)
}

func (r *recorder) NewChain(table, chain string) error {
	return r.wrote(r.iptablesClient.NewChain(table, chain), "%s new %s", table, chain)
}

func (r *recorder) ClearAndDeleteChain(table, chain string) error {
	return r.wrote(r.iptablesClient.ClearAndDeleteChain(table, chain), "%s remove %s", table, chain)
}

func (r *recorder) Insert(table, chain string, pos int, rule ...string) error {
	return r.wrote(r.iptablesClient.Insert(table, chain, pos, rule...), "%s insert %s %d", table, chain, pos)
}

func (r *recorder) Delete(table, chain string, rule ...string) error {
	return r.wrote(r.iptablesClient.Delete(table, chain, rule...), "%s delete %s", table, chain)
}

func (r *recorder) DeleteById(table, chain string, id int) error {
	return r.wrote(r.iptablesClient.DeleteById(table, chain, id), "%s delete %s %d", table, chain, id)
}

// backend is the name of one of the two programs iptables.
type backend string

// waitForLock is the option for the legacy backend, whose lock is shared by all namespaces. The nf_tables backend accepts it too.
const waitForLock = "--wait=60"

// command returns the start of a shell command.
func (b backend) command() string { return string(b) + " " + waitForLock }

// onBackends runs the test with each backend that this kernel supports, in a new network namespace.
func onBackends(t *testing.T, test func(*testing.T, backend, ns.NetNS)) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	var ran atomic.Bool
	t.Cleanup(func() { // the backends run in parallel, after the test has returned
		if !ran.Load() && !t.Failed() {
			t.Error("this host has no backend of iptables")
		}
	})
	for _, b := range []backend{"iptables-nft", "iptables-legacy"} {
		t.Run(string(b), func(t *testing.T) {
			netns := inNetNS(t)
			if out, err := exec.Command(string(b), waitForLock, "-t", "nat", "-S").CombinedOutput(); err != nil {
				t.Logf("this host has no %s: %v: %s", b, err, out)
				return
			}
			ran.Store(true)
			test(t, b, netns)
		})
	}
}

func (b backend) firewall(t *testing.T, c FirewallConfig) (*iptablesFirewall, *recorder) {
	t.Helper()
	r := &recorder{iptablesClient: b.program(t)}
	return &iptablesFirewall{iptables: r, firewallState: firewallState{rules: Rules(c), vteps: completeVTEPs()}}, r
}

// completeVTEPs returns the VTEPs of a node without peers after Restrict.
func completeVTEPs() *VTEPs {
	v := newVTEPs(kernelSets{})
	v.setComplete()
	return v
}

// newFirewall returns the Firewall of a node without peers after Restrict.
func newFirewall(t *testing.T, c FirewallConfig) *iptablesFirewall {
	t.Helper()
	f, err := newIPTablesFirewall(t.Context(), c)
	must(t, err)
	f.vteps.setComplete()
	return f
}

func (b backend) program(t *testing.T) *iptables.IPTables {
	t.Helper()
	ipt, err := iptables.New(iptables.Path(string(b)), iptables.Timeout(lockWait))
	must(t, err)
	return ipt
}

// save returns the rules of the namespace as iptables-save prints them, without comments, counters and empty tables.
func (b backend) save(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	for _, table := range []string{"mangle", "nat", "filter", "raw"} {
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

// sorted returns sorted lines: the order of chains differs.
func sorted(rules string) []string {
	lines := strings.Split(rules, "\n")
	slices.Sort(lines)
	return lines
}

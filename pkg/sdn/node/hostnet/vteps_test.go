package hostnet

import (
	"context"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/coreos/go-iptables/iptables"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// entries returns the entries of the kernel's set.
func entries(t *testing.T) []string {
	t.Helper()
	set, err := netlink.IpsetList(vtepSet)
	must(t, err)
	var all []string
	for _, e := range set.Entries {
		all = append(all, e.IP.String())
	}
	slices.Sort(all)
	return all
}

func wantEntries(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, entries(t)); diff != "" {
		t.Errorf("entries of the set (-want +got):\n%s", diff)
	}
}

func TestVTEPsFollowHostSubnets(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		f, _ := b.firewall(t, openShift())
		ctx := t.Context()
		allow := func(name, addr string) { f.VTEPs().Allow(ctx, name, netip.MustParseAddr(addr)) }
		settle := func(name, addr string) { f.VTEPs().Settle(ctx, name, netip.MustParseAddr(addr)) }
		allow("node2", "192.0.2.2") // before the set exists
		syncFirewall(t, f)
		wantEntries(t, "192.0.2.2")
		allow("node3", "192.0.2.3")
		allow("node2", "192.0.2.22")
		wantEntries(t, "192.0.2.2", "192.0.2.22", "192.0.2.3")
		settle("node2", "192.0.2.22")
		wantEntries(t, "192.0.2.22", "192.0.2.3")
		// Two nodes swap addresses.
		allow("node2", "192.0.2.3")
		settle("node2", "192.0.2.3")
		wantEntries(t, "192.0.2.3")
		allow("node3", "192.0.2.22")
		settle("node3", "192.0.2.22")
		wantEntries(t, "192.0.2.22", "192.0.2.3")
		f.VTEPs().Settle(ctx, "node2", netip.Addr{})
		wantEntries(t, "192.0.2.22")
		f.VTEPs().Settle(ctx, "node2", netip.Addr{})

		// Changes by other programs are corrected.
		must(t, netlink.IpsetFlush(vtepSet))
		must(t, kernelSets{}.add(ctx, vtepSet, netip.MustParseAddr("203.0.113.1")))
		want := []string{"set OVSDN-VTEPS: added 192.0.2.22", "set OVSDN-VTEPS: removed 203.0.113.1"}
		if diff := cmp.Diff(want, syncFirewall(t, f)); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		wantEntries(t, "192.0.2.22")
		if changes := syncFirewall(t, f); len(changes) > 0 {
			t.Errorf("second Sync: got changes %q", changes)
		}

		must(t, f.Remove(ctx))
		for range 2 {
			must(t, RemoveSets(ctx))
			if _, err := netlink.IpsetList(vtepSet); err != unix.ENOENT { //nolint:errorlint // netlink returns the number itself
				t.Errorf("set after RemoveSets: got %v, want none", err)
			}
		}
	})
}

// A new agent changes neither the set nor its rule before Restrict: VXLAN of the previous agent's peers is accepted until then.
func TestVTEPs_beforeRestrict(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		ctx := t.Context()
		start := func() *iptablesFirewall {
			f, _ := b.firewall(t, openShift())
			f.vteps = newVTEPs(kernelSets{})
			return f
		}
		restricted := func() bool { return strings.Contains(b.save(t), "--match-set "+vtepSet) }
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
			t.Errorf("got no rule of the set:\n%s", b.save(t))
		}

		second := start() // node3 was deleted while the agent was stopped
		if changes := syncFirewall(t, second); len(changes) > 0 {
			t.Errorf("Sync of a new agent without peers: got changes %q", changes)
		}
		second.VTEPs().Allow(ctx, "node2", netip.MustParseAddr("192.0.2.2"))
		second.VTEPs().Allow(ctx, "node4", netip.MustParseAddr("192.0.2.4"))
		wantEntries(t, "192.0.2.2", "192.0.2.3", "192.0.2.4")
		_, err = second.Restrict(ctx)
		must(t, err)
		wantEntries(t, "192.0.2.2", "192.0.2.4")
	})
}

// noSets is a kernel without ip_set.
type noSets struct{ ipsets }

func (noSets) list(context.Context, string) (*netlink.IPSetResult, error) { return nil, unix.EINVAL }

// On a kernel without sets all other rules are installed. VXLAN is accepted from any address, which is reported.
func TestFirewall_kernelWithoutSets(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		withoutMatch := func(f *iptablesFirewall) {
			program, err := exec.LookPath(string(b))
			must(t, err)
			dir := t.TempDir()
			writeProgram(t, filepath.Join(dir, "iptables"), []byte("#!/bin/sh\ncase \" $* \" in *' --match-set '*) echo 'No chain/target/match by that name.' >&2; exit 1;; esac\nexec "+program+" \"$@\"\n"))
			f.iptables, err = iptables.New(iptables.Path(filepath.Join(dir, "iptables")), iptables.Timeout(lockWait))
			must(t, err)
		}
		for name, cripple := range map[string]func(*iptablesFirewall){
			"ip_set": func(f *iptablesFirewall) { f.vteps.sets = noSets{kernelSets{}} },
			"xt_set": withoutMatch,
		} {
			f, _ := b.firewall(t, openShift())
			cripple(f)
			syncFirewall(t, f)
			skipped := f.Skipped()
			if len(skipped) != 2 || skipped[0].Feature != FeatureVTEPs || skipped[1].Feature != FeatureEgressNotrack {
				t.Fatalf("without %s: got Skipped %v, want %s and %s", name, skipped, FeatureVTEPs, FeatureEgressNotrack)
			}
			wantError(t, skipped[0].Err, chainPrefix+"GUARD-VXLAN", name)
			if rules := b.save(t); !strings.Contains(rules, "VXLAN from nodes") || strings.Contains(rules, "--match-set") {
				t.Errorf("without %s: got rules\n%s", name, rules)
			}
			f.VTEPs().Allow(t.Context(), "node2", netip.MustParseAddr("192.0.2.2"))
			f.VTEPs().Settle(t.Context(), "node2", netip.Addr{})
		}
		// The modules are loaded later.
		f, _ := b.firewall(t, openShift())
		syncFirewall(t, f)
		if skipped := f.Skipped(); skipped != nil || !strings.Contains(b.save(t), "--match-set") {
			t.Errorf("got Skipped %v and rules\n%s", skipped, b.save(t))
		}
	})
}

func TestVTEPs_setOfAnotherProgram(t *testing.T) {
	inNetNS(t)
	must(t, netlink.IpsetCreate(vtepSet, "hash:net", netlink.IpsetCreateOptions{Revision: 1}))
	f, _ := backend("iptables-nft").firewall(t, openShift())
	syncFirewall(t, f)
	skipped := f.Skipped()
	if len(skipped) != 1 {
		t.Fatalf("Skipped: got %v, want one", skipped)
	}
	wantError(t, skipped[0].Err, "hash:net")
	if got, want := skipped[0].Remedy, "ipset destroy OVSDN-VTEPS"; !strings.Contains(got, want) {
		t.Errorf("remedy: got %q, want %q in it", got, want)
	}
	must(t, f.Remove(t.Context()))
	must(t, RemoveSets(t.Context()))
	set, err := netlink.IpsetList(vtepSet)
	must(t, err)
	if set.TypeName != "hash:net" {
		t.Errorf("set after RemoveSets: got type %s, want hash:net", set.TypeName)
	}
}

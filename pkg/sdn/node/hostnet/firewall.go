package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-iptables/iptables"
	"k8s.io/klog/v2"
)

// FirewallConfig is what the rules depend on.
type FirewallConfig struct {
	ClusterNetworks []netip.Prefix // only IPv4 ones get rules
	VXLANPort       uint16         // in UDP

	// MasqueradeServices hides pods behind this node when kube-proxy sends them to a pod. The endpoint then answers to
	// this node, where the connection is known; else it would answer to the client directly, from an
	// address that the client never spoke to. For modes that judge no identity by a packet's source.
	MasqueradeServices bool

	// SourcesJudged is for the modes that judge by sources. What the node forwards for others says so by RoutedDSCP, since masquerading may
	// give it the node's own source; and what pods send to pods through the node keeps theirs.
	SourcesJudged  bool
	ServiceNetwork netip.Prefix // with SourcesJudged
	RoutedDSCP     uint8        // with SourcesJudged

	// ForwardedDSCP is in packets to this node's own address that are forwarded to a pod, as kube-proxy does for node ports: it
	// masquerades these, too. It is also in the replies that a pod receives through a node port.
	ForwardedDSCP uint8 // with SourcesJudged
}

// The prefixes of chains' names: ours, and those of kube-proxy and kubelet.
const (
	chainPrefix     = "OVSDN-"
	kubeChainPrefix = "KUBE-"
)

// kubeMark is on packets that kube-proxy is going to masquerade: bit 14, its default (--iptables-masquerade-bit).
const kubeMark = "0x4000/0x4000"

// Rules returns the rules that the node needs.
//
// The guard is in table mangle, which forwarded packets pass before table filter: nothing that others accept there,
// such as kube-proxy's established connections, goes round it.
func Rules(c FirewallConfig) Ruleset {
	networks := make([]string, 0, len(c.ClusterNetworks))
	for _, n := range c.ClusterNetworks {
		if n.Addr().Is4() {
			networks = append(networks, n.String())
		}
	}
	vxlan := []string{"-p", "udp", "-m", "udp", "--dport", strconv.Itoa(int(c.VXLANPort))}
	return append(Ruleset{
		{
			Table: tableMangle, Name: chainPrefix + "GUARD", BuiltIn: "FORWARD",
			Comment: "ovsdn: what must not be forwarded",
			Rules:   slices.Concat(tenantRules(c, networks), guardRules(networks, vxlan)),
		},
		{
			Table: tableMangle, Name: chainPrefix + "GUARD-INPUT", BuiltIn: "INPUT",
			Comment: "ovsdn: what must not reach the VTEP",
			Rules:   []Rule{translatedVXLAN(vxlan)},
		},
		{
			Table: tableNAT, Name: chainPrefix + "MASQUERADE", BuiltIn: "POSTROUTING",
			Comment: "ovsdn: pods outside the cluster network",
			Rules:   masqueradeRules(networks, c.MasqueradeServices),
		},
		{
			Table: tableFilter, Name: chainPrefix + "INPUT", BuiltIn: "INPUT",
			Comment: "ovsdn: to this node",
			Rules: []Rule{
				rule(vxlan, "VXLAN from nodes", "ACCEPT"),
				rule([]string{"-i", Tun0Name}, "from pods", "ACCEPT"),
			},
		},
		{
			Table: tableFilter, Name: chainPrefix + "FORWARD", BuiltIn: "FORWARD",
			Comment: "ovsdn: from and to pods",
			Rules:   forwardRules(networks),
		},
		{
			Table: tableMangle, Name: chainPrefix + "ROUTED", BuiltIn: "PREROUTING",
			Comment: "ovsdn: routed by this node for others",
			Rules:   routedRules(c, networks),
		},
	}, notrackChains(vxlan)...)
}

// routedRules mark what came to this node with an address of the pods or of a service, before that or the source is changed. In another mode
// the chain is there too, and empty: so a change of the mode empties it.
func routedRules(c FirewallConfig, networks []string) []Rule {
	if !c.SourcesJudged {
		return nil
	}
	var rules []Rule
	for _, n := range append(slices.Clone(networks), c.ServiceNetwork.String()) {
		rules = append(rules, rule([]string{"-d", n, "!", "-i", Tun0Name}, "routed for others",
			"DSCP", "--set-dscp", fmt.Sprintf("%#02x", c.RoutedDSCP)))
	}
	return rules
}

// tenantRules keep the source of pods that reach pods through a node port or an address of a load balancer: kube-proxy would masquerade
// them. It still does so for a pod that a service leads to itself, which must not see its own address; that is a connection to the
// service's own address.
func tenantRules(c FirewallConfig, networks []string) []Rule {
	if !c.SourcesJudged {
		return nil
	}
	var rules []Rule
	for _, n := range networks {
		rules = append(rules, rule([]string{"-s", n, "!", "-i", Tun0Name, "-o", Tun0Name}, "pod address from elsewhere", "DROP"))
	}
	for _, n := range networks {
		rules = append(rules, rule([]string{"-s", n, "-i", Tun0Name, "-o", Tun0Name, "-m", "conntrack", "!", "--ctorigdst", c.ServiceNetwork.String()},
			"pod to pod through a node port", "MARK", "--set-xmark", "0x0/0x4000"))
	}
	forwarded := []string{"DSCP", "--set-dscp", fmt.Sprintf("%#02x", c.ForwardedDSCP)}
	nodePort := []string{"-o", Tun0Name, "-m", "conntrack", "--ctstate", "DNAT", "!", "--ctorigdst", c.ServiceNetwork.String()}
	return append(rules,
		rule(append([]string{"!", "-i", Tun0Name}, nodePort...), "from outside through a node port", forwarded...),
		// The reply has the node's own address as its source.
		rule(slices.Concat([]string{"-i", Tun0Name}, nodePort, []string{"--ctdir", "REPLY"}), "reply of a pod through a node port", forwarded...))
}

// masqueradeRules leave what kube-proxy marked to kube-proxy, which also clears its mark. In iptables mode its chain
// comes before ours anyway; in nftables mode it is another hook of the same priority, and which of the two is first
// depends on which was made first.
func masqueradeRules(networks []string, services bool) []Rule {
	rules := []Rule{rule([]string{"-m", "mark", "--mark", kubeMark}, "masqueraded by kube-proxy", "RETURN")}
	if services {
		for _, n := range networks {
			rules = append(rules, rule([]string{"-s", n, "-o", Tun0Name, "-m", "conntrack", "--ctstate", "DNAT"}, "pod to pod through a service", "MASQUERADE"))
		}
	}
	const comment = "pod to the world"
	if len(networks) == 1 {
		return append(rules, rule([]string{"-s", networks[0], "!", "-d", networks[0]}, comment, "MASQUERADE"))
	}
	for _, n := range networks {
		rules = append(rules, rule([]string{"-d", n}, "to a pod", "RETURN"))
	}
	for _, n := range networks {
		rules = append(rules, rule([]string{"-s", n}, comment, "MASQUERADE"))
	}
	return rules
}

func forwardRules(networks []string) []Rule {
	var rules []Rule
	for _, n := range networks {
		rules = append(rules,
			rule([]string{"-s", n}, "from pods", "ACCEPT"),
			rule([]string{"-d", n}, "to pods", "ACCEPT"))
	}
	return rules
}

func rule(match []string, comment string, target ...string) Rule {
	return slices.Concat(match, []string{"-m", "comment", "--comment", comment, "-j"}, target)
}

// program is what Firewall uses of go-iptables.
type program interface {
	List(table, chain string) ([]string, error)
	NewChain(table, chain string) error
	ClearAndDeleteChain(table, chain string) error
	Insert(table, chain string, pos int, rule ...string) error
	Delete(table, chain string, rule ...string) error
	DeleteById(table, chain string, id int) error
}

// Firewall holds the host's iptables to the rules. Its calls must not overlap.
//
// Rules are in chains of our own, and only those chains and the jumps to them are touched. Chains are listed one by one, since
// listing a table costs a second where kube-proxy has 20,000 services, and a chain 5 ms anywhere.
type Firewall struct {
	iptables program
	rules    Ruleset
	// unused has what there may be of ours in the backend that the host does not use; nil once Sync has removed it.
	unused *Firewall
	fault  fault

	mu      sync.Mutex
	skipped map[string]error // causes of missing optional chains, by chain name
}

// lockWait is how long one run of iptables waits for another program to release the lock, in seconds.
const lockWait = 5

// NewFirewall finds iptables on the PATH, with the backend that the host uses, and fails if it is not there.
func NewFirewall(c FirewallConfig) (*Firewall, error) {
	found, err := findIPTables()
	if err != nil {
		return nil, err
	}
	f := &Firewall{iptables: found.used, rules: Rules(c)}
	// To ask for a table would make it.
	if has := f.rules.in(found.has); len(has) > 0 {
		f.unused = &Firewall{iptables: found.other, rules: has}
	}
	return f, nil
}

// Sync makes our chains equal to the rules and returns what it had to change, for logging. A chain is changed rule by
// rule, new ones first, and never emptied on the way: no packet passes without a rule that it had before and has after.
//
// A missing jump is put first in the built-in chain, behind kube-proxy's if they lead: what kube-proxy rejects or drops, we must
// not accept before. A jump that is there stays where it is: who puts a rule before it later means to override it.
func (f *Firewall) Sync(ctx context.Context) (changes []string, err error) {
chains:
	for _, c := range f.rules {
		for _, step := range []func(Chain) ([]string, error){f.fill, f.jump} { // no jump to a chain that is not full
			if err := ctx.Err(); err != nil {
				return changes, err
			}
			done, err := step(c)
			changes = append(changes, done...)
			if err != nil && c.Optional && ctx.Err() == nil {
				f.skip(ctx, c, err)
				continue chains
			}
			if err != nil {
				return changes, fmt.Errorf("set up iptables chain %s of table %s: %w", c.Name, c.Table, err)
			}
		}
		if c.Optional {
			f.done(c)
		}
	}
	if f.unused != nil { // last, so that no packet passes without a rule
		if err := f.unused.Remove(ctx); err != nil {
			return changes, fmt.Errorf("the iptables backend that this host does not use: %w", err)
		}
		f.unused = nil
	}
	return changes, nil
}

// fill makes the chain, with its rules.
func (f *Firewall) fill(c Chain) (changes []string, err error) {
	have, exists, err := f.list(c.Table, c.Name)
	if err != nil {
		return nil, err
	}
	if !exists {
		if err := f.iptables.NewChain(c.Table, c.Name); err != nil {
			return nil, fmt.Errorf("it can be neither listed nor made (`nft list chain ip %s %s` says if nft holds one that iptables cannot read): %w", c.Table, c.Name, err)
		}
		changes = append(changes, fmt.Sprintf("-t %s -N %s", c.Table, c.Name))
	}
	todo := edits(have, c.Rules)
	now := slices.Clone(have)
	for _, e := range todo {
		if e.insert != nil {
			if err := f.iptables.Insert(c.Table, c.Name, e.at, e.insert...); err != nil {
				return changes, err
			}
			changes = append(changes, fmt.Sprintf("-t %s -I %s %d %s", c.Table, c.Name, e.at, e.insert))
			now = slices.Insert(now, e.at-1, e.insert)
			continue
		}
		if err := f.iptables.DeleteById(c.Table, c.Name, e.at); err != nil {
			return changes, err
		}
		changes = append(changes, fmt.Sprintf("-t %s -D %s %s", c.Table, c.Name, now[e.at-1]))
		now = slices.Delete(now, e.at-1, e.at)
	}
	if len(todo) == 0 {
		return changes, nil
	}
	// Else the same edits would be made for ever.
	if have, _, err = f.list(c.Table, c.Name); err != nil {
		return changes, err
	}
	if !slices.EqualFunc(have, c.Rules, Rule.equal) {
		return changes, fmt.Errorf("it does not list what was written: does something else write to it? it has %q, not %q", have, c.Rules)
	}
	return changes, nil
}

// jump makes the built-in chain jump to the chain, and to none of an older version.
func (f *Firewall) jump(c Chain) (changes []string, err error) {
	have, _, err := f.list(c.Table, c.BuiltIn)
	if err != nil {
		return nil, err
	}
	if !containsRule(have, c.Jump()) {
		at := 1
		for at <= len(have) && strings.HasPrefix(have[at-1].target(), kubeChainPrefix) {
			at++
		}
		if err := f.iptables.Insert(c.Table, c.BuiltIn, at, c.Jump()...); err != nil {
			return nil, err
		}
		changes = append(changes, fmt.Sprintf("-t %s -I %s %d %s", c.Table, c.BuiltIn, at, c.Jump()))
	}
	for _, r := range have {
		if !strings.HasPrefix(r.target(), chainPrefix) || r.equal(c.Jump()) {
			continue
		}
		if err := f.iptables.Delete(c.Table, c.BuiltIn, r...); err != nil {
			return changes, err
		}
		changes = append(changes, fmt.Sprintf("-t %s -D %s %s", c.Table, c.BuiltIn, r))
		if r.target() != c.Name {
			if err := f.iptables.ClearAndDeleteChain(c.Table, r.target()); err != nil {
				return changes, err
			}
			changes = append(changes, fmt.Sprintf("-t %s -X %s", c.Table, r.target()))
		}
	}
	return changes, nil
}

// list returns a chain's rules, and whether the chain is there.
func (f *Firewall) list(table, chain string) (rules []Rule, exists bool, err error) {
	lines, err := f.iptables.List(table, chain)
	// Status 1 is a chain that is missing. One that iptables cannot read, because nft wrote it, has the same status; it
	// cannot be made anew, which then gives the reason.
	if failed := (*iptables.Error)(nil); errors.As(err, &failed) && failed.ExitStatus() == 1 {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	for _, line := range lines {
		r, ok, err := parseRule(line)
		if err != nil {
			return nil, false, err
		}
		if ok {
			rules = append(rules, r)
		}
	}
	return rules, true, nil
}

// Remove deletes our chains and the jumps to them, for an uninstall. It goes on past errors and joins them.
func (f *Firewall) Remove(ctx context.Context) error {
	var errs []error
	for _, c := range slices.Backward(f.rules) {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if err := f.remove(c); err != nil {
			errs = append(errs, fmt.Errorf("remove iptables chain %s of table %s: %w", c.Name, c.Table, err))
		}
	}
	return errors.Join(errs...)
}

func (f *Firewall) remove(c Chain) error {
	have, _, err := f.list(c.Table, c.BuiltIn)
	if c.Optional && isNoTable(err) {
		return nil
	}
	if err != nil {
		return err
	}
	gone := []string{c.Name}
	for _, r := range have {
		if !strings.HasPrefix(r.target(), chainPrefix) {
			continue
		}
		if err := f.iptables.Delete(c.Table, c.BuiltIn, r...); err != nil {
			return err
		}
		if !slices.Contains(gone, r.target()) {
			gone = append(gone, r.target())
		}
	}
	for _, chain := range gone {
		if err := f.iptables.ClearAndDeleteChain(c.Table, chain); err != nil {
			return err
		}
	}
	return nil
}

// Run keeps the rules in place until the context ends: it syncs now, every interval, and as soon as something
// changes a chain that concerns us. The latter needs iptables on nftables (iptables --version says so).
func (f *Firewall) Run(ctx context.Context, interval time.Duration) {
	keep(klog.NewContext(ctx, klog.FromContext(ctx).WithValues("part", "firewall")), interval, f.Sync, f.watch, &f.fault)
}

// Healthy returns what keeps Run from making the rules right, if that lasts. It may be called at any time.
func (f *Firewall) Healthy() error { return f.fault.get() }

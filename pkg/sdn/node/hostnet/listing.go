package hostnet

import (
	"errors"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"
)

// allChains in place of a chain lists those of a table: the client has no other way to do so, and adds this option anyway.
const allChains = "--wait"

// maxTableLines is the size from which a table is listed by chain: to print 1,000 rules takes longer than to start iptables for each of the agent's chains.
const maxTableLines = 1000

// tableListings are the tables as one Sync has listed them. They show that chains need no change, without a run of iptables for each chain.
type tableListings struct {
	byChain map[string]map[string][]string // lines of `iptables -S` by table and chain; nil: Sync does not run
	large   map[string]bool                // tables that had too many lines in a previous Sync
}

func (l *tableListings) begin() { l.byChain = map[string]map[string][]string{} }

func (l *tableListings) end() { l.byChain = nil }

// listed returns the lines of a chain from the listing of its table. ok is false if the chain must be listed.
//
// Table nat is listed by chain: to list it takes a second if kube-proxy has 20,000 services, and the agent has two chains there.
func (f *iptablesFirewall) listed(table, chain string) (lines []string, ok bool, err error) {
	if f.tables.byChain == nil || table == tableNAT || f.tables.large[table] {
		return nil, false, nil
	}
	chains, ok := f.tables.byChain[table]
	if !ok {
		if chains, err = f.listTable(table); err != nil {
			return nil, false, err
		}
		f.tables.byChain[table] = chains
	}
	lines, ok = chains[chain]
	return lines, ok, nil
}

// listTable returns the lines of each chain. It returns none if iptables can't read one of them because nft wrote it: it may read the agent's.
func (f *iptablesFirewall) listTable(table string) (map[string][]string, error) {
	lines, err := f.iptables.List(table, allChains)
	if err != nil && !isNoChain(err) {
		return nil, err
	}
	if len(lines) > maxTableLines {
		if f.tables.large == nil {
			f.tables.large = map[string]bool{}
		}
		f.tables.large[table] = true
	}
	chains := map[string][]string{}
	for _, line := range lines {
		if words := strings.SplitN(line, " ", 3); len(words) > 1 && slices.Contains([]string{"-P", "-N", "-A"}, words[0]) {
			chains[words[1]] = append(chains[words[1]], line)
		}
	}
	return chains, nil
}

// current is list for a comparison. If the chain is as desired in the listing of its table, iptables does not run. Otherwise it lists the chain, now and later in
// this Sync: the chain will be changed, and another program may have changed it since the table was listed.
func (f *iptablesFirewall) current(table, chain string, isDesired func([]Rule) bool) (rules []Rule, exists bool, err error) {
	lines, isListed, err := f.listed(table, chain)
	if err != nil {
		return nil, false, err
	}
	if isListed {
		if rules, err = parseRules(lines); err == nil && isDesired(rules) {
			return rules, true, nil
		}
		delete(f.tables.byChain[table], chain)
	}
	return f.list(table, chain)
}

// list returns a chain's rules, and whether the chain exists.
func (f *iptablesFirewall) list(table, chain string) (rules []Rule, exists bool, err error) {
	lines, exists, err := f.lines(table, chain)
	if err != nil {
		return nil, false, err
	}
	rules, err = parseRules(lines)
	return rules, exists && err == nil, err
}

// lines returns what `iptables -S CHAIN` prints.
func (f *iptablesFirewall) lines(table, chain string) (lines []string, exists bool, err error) {
	lines, err = f.iptables.List(table, chain)
	if isNoChain(err) {
		return nil, false, nil
	}
	return lines, err == nil, err
}

func parseRules(lines []string) (rules []Rule, err error) {
	for _, line := range lines {
		r, ok, err := parseRule(line)
		if err != nil {
			return nil, err
		}
		if ok {
			rules = append(rules, r)
		}
	}
	return rules, nil
}

// isNoChain reports that the chain does not exist, or that iptables can't read it because nft wrote it. NewChain then fails with the reason.
func isNoChain(err error) bool {
	failed := (*iptables.Error)(nil)
	return errors.As(err, &failed) && failed.ExitStatus() == 1
}

package hostnet

import (
	"context"
	"fmt"
	"slices"
	"strconv"
)

// RuleDrops are the packets that a rule has dropped or rejected since it was added.
type RuleDrops struct {
	Rule    string // table, chain and words
	Comment string // of the rule
	Packets uint64
}

// Drops implements Firewall.
func (f *iptablesFirewall) Drops(ctx context.Context) (all []RuleDrops, err error) {
	for _, c := range f.rules {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		lines, err := f.iptables.ListWithCounters(c.Table, c.Name)
		if c.Optional != nil && (isNoChain(err) || isNoTable(err)) {
			continue // not installed
		}
		if err != nil {
			return nil, fmt.Errorf("list counters of iptables chain %s of table %s: %w", c.Name, c.Table, err)
		}
		for _, line := range lines {
			d, ok, err := parseDrops(line)
			if err != nil {
				return nil, err
			}
			if ok {
				d.Rule = c.Table + " " + c.Name + " " + d.Rule
				all = append(all, d)
			}
		}
	}
	return all, nil
}

// parseDrops reads a line of `iptables -v -S CHAIN`. It returns false for lines that are no rules, and rules that drop nothing.
func parseDrops(line string) (d RuleDrops, ok bool, err error) {
	r, ok, err := parseRule(line)
	if err != nil || !ok {
		return d, false, err
	}
	at := slices.Index(r, "-c") // packets and bytes follow
	if target := r.target(); at < 0 || at+2 >= len(r) || target != "DROP" && target != "REJECT" {
		return d, false, nil
	}
	if d.Packets, err = strconv.ParseUint(r[at+1], 10, 64); err != nil {
		return d, false, fmt.Errorf("parse counters of iptables: %w: %s", err, line)
	}
	d.Comment = r.comment()
	d.Rule = slices.Delete(slices.Clone(r), at, at+3).String()
	return d, true, nil
}

package hostnet

import (
	"context"
	"slices"
)

// Path implements Firewall. It has the rules that the agent has written. What other programs do with the packet is not evaluated.
func (f *nftFirewall) Path(ctx context.Context, p HostPacket) (HostPath, error) {
	return pathTracer{&f.firewallState, f}.trace(ctx, p)
}

// builtIn returns the jumps of a base chain. Its policy is to accept.
func (f *nftFirewall) builtIn(table, chain string) (rules []Rule, policy string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var last []Rule
	for _, c := range f.rules {
		_, isActive := f.active[c.Name]
		switch {
		case c.Table != table || c.BuiltIn != chain || !isActive:
		case c.Last:
			last = append(last, c.Jump())
		default:
			rules = slices.Insert(rules, 0, c.Jump())
		}
	}
	return append(rules, last...), "ACCEPT", nil
}

func (f *nftFirewall) list(_, chain string) (rules []Rule, exists bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rules, exists = f.active[chain]
	return rules, exists, nil
}

// otherTables returns all tables of nf_tables but the agent's, and those of iptables' legacy backend.
func (f *nftFirewall) otherTables() (names []string, err error) {
	tables, err := listNFTTables()
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		if !t.isOwn() {
			names = append(names, t.String())
		}
	}
	legacy, err := legacyTables()
	for _, t := range legacy {
		names = append(names, "iptables-legacy table "+t)
	}
	return names, err
}

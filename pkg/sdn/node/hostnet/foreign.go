package hostnet

import (
	"slices"
	"strings"
)

// foreignChains finds the chains that other programs have changed since the agent's last write, such as by a flush of the firewall.
type foreignChains struct {
	rules   map[string][]Rule // after the last write, by TABLE/CHAIN
	jumps   map[string]bool   // TABLE/CHAIN to which the jump existed after the last write
	changed []string          // TABLE/CHAIN, sorted: not yet reported
}

func (c Chain) path() string { return c.Table + "/" + c.Name }

// sawRules compares the rules that a chain has with those of the last write. Until wroteRules, nothing is known of the chain.
func (f *foreignChains) sawRules(c Chain, have []Rule) {
	if last, ok := f.rules[c.path()]; ok && !slices.EqualFunc(have, last, Rule.equal) {
		f.add(c)
	}
	delete(f.rules, c.path())
}

func (f *foreignChains) wroteRules(c Chain) {
	if f.rules == nil {
		f.rules = map[string][]Rule{}
	}
	f.rules[c.path()] = c.Rules
}

// sawJump is given whether the jump to a chain exists.
func (f *foreignChains) sawJump(c Chain, exists bool) {
	if f.jumps[c.path()] && !exists {
		f.add(c)
	}
	delete(f.jumps, c.path())
}

func (f *foreignChains) wroteJump(c Chain) {
	if f.jumps == nil {
		f.jumps = map[string]bool{}
	}
	f.jumps[c.path()] = true
}

func (f *foreignChains) add(c Chain) {
	if at, found := slices.BinarySearchFunc(f.changed, c.path(), strings.Compare); !found {
		f.changed = slices.Insert(f.changed, at, c.path())
	}
}

// take returns the chains that other programs have changed since the last call, and that are as desired again.
func (f *foreignChains) take() (restored []string) {
	f.changed = slices.DeleteFunc(f.changed, func(path string) bool {
		if _, ok := f.rules[path]; !ok || !f.jumps[path] {
			return false
		}
		restored = append(restored, path)
		return true
	})
	return restored
}

package egresspolicy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/atomicfile"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// rulesDir is a directory with a file for each namespace whose last valid rules have DNS names, which flows do not have. It must be on a file system that a reboot
// clears, as it clears the flows. The JSON is persistent.
type rulesDir string

// savedRule is a rule in a file: one of To and Name is set.
type savedRule struct {
	To   netip.Prefix `json:"to,omitzero"`
	Name string       `json:"name,omitempty"`
	Deny bool         `json:"deny,omitempty"`
}

type savedRules struct {
	Rules    []savedRule  `json:"rules"`
	Policies []generation `json:"policies"` // lastRules.version
}

// lastRules are the last valid rules of a namespace.
type lastRules struct {
	rules   []config.EgressRule
	version []generation // of the last policies for which this agent knows that these are the last valid rules: those of the rules, or invalid ones
}

func (l lastRules) equal(other lastRules) bool {
	return slices.Equal(l.rules, other.rules) && slices.Equal(l.version, other.version)
}

const rulesSuffix = ".json"

func (d rulesDir) path(namespace string) string {
	return filepath.Join(string(d), namespace+rulesSuffix)
}

// write replaces the file of a namespace; without rules it removes it.
func (d rulesDir) write(namespace string, last lastRules) error {
	if len(last.rules) == 0 {
		if err := os.Remove(d.path(namespace)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("delete stored egress rules: %w", err)
		}
		return nil
	}
	saved := savedRules{Rules: make([]savedRule, len(last.rules)), Policies: last.version}
	for i, r := range last.rules {
		saved.Rules[i] = savedRule(r)
	}
	content, err := json.Marshal(saved)
	if err != nil {
		return fmt.Errorf("encode egress rules: %w", err)
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("store egress rules: %w", err)
	}
	if err := atomicfile.Write(d.path(namespace), content, 0o600); err != nil {
		return fmt.Errorf("store egress rules: %w", err)
	}
	return nil
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// read returns the rules by namespace, and the errors of files that are damaged.
func (d rulesDir) read() (all map[string]lastRules, damaged map[string]error, err error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, nil, ignoreNotExist(err)
	}
	all, damaged = map[string]lastRules{}, map[string]error{}
	for _, e := range entries {
		namespace, isRules := strings.CutSuffix(e.Name(), rulesSuffix)
		if !isRules {
			continue // a write that a crash interrupted
		}
		last, err := readRules(d.path(namespace))
		if err != nil {
			damaged[namespace] = err
			continue
		}
		all[namespace] = last
	}
	return all, damaged, nil
}

func readRules(path string) (last lastRules, err error) {
	content, err := os.ReadFile(path) //nolint:gosec // the agent's own directory
	if err != nil {
		return last, err
	}
	var saved savedRules
	if err := json.Unmarshal(content, &saved); err != nil {
		return last, err
	}
	if len(saved.Rules) == 0 || len(saved.Policies) == 0 {
		return last, errors.New("the file has no rules or no policies")
	}
	last = lastRules{make([]config.EgressRule, len(saved.Rules)), saved.Policies}
	for i, r := range saved.Rules {
		if last.rules[i], err = r.parse(); err != nil {
			return lastRules{}, fmt.Errorf("rule %d: %w", i, err)
		}
	}
	return last, nil
}

func (r savedRule) parse() (config.EgressRule, error) {
	if r.Name == "" && r.To.Addr().Is4() {
		return config.EgressRule(r), nil
	}
	name, err := config.ParseEgressName(r.Name)
	if err == nil && (name != r.Name || r.To.IsValid()) {
		err = errors.New("the destination is ambiguous")
	}
	return config.EgressRule(r), err
}

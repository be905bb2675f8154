package egresspolicy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/klog/v2"

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
	Rules []savedRule `json:"rules"`
}

const (
	rulesSuffix = ".json"
	tempSuffix  = ".tmp"
)

func (d rulesDir) path(namespace string) string {
	return filepath.Join(string(d), namespace+rulesSuffix)
}

// write replaces the file of a namespace; without rules it removes it.
func (d rulesDir) write(namespace string, rules []config.EgressRule) error {
	if len(rules) == 0 {
		if err := os.Remove(d.path(namespace)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("delete stored egress rules: %w", err)
		}
		return nil
	}
	saved := savedRules{Rules: make([]savedRule, len(rules))}
	for i, r := range rules {
		saved.Rules[i] = savedRule(r)
	}
	content, err := json.Marshal(saved)
	if err != nil {
		return fmt.Errorf("encode egress rules: %w", err)
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("store egress rules: %w", err)
	}
	temp := d.path(namespace) + tempSuffix
	if err = os.WriteFile(temp, content, 0o600); err == nil {
		err = os.Rename(temp, d.path(namespace))
	}
	if err != nil {
		return fmt.Errorf("store egress rules: %w", errors.Join(err, ignoreNotExist(os.Remove(temp))))
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
func (d rulesDir) read() (all map[string][]config.EgressRule, damaged map[string]error, err error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, nil, ignoreNotExist(err)
	}
	all, damaged = map[string][]config.EgressRule{}, map[string]error{}
	for _, e := range entries {
		namespace, isRules := strings.CutSuffix(e.Name(), rulesSuffix)
		if !isRules {
			continue // a write that a crash interrupted
		}
		rules, err := readRules(d.path(namespace))
		if err != nil {
			damaged[namespace] = err
			continue
		}
		all[namespace] = rules
	}
	return all, damaged, nil
}

func readRules(path string) ([]config.EgressRule, error) {
	content, err := os.ReadFile(path) //nolint:gosec // the agent's own directory
	if err != nil {
		return nil, err
	}
	var saved savedRules
	if err := json.Unmarshal(content, &saved); err != nil {
		return nil, err
	}
	if len(saved.Rules) == 0 {
		return nil, errors.New("the file has no rules")
	}
	rules := make([]config.EgressRule, len(saved.Rules))
	for i, r := range saved.Rules {
		if rules[i], err = r.parse(); err != nil {
			return nil, fmt.Errorf("rule %d: %w", i, err)
		}
	}
	return rules, nil
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

// recoverRules reads the rules with names of the previous agent: their addresses on the switch are not retained. The lock must be held.
func (p *Policies) recoverRules(ctx context.Context) error {
	all, damaged, err := p.saved.read()
	if err != nil {
		return fmt.Errorf("read stored egress rules: %w", err)
	}
	for namespace, rules := range all {
		p.written[namespace] = rules
		p.retired[namespace] = retired{rules, p.recovered[ownerOf(namespace).Cookie()].ID}
		p.savings.Add(namespace)
	}
	for namespace, err := range damaged {
		klog.FromContext(ctx).Error(err, "Failed to read stored egress rules", "namespace", namespace,
			"effect", "while its policies are invalid, all packets are denied", "action", "correct the policies, if they are invalid")
		cookie := ownerOf(namespace).Cookie()
		if f, ok := p.recovered[cookie]; ok {
			f.Rules = closed(f.ID, f.Export).Rules
			p.recovered[cookie] = f
		}
		p.written[namespace] = nil
		p.savings.Add(namespace)
	}
	return nil
}

// save stores the rules of a namespace if they have names and a restarted agent could need them, else it removes them.
func (p *Policies) save(ctx context.Context, namespace string) error {
	p.mu.Lock()
	var rules []config.EgressRule
	if n := p.namespaces[namespace]; n != nil {
		rules = n.rules
	} else {
		rules = p.retired[namespace].rules
	}
	if !slices.ContainsFunc(rules, func(r config.EgressRule) bool { return r.Name != "" }) {
		rules = nil
	}
	written, exists := p.written[namespace]
	p.mu.Unlock()
	if ctx.Err() != nil || exists == (rules != nil) && slices.Equal(written, rules) {
		return nil
	}
	err := p.saved.write(namespace, rules)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil:
		return err
	case rules == nil:
		delete(p.written, namespace)
	default:
		p.written[namespace] = rules
	}
	return nil
}

package hostnet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Rule is a rule's matches and target as separate words, in the order and spelling of `iptables -S`, so that rules can be compared.
type Rule []string

// Chain is a chain of the agent, and the built-in one that jumps to it.
type Chain struct {
	Table   string // "nat"
	Name    string // "OVSDN-MASQUERADE"
	BuiltIn string // "POSTROUTING"
	Comment string // on the jump
	Rules   []Rule

	// Fallbacks replace Rules if iptables rejects one of them, as some kernels lack a match: the first that it accepts does.
	Fallbacks [][]Rule

	// Starting are Rules and Fallbacks until the VTEPs are complete, unless the chain already matches their set; nil: no difference.
	Starting [][]Rule

	Pods func() []Rule // further rules, about pods; nil: none

	Set string // the set that the rules match, which is created before them; "": none, or that of VTEPs

	Last bool // the jump is appended to the built-in chain

	Reduced *Optional // not nil: Fallbacks that do not match its set lack the feature; Skipped reports it

	Optional *Optional // not nil: if the chain can't be installed, Sync succeeds and Skipped reports it
}

// Optional describes a chain, or a part of one, that some kernels do not support.
type Optional struct {
	Feature Feature
	Modules string // required kernel modules
	Set     string // that the rules match; "": none
}

// Feature is the purpose of an optional chain.
type Feature string

// Features of the firewall that some kernels do not support.
const (
	FeatureNotrack Feature = "notrack" // the host's conntrack does not track the tunnel
	FeatureVTEPs   Feature = "vteps"   // VXLAN is accepted from nodes only

	FeatureEgressNotrack Feature = "egress-notrack" // the host's conntrack does not track packets of egress IPs

	FeatureNotMasqueraded Feature = "not-masqueraded" // packets of pods to some hosts outside retain their source

	FeaturePodLimit Feature = "podlimit" // the entries of each pod in the host's conntrack table are limited
)

// Jump returns the rule of the built-in chain that jumps to the chain.
func (c Chain) Jump() Rule {
	return Rule{"-m", "comment", "--comment", c.Comment, "-j", c.Name}
}

// Ruleset is a list of chains in the order in which they are created.
type Ruleset []Chain

// in returns the chains that are in one of the tables.
func (r Ruleset) in(tables []string) Ruleset {
	return slices.DeleteFunc(slices.Clone(r), func(c Chain) bool { return !slices.Contains(tables, c.Table) })
}

// jumpTo reports whether a rule of the built-in chain jumps to the chain of that name.
func (r Ruleset) jumpTo(table, builtIn, name string) bool {
	return slices.ContainsFunc(r, func(c Chain) bool { return c.Table == table && c.BuiltIn == builtIn && c.Name == name })
}

// has reports whether the table's chain of that name is one of them.
func (r Ruleset) has(table, name string) bool {
	return slices.ContainsFunc(r, func(c Chain) bool { return c.Table == table && c.Name == name })
}

// String prints the rules as iptables-save does, with those about pods.
func (r Ruleset) String() string {
	var b strings.Builder
	var tables []string
	for _, c := range r {
		if !slices.Contains(tables, c.Table) {
			tables = append(tables, c.Table)
		}
	}
	for _, table := range tables {
		fmt.Fprintf(&b, "*%s\n", table)
		for _, c := range r {
			if c.Table == table {
				fmt.Fprintf(&b, ":%s - [0:0]\n", c.Name)
			}
		}
		for _, c := range r {
			if c.Table == table {
				fmt.Fprintf(&b, "-A %s %s\n", c.BuiltIn, c.Jump())
			}
		}
		for _, c := range r {
			for _, rule := range c.withPods().Rules {
				if c.Table == table {
					fmt.Fprintf(&b, "-A %s %s\n", c.Name, rule)
				}
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

func (r Rule) String() string {
	words := make([]string, len(r))
	for i, w := range r {
		words[i] = quote(w)
	}
	return strings.Join(words, " ")
}

// target returns the chain or verdict of the rule.
func (r Rule) target() string {
	if i := slices.Index(r, "-j"); i >= 0 && i+1 < len(r) {
		return r[i+1]
	}
	return ""
}

func (r Rule) equal(other Rule) bool { return slices.Equal(r, other) }

func containsRule(rules []Rule, r Rule) bool { return slices.ContainsFunc(rules, r.equal) }

// parseRule reads a line of `iptables -S CHAIN`. Lines that declare the chain are not rules.
func parseRule(line string) (r Rule, ok bool, err error) {
	words, err := splitWords(line)
	if err != nil {
		return nil, false, fmt.Errorf("parse iptables rule: %w: %s", err, line)
	}
	if len(words) < 2 || words[0] != "-A" {
		return nil, false, nil
	}
	return words[2:], true, nil
}

// quote quotes a word for splitWords if needed.
func quote(word string) string {
	if word != "" && !strings.ContainsAny(word, " \t\"\\'") {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}

// splitWords splits a line of iptables into words. Words with special characters are in double quotes, in which
// a backslash escapes the next character.
func splitWords(s string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, inQuotes, escaped := false, false, false
	for _, b := range []byte(s) {
		switch {
		case escaped:
			word.WriteByte(b)
			escaped = false
		case b == '\\' && inQuotes:
			escaped = true
		case b == '"':
			inQuotes = !inQuotes
			inWord = true
		case !inQuotes && (b == ' ' || b == '\t'):
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteByte(b)
			inWord = true
		}
	}
	if inQuotes {
		return nil, errors.New("a quote is not closed")
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

// edit is one change of a chain: the rule inserted before position at, or, without a rule, the one at that
// position deleted. Positions count from 1 and are those at the time of the edit.
type edit struct {
	at     int
	insert Rule
}

// edits returns the changes, one rule each, from have to want. All insertions precede all
// deletions, so that at no time a rule of both is missing.
func edits(have, want []Rule) []edit {
	var inserts, deletes []edit
	at := 1
	for i, j := 0, 0; i < len(have) || j < len(want); {
		switch {
		case i < len(have) && j < len(want) && have[i].equal(want[j]):
			i, j = i+1, j+1
		case i < len(have) && !containsRule(want[j:], have[i]):
			deletes = append(deletes, edit{at: at})
			i++
		default:
			inserts = append(inserts, edit{at: at, insert: want[j]})
			j++
		}
		at++
	}
	slices.Reverse(deletes) // from the end, so that earlier positions do not change
	return append(inserts, deletes...)
}

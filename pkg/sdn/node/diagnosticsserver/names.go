package diagnosticsserver

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// maxOwners is the number of owners of a flow that an answer names: a flow can have thousands.
const maxOwners = 8

// names returns names of owners that users know.
type names struct {
	policies Policies
	pods     map[pipeline.Owner]string
}

func newNames(n *Network, pods []sandbox.Pod) *names {
	all := &names{policies: n.Policies, pods: make(map[pipeline.Owner]string, len(pods))}
	for _, p := range pods {
		all.pods[p.Owner()] = "pod " + p.Namespace + "/" + p.Name
	}
	return all
}

// of returns the name of an owner.
func (n *names) of(o pipeline.Owner) string {
	if name := n.pods[o]; name != "" {
		return name
	}
	return o.String()
}

// ofFlow returns the names of a flow's owners. Those of a flow of policies are the rules in its text.
func (n *names) ofFlow(owners []pipeline.Owner, match, actions string) []string {
	var all []string
	rules := 0
	for _, o := range owners {
		if o.Kind == pipeline.KindPolicy {
			rules++
			continue
		}
		all = append(all, n.of(o))
	}
	if rules > 0 {
		all = append(all, n.rules(owners, match, actions)...)
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) > maxOwners {
		all = append(all[:maxOwners:maxOwners], fmt.Sprintf("%d more", len(all)-maxOwners))
	}
	return all
}

func (n *names) rules(owners []pipeline.Owner, match, actions string) (all []string) {
	if n.policies != nil {
		for _, name := range n.policies.RuleNames(ruleIDs(match, actions)) {
			all = append(all, "rule "+name)
		}
	}
	if len(all) > 0 {
		return all
	}
	for _, o := range owners {
		if o.Kind == pipeline.KindPolicy {
			all = append(all, n.of(o))
		}
	}
	return all
}

// ruleIDs returns the conjunction IDs in the text of a flow.
func ruleIDs(match, actions string) (ids []uint32) {
	add := func(text string) {
		if id, err := strconv.ParseUint(text, 0, 32); err == nil {
			ids = append(ids, uint32(id))
		}
	}
	for part := range strings.SplitSeq(match, ",") {
		if id, ok := strings.CutPrefix(part, "conj_id="); ok {
			add(id)
		}
	}
	for part := range strings.SplitSeq(actions, ",") {
		if id, ok := strings.CutPrefix(part, "conjunction("); ok {
			add(id)
		}
	}
	return ids
}

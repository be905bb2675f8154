package egresspolicy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

// A changed rule among 1,000 of a namespace, beside nine other namespaces with as many, is one bundle of its own flow-mods.
func TestPolicies_oneOfManyRules(t *testing.T) {
	tier.Parallel(t)
	const namespaces, rules = 10, 1000
	var all []string
	for i := range rules - 1 {
		all = append(all, fmt.Sprintf("%s 198.51.%d.%d/32", []string{"Allow", "Deny"}[i%2], 100+i/250, i%250))
	}
	all = append(all, "Deny 0.0.0.0/0")
	c := newCluster(t)
	var pods []string
	for i := range namespaces {
		c.policies.Add(egressPolicy(fmt.Sprintf("tenant%d/default", i), all...))
		pods = append(pods, fmt.Sprintf("tenant%d/%d", i, 10+i))
	}
	a, _ := c.start(t, pods...)
	a.wantCount(namespaces * rules)

	number := a.number("tenant3")
	changed := slices.Clone(all)
	for _, step := range []struct {
		what    string
		rules   func() []string
		changes int
	}{
		{"another verdict", func() []string { changed[500] = "Deny 198.51.102.0/32"; return changed }, 1},
		{"another destination", func() []string { changed[500] = "Deny 203.0.113.9/32"; return changed }, 2},
		{"inserted first", func() []string { return append([]string{"Allow 203.0.113.77/32"}, changed...) }, 1},
		{"deleted again", func() []string { return changed }, 1},
		{"all moved, and one with another verdict", func() []string {
			slices.Reverse(changed[:rules-1])
			changed[0] = strings.Replace(changed[0], "Allow", "Deny", 1)
			return changed
		}, 1},
		{"verdict of all other addresses", func() []string { changed[rules-1] = "Allow 0.0.0.0/0"; return changed }, 1},
	} {
		bundles, changes := c.bridge.Bundles(), c.bridge.Changes()
		c.policies.Modify(egressPolicy("tenant3/default", step.rules()...))
		a.wantBundle(step.what, bundles, changes, step.changes)
	}
	if a.number("tenant3") != number {
		t.Errorf("got number %d after the changes, want %d", a.number("tenant3"), number)
	}
}

// wantCount waits for the number of flows.
func (a *agent) wantCount(want int) {
	a.t.Helper()
	await.OK(a.t, testTimeout, func(context.Context) error {
		if got := len(a.flows()); got != want {
			return fmt.Errorf("got %d flows, want %d", got, want)
		}
		return nil
	})
}

// wantBundle waits for one bundle, with the number of changes, after those so far.
func (a *agent) wantBundle(what string, bundles, changes, want int) {
	a.t.Helper()
	await.OK(a.t, testTimeout, func(context.Context) error {
		if a.bridge.Bundles() == bundles {
			return fmt.Errorf("%s: got no bundle", what)
		}
		return nil
	})
	if b, c := a.bridge.Bundles()-bundles, a.bridge.Changes()-changes; b != 1 || c != want {
		a.t.Errorf("%s: got %d bundles with %d changes, want 1 with %d", what, b, c, want)
	}
}

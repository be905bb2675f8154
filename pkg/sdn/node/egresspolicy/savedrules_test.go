package egresspolicy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

const invalidRule = "Deny *.example.com"

// wantSaved waits for the namespaces whose rules are stored.
func (c *cluster) wantSaved(t *testing.T, namespaces ...string) {
	t.Helper()
	await.OK(t, testTimeout, func(context.Context) error {
		var got []string
		entries, err := os.ReadDir(c.rulesDir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			got = append(got, strings.TrimSuffix(e.Name(), ".json"))
		}
		if !slices.Equal(got, namespaces) {
			return fmt.Errorf("got rules of %q stored, want those of %q", got, namespaces)
		}
		return nil
	})
}

// A restarted agent resolves the names of the last valid rules again, and does not retain the addresses that they had.
func TestPolicies_invalidNamesAfterRestart(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.resolve("www.example.com", "192.0.2.1")
	c.resolve("none.example.com", "198.51.100.1")
	rules := []string{"Allow www.example.com", "Deny 192.0.2.0/24", "Deny none.example.com", "Allow 203.0.113.7/32", "Deny 0.0.0.0/0"}
	c.policies.Add(generationAt(1, egressPolicy("tenant/default", rules...)))
	a, stop := c.start(t, "tenant/5")
	const one, two = "priority=132,reg10=0x1,nw_dst=192.0.2.1,actions=pass", "priority=132,reg10=0x1,nw_dst=192.0.2.2,actions=pass"
	cidrs := []string{denyAll1, "priority=124,reg10=0x1,nw_dst=192.0.2.0/24,actions=drop", "priority=132,reg10=0x1,nw_dst=203.0.113.7,actions=pass"}
	denied := "priority=132,reg10=0x1,nw_dst=198.51.100.1,actions=drop"
	a.want(append(slices.Clone(cidrs), one, denied)...)
	c.wantSaved(t, "tenant")
	stop()

	c.policies.Modify(generationAt(2, egressPolicy("tenant/default", "Allow www.example.com", invalidRule)))
	c.resolve("www.example.com", "192.0.2.2")
	a, stop = c.start(t, "tenant/5")
	a.want(append(slices.Clone(cidrs), two, denied)...)
	stop()

	// Without an answer, nothing is allowed for the name. Which addresses are denied is unknown: all that no rule before allows.
	c.mu.Lock()
	clear(c.names)
	c.mu.Unlock()
	a, _ = c.start(t, "tenant/5")
	a.want(denyAll1, "priority=124,reg10=0x1,nw_dst=192.0.2.0/24,actions=drop", "priority=132,reg10=0x1,nw_dst=203.0.113.7,actions=drop")

	c.policies.Modify(egressPolicy("tenant/default", "Deny 0.0.0.0/0"))
	a.want(denyAll1)
	c.wantSaved(t)
}

// Rules with names are stored while they can be needed: for the namespace's pods on this node, and without these while its policies are invalid.
func TestPolicies_savedRules(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.resolve("www.example.com", "192.0.2.1")
	c.policies.Add(egressPolicy("cidrs/default", "Allow 192.0.2.0/24", "Deny 0.0.0.0/0"))
	for _, namespace := range []string{"deleted", "invalid", "valid", "without"} {
		c.policies.Add(generationAt(1, egressPolicy(namespace+"/default", "Allow www.example.com", "Deny 0.0.0.0/0")))
	}
	a, stop := c.start(t, "cidrs/5", "deleted/6", "invalid/7", "valid/8")
	c.wantSaved(t, "deleted", "invalid", "valid")
	c.policies.Delete(egressPolicy("deleted/default"))
	c.wantSaved(t, "invalid", "valid")
	c.policies.Modify(generationAt(2, egressPolicy("invalid/default", invalidRule)))
	await.OK(t, testTimeout, func(context.Context) error {
		if !a.isInvalid("invalid") {
			return fmt.Errorf("got the previous policy in the cache")
		}
		return nil
	})
	for _, pod := range []string{"invalid/7", "valid/8"} {
		if err := a.Detach(owner(pod))(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c.wantSaved(t, "invalid")
	stop()

	if err := os.WriteFile(filepath.Join(c.rulesDir, "deleted.json"), nil, 0o600); err != nil { // the restarted agent removes it
		t.Fatal(err)
	}
	_, stop = c.start(t, "cidrs/5")
	stop() // when all is stored and removed
	c.wantSaved(t, "invalid")

	a, stop = c.start(t, "cidrs/5")
	if err := a.attach("invalid/7")(t.Context()); err != nil {
		t.Fatal(err)
	}
	await.OK(t, testTimeout, func(context.Context) error {
		allowed := fmt.Sprintf("priority=132,reg10=%#x,nw_dst=192.0.2.1,actions=pass", uint32(a.number("invalid")))
		if got := a.flows(); !slices.Contains(got, allowed) {
			return fmt.Errorf("got flows %q, want one more: %s", got, allowed)
		}
		return nil
	})
	stop()

	c.policies.Delete(egressPolicy("invalid/default")) // while no agent runs
	_, _ = c.start(t, "cidrs/5")
	c.wantSaved(t)
}

// A file that can't be read has rules with names: the addresses on the switch may have been those of a name.
func TestPolicies_damagedRules(t *testing.T) {
	tier.Parallel(t)
	const policies = `,"policies":[{"uid":"uid of tenant/default"}]}`
	for what, content := range map[string]string{
		"truncated": `{"rules":[{"na`, "no rules": `{"rules":[]` + policies, "no policies": `{"rules":[{"name":"www.example.com"}]}`,
		"no destination": `{"rules":[{"deny":true}]` + policies, "wildcard": `{"rules":[{"name":"*.example.com"}]` + policies,
		"two destinations": `{"rules":[{"name":"www.example.com","to":"192.0.2.0/24"}]` + policies,
		"IPv6":             `{"rules":[{"name":"www.example.com"},{"to":"2001:db8::/32"}]` + policies,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.resolve("www.example.com", "192.0.2.1")
			c.policies.Add(egressPolicy("tenant/default", "Allow www.example.com", "Deny 0.0.0.0/0"))
			_, stop := c.start(t, "tenant/5")
			c.wantSaved(t, "tenant")
			stop()
			if err := os.WriteFile(filepath.Join(c.rulesDir, "tenant.json"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			c.policies.Modify(egressPolicy("tenant/default", invalidRule))
			a, _ := c.start(t, "tenant/5")
			a.want(denyAll1)
		})
	}
}

// Rules that were stored are not those of invalid policies if there can have been others since: an agent of a version without files ran, the last ones could not be
// stored, or the namespace was created again.
func TestPolicies_staleRules(t *testing.T) {
	tier.Parallel(t)
	const denyAll, allowAll = denyAll1, "priority=100,reg10=0x1,actions=pass"
	const ranges, address = "priority=124,reg10=0x1,nw_dst=198.51.100.0/24,actions=pass", "priority=132,reg10=0x1,nw_dst=192.0.2.1,actions=pass"
	const changed = "priority=132,reg10=0x1,nw_dst=192.0.2.2,actions=pass"
	stored := []string{"Allow www.example.com", "Allow 198.51.100.0/24", "Deny 0.0.0.0/0"}
	again := func() *networkv1.EgressNetworkPolicy { // one for each case: the source of the informer changes it
		return generationAt(1, createdAgain("tenant/default"))
	}
	invalid := func(number int64) *networkv1.EgressNetworkPolicy {
		return generationAt(number, egressPolicy("tenant/default", invalidRule))
	}
	for name, tc := range map[string]struct {
		active  []string                       // rules of the flows, generation 2; nil: the stored ones, generation 1
		invalid *networkv1.EgressNetworkPolicy // when the agent starts
		want    []string
	}{
		"one change":              {nil, invalid(2), []string{denyAll, ranges, changed}},
		"changes":                 {nil, invalid(3), []string{denyAll, ranges, address}},
		"stricter in between":     {[]string{"Deny 0.0.0.0/0"}, invalid(3), []string{denyAll}},
		"other flows, one change": {[]string{"Allow www.example.com", "Deny 0.0.0.0/0"}, invalid(2), []string{denyAll, address}},
		"wider in between":        {[]string{"Allow 0.0.0.0/0"}, invalid(3), []string{allowAll}},
		"namespace created again": {nil, again(), []string{denyAll}},
		"again, with other rules": {[]string{"Allow 0.0.0.0/0"}, again(), []string{denyAll}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.resolve("www.example.com", "192.0.2.1")
			c.policies.Add(generationAt(1, egressPolicy("tenant/default", stored...)))
			a, stop := c.start(t, "tenant/5")
			a.want(denyAll, ranges, address)
			c.wantSaved(t, "tenant")
			file := filepath.Join(c.rulesDir, "tenant.json")
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if tc.active != nil {
				c.policies.Modify(generationAt(2, egressPolicy("tenant/default", tc.active...)))
				a.wantRead(t, "tenant", 2)
			}
			stop()
			before := c.flows()
			if err := os.WriteFile(file, content, 0o600); err != nil {
				t.Fatal(err)
			}

			c.resolve("www.example.com", "192.0.2.2")
			c.replacePolicy(tc.invalid)
			a, _ = c.start(t, "tenant/5")
			a.wantRead(t, "tenant", tc.invalid.Generation)
			if err := a.st.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "n"}, pipeline.State{}).Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			slices.Sort(tc.want)
			if got := c.flows(); !slices.Equal(got, tc.want) {
				t.Errorf("got flows %q, want %q; before the restart %q", got, tc.want, before)
			}
		})
	}
}

// wantRead waits until the flows of a namespace's only policy of that generation are installed.
func (a *agent) wantRead(t *testing.T, namespace string, number int64) {
	t.Helper()
	await.OK(t, testTimeout, func(ctx context.Context) error {
		a.Policies.mu.Lock()
		version := a.namespaces[namespace].version
		a.Policies.mu.Unlock()
		if len(version) != 1 || version[0].Number != number {
			return fmt.Errorf("got policies %v read, want generation %d", version, number)
		}
		return a.reconcile(ctx, namespace)
	})
}

// The events of a deleted and a new namespace can be one for its policy: the new one does not inherit the rules.
func TestPolicies_replacedWithoutPods(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.policies.Add(egressPolicy("tenant/default", "Allow 192.0.2.0/24", "Deny 0.0.0.0/0"))
	a, _ := c.start(t, "tenant/5")
	a.want(denyAll1, "priority=124,reg10=0x1,nw_dst=192.0.2.0/24,actions=pass")
	c.policies.Modify(egressPolicy("tenant/default", invalidRule))
	a.wantRead(t, "tenant", egressPolicy("tenant/default", invalidRule).Generation)
	if err := a.Detach(owner("tenant/5"))(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := createdAgain("tenant/default")
	c.replacePolicy(again)
	await.OK(t, testTimeout, func(context.Context) error {
		a.Policies.mu.Lock()
		defer a.Policies.mu.Unlock()
		if last, exists := a.retired["tenant"]; exists {
			return fmt.Errorf("got rules %v retained", last.rules)
		}
		return nil
	})
}

// Flows agree with rules whose names had any addresses.
func TestAgrees(t *testing.T) {
	to := func(deny bool, prefix string) pipeline.EgressFirewallRule {
		return pipeline.EgressFirewallRule{To: []netip.Prefix{netip.MustParsePrefix(prefix)}, Deny: deny}
	}
	rules, err := config.MergeEgressNetworkPolicies([]*networkv1.EgressNetworkPolicy{
		egressPolicy("t/p", "Allow 203.0.113.7/32", "Allow a.example.com", "Deny 192.0.2.0/24", "Deny b.example.com",
			"Allow 198.51.100.7/32", "Allow 198.51.100.0/24", "Deny 0.0.0.0/0"),
	})
	if err != nil {
		t.Fatal(err)
	}
	own := []pipeline.EgressFirewallRule{
		to(false, "203.0.113.7/32"), to(false, "198.51.100.7/32"), to(true, "192.0.2.0/24"), to(false, "198.51.100.0/24"), to(true, "0.0.0.0/0"),
	}
	with := func(flow pipeline.EgressFirewallRule) []pipeline.EgressFirewallRule {
		all := slices.DeleteFunc(slices.Clone(own), func(r pipeline.EgressFirewallRule) bool { return r.To[0] == flow.To[0] })
		return append([]pipeline.EgressFirewallRule{flow}, all...)
	}
	unknown := []pipeline.EgressFirewallRule{
		to(false, "203.0.113.7/32"), to(true, "198.51.100.7/32"), to(true, "192.0.2.0/24"), to(true, "198.51.100.0/24"), to(true, "0.0.0.0/0"),
	}
	for name, tc := range map[string]struct {
		flows []pipeline.EgressFirewallRule
		want  bool
	}{
		"own": {own, true}, "address of a name": {with(to(false, "192.0.2.7/32")), true}, "address of a later rule": {with(to(true, "198.51.100.7/32")), true},
		"denied name without an answer": {unknown, true}, "none": {nil, false}, "missing range": {own[:4], false}, "missing address": {own[1:], false},
		"missing address behind a name": {slices.Delete(slices.Clone(own), 1, 2), false},
		"another range":                 {with(to(true, "203.0.113.0/24")), false}, "another verdict": {with(to(false, "192.0.2.0/24")), false},
		"another verdict of an address": {with(to(true, "203.0.113.7/32")), false}, "closed": {[]pipeline.EgressFirewallRule{to(true, "0.0.0.0/0")}, false},
	} {
		if got := agrees(rules, tc.flows); got != tc.want {
			t.Errorf("%s: got %t, want %t", name, got, tc.want)
		}
	}
}

// An agent that stops stores rules that it could not store before.
func TestPolicies_storedAtTheEnd(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.resolve("www.example.com", "192.0.2.1")
	c.policies.Add(egressPolicy("tenant/default", "Allow www.example.com", "Deny 0.0.0.0/0"))
	blocked := filepath.Join(c.rulesDir, ".tenant.json.tmp")
	if err := os.MkdirAll(filepath.Join(blocked, "full"), 0o700); err != nil { // where the file is written
		t.Fatal(err)
	}
	a, stop := c.start(t, "tenant/5")
	a.want(denyAll1, "priority=132,reg10=0x1,nw_dst=192.0.2.1,actions=pass")
	if err := os.RemoveAll(blocked); err != nil {
		t.Fatal(err)
	}
	stop()
	c.wantSaved(t, "tenant")
}

func TestRulesDir(t *testing.T) {
	d := rulesDir(filepath.Join(t.TempDir(), "rules"))
	rules := []config.EgressRule{{Name: "www.example.com"}, {To: netip.MustParsePrefix("192.0.2.0/24"), Deny: true}}
	want := lastRules{rules, []generation{{"u1", 7}}}
	if all, _, err := d.read(); err != nil || len(all) > 0 {
		t.Errorf("got %v, %v, want none", all, err)
	}
	if err := d.write("tenant", want); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(string(d), ".other.json.tmp"), nil, 0o600); err != nil { // an interrupted write
		t.Fatal(err)
	}
	all, damaged, err := d.read()
	if err != nil || len(damaged) > 0 || len(all) != 1 || !all["tenant"].equal(want) {
		t.Errorf("got %v, %v, %v, want %v", all, damaged, err, want)
	}
	for range 2 {
		if err := d.write("tenant", lastRules{}); err != nil {
			t.Fatal(err)
		}
	}
	if all, _, err := d.read(); err != nil || len(all) > 0 {
		t.Errorf("got %v, %v, want none", all, err)
	}
}

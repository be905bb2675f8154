package egresspolicy

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
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
		for _, e := range entries {
			got = append(got, strings.TrimSuffix(e.Name(), ".json"))
		}
		if !slices.Equal(got, namespaces) {
			return fmt.Errorf("got rules of %q stored, %w, want those of %q", got, err, namespaces)
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
	c.policies.Add(egressPolicy("tenant/default", "Allow www.example.com", "Deny 192.0.2.0/24", "Deny none.example.com", "Allow 203.0.113.7/32", "Deny 0.0.0.0/0"))
	a, stop := c.start(t, "tenant/5")
	const one, two = "priority=132,reg10=0x1,nw_dst=192.0.2.1,actions=pass", "priority=132,reg10=0x1,nw_dst=192.0.2.2,actions=pass"
	cidrs := []string{denyAll1, "priority=124,reg10=0x1,nw_dst=192.0.2.0/24,actions=drop", "priority=132,reg10=0x1,nw_dst=203.0.113.7,actions=pass"}
	denied := "priority=132,reg10=0x1,nw_dst=198.51.100.1,actions=drop"
	a.want(append(slices.Clone(cidrs), one, denied)...)
	c.wantSaved(t, "tenant")
	stop()

	c.policies.Modify(egressPolicy("tenant/default", "Allow www.example.com", invalidRule))
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
		c.policies.Add(egressPolicy(namespace+"/default", "Allow www.example.com", "Deny 0.0.0.0/0"))
	}
	a, stop := c.start(t, "cidrs/5", "deleted/6", "invalid/7", "valid/8")
	c.wantSaved(t, "deleted", "invalid", "valid")
	c.policies.Delete(egressPolicy("deleted/default"))
	c.wantSaved(t, "invalid", "valid")
	c.policies.Modify(egressPolicy("invalid/default", invalidRule))
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

	a, stop = c.start(t, "cidrs/5")
	c.wantSaved(t, "invalid")
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
	for what, content := range map[string]string{
		"truncated": `{"rules":[{"na`, "no rules": `{"rules":[]}`, "no destination": `{"rules":[{"deny":true}]}`, "wildcard": `{"rules":[{"name":"*.example.com"}]}`,
		"two destinations": `{"rules":[{"name":"www.example.com","to":"192.0.2.0/24"}]}`, "IPv6": `{"rules":[{"name":"www.example.com"},{"to":"2001:db8::/32"}]}`,
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

func TestRulesDir(t *testing.T) {
	d := rulesDir(filepath.Join(t.TempDir(), "rules"))
	want := []config.EgressRule{{Name: "www.example.com"}, {To: netip.MustParsePrefix("192.0.2.0/24"), Deny: true}}
	if all, _, err := d.read(); err != nil || len(all) > 0 {
		t.Errorf("got %v, %v, want none", all, err)
	}
	if err := d.write("tenant", want); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.path("other")+tempSuffix, nil, 0o600); err != nil { // an interrupted write
		t.Fatal(err)
	}
	all, damaged, err := d.read()
	if err != nil || len(damaged) > 0 || len(all) != 1 || !slices.Equal(all["tenant"], want) {
		t.Errorf("got %v, %v, %v, want %v", all, damaged, err, want)
	}
	for range 2 {
		if err := d.write("tenant", nil); err != nil {
			t.Fatal(err)
		}
	}
	if all, _, err := d.read(); err != nil || len(all) > 0 {
		t.Errorf("got %v, %v, want none", all, err)
	}
}

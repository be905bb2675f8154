package egresspolicy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/test/tier"
)

// An agent that stops before it closes a namespace leaves its file, so that the next one does not retain the previous flows.
func TestPolicies_stoppedBeforeClosing(t *testing.T) {
	tier.Parallel(t)
	for name, tc := range map[string]struct {
		policy  *networkv1.EgressNetworkPolicy
		damaged bool // file
	}{
		"of others": {createdAgain("tenant/default"), false}, "damaged": {generationAt(3, egressPolicy("tenant/default", invalidRule)), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.resolve("www.example.com", "192.0.2.1")
			c.policies.Add(generationAt(1, egressPolicy("tenant/default", "Allow www.example.com", "Deny 0.0.0.0/0")))
			const allowed = "priority=132,reg10=0x1,nw_dst=192.0.2.1,actions=pass"
			a, stop := c.start(t, "tenant/5")
			a.want(denyAll1, allowed)
			stop()
			if tc.damaged {
				if err := os.WriteFile(filepath.Join(c.rulesDir, "tenant.json"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			c.policies.Modify(tc.policy)

			c.bridge.BeforeBundle = func(context.Context) error { return errors.New("not written") }
			a, stop = c.start(t, "tenant/5")
			stop()
			a.want(denyAll1, allowed)
			c.bridge.BeforeBundle = nil
			a, stop = c.start(t, "tenant/5")
			a.want(denyAll1)
			stop()

			// It is deleted when the policies are valid, also without flows.
			a, stop = c.start(t)
			a.want()
			stop()
			_, _ = c.start(t)
			c.wantSaved(t, "tenant")
			valid := generationAt(4, egressPolicy("tenant/default", "Deny 0.0.0.0/0"))
			valid.UID = tc.policy.UID
			c.policies.Modify(valid)
			c.wantSaved(t)
		})
	}
}

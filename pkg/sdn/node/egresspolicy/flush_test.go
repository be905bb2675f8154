package egresspolicy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/klog/v2"

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
			c.replacePolicy(tc.policy)

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

// The number of namespaces whose rules are not stored in time is logged.
func TestPolicies_flushTimeout(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	for _, namespace := range []string{"one", "two", "stored"} {
		c.policies.Add(egressPolicy(namespace+"/default", "Allow www.example.com", "Deny 0.0.0.0/0"))
	}
	a, stop := c.start(t, "one/5", "two/6", "stored/7")
	c.wantSaved(t, "one", "stored", "two")
	stop()
	a.Policies.mu.Lock()
	for _, namespace := range []string{"one", "two"} {
		delete(a.storedRules, namespace)
	}
	a.Policies.mu.Unlock()
	var logged strings.Builder
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), funcr.New(func(_, args string) {
		logged.WriteString(args)
	}, funcr.Options{})))
	cancel()
	a.flush(ctx)
	if !strings.Contains(logged.String(), `"namespaces"=2`) {
		t.Errorf("got logs %q, want one with 2 namespaces", logged.String())
	}
}

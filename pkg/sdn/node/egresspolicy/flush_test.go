package egresspolicy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
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

// The file can be newer than the flows: its rules are the last valid ones, and they are used unless the flows have other ranges, as those of rules after them would.
func TestPolicies_stoppedBeforeCommit(t *testing.T) {
	tier.Parallel(t)
	const first, before, after = "Allow www.example.com", "priority=132,reg10=0x1,nw_dst=192.0.2.1,actions=pass", "priority=132,reg10=0x1,nw_dst=192.0.2.2,actions=pass"
	for name, tc := range map[string]struct {
		valid []string // generation 2, whose flows are not committed
		want  []string
	}{
		"other names":  {[]string{"Deny denied.example.com", first, "Deny 0.0.0.0/0"}, []string{denyAll1, after, "priority=132,reg10=0x1,nw_dst=198.51.100.1,actions=drop"}},
		"other ranges": {[]string{first, "Allow 203.0.113.0/24", "Deny 0.0.0.0/0"}, []string{denyAll1, before}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.resolve("www.example.com", "192.0.2.1")
			c.resolve("denied.example.com", "198.51.100.1")
			c.policies.Add(generationAt(1, egressPolicy("tenant/default", first, "Deny 0.0.0.0/0")))
			a, stop := c.start(t, "tenant/5")
			a.want(denyAll1, before)
			c.wantSaved(t, "tenant")
			stop()

			c.bridge.BeforeBundle = func(context.Context) error { return errors.New("not written") }
			c.policies.Modify(generationAt(2, egressPolicy("tenant/default", tc.valid...)))
			a, stop = c.start(t, "tenant/5")
			stop()
			a.want(denyAll1, before)
			all, _, err := a.saved.read()
			if version := all["tenant"].version; err != nil || len(version) != 1 || version[0].Number != 2 {
				t.Fatalf("got rules of policies %v stored, error %v, want generation 2", version, err)
			}

			c.bridge.BeforeBundle = nil
			c.resolve("www.example.com", "192.0.2.2")
			c.policies.Modify(generationAt(3, egressPolicy("tenant/default", invalidRule)))
			a, _ = c.start(t, "tenant/5")
			if err := a.st.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "n"}, pipeline.State{}).Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			a.want(tc.want...)
		})
	}
}

// Rules that are stored are not examined at the end.
func TestPolicies_nothingToFlush(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	for _, namespace := range []string{"one", "two"} {
		c.policies.Add(egressPolicy(namespace+"/default", "Allow www.example.com", "Deny 0.0.0.0/0"))
	}
	a, _ := c.start(t, "one/5", "two/6")
	await.OK(t, testTimeout, func(context.Context) error {
		a.Policies.mu.Lock()
		defer a.Policies.mu.Unlock()
		if len(a.storedRules) != 2 || len(a.unsaved) > 0 {
			return fmt.Errorf("got rules of %d namespaces stored, %d namespaces to store, want 2 and none", len(a.storedRules), len(a.unsaved))
		}
		return nil
	})
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
		a.unsaved[namespace] = true
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

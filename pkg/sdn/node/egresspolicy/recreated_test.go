package egresspolicy

import (
	"context"
	"fmt"
	"slices"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

// replacePolicy makes the object the only one of its name, with one event: the source has objects by name and UID.
func (c *cluster) replacePolicy(o *networkv1.EgressNetworkPolicy) {
	c.policies.Modify(o)
	if first := egressPolicy(o.Namespace + "/" + o.Name); first.UID != o.UID {
		c.policies.DeleteDropWatch(first)
	}
}

// createdAgain returns an invalid policy of a namespace that was deleted and created again.
func createdAgain(key string) *networkv1.EgressNetworkPolicy {
	o := generationAt(1, egressPolicy(key, invalidRule))
	o.UID = types.UID("created again: " + key)
	return o
}

// wantCached waits until a namespace's only policy in the cache is the given one.
func (a *agent) wantCached(t *testing.T, want *networkv1.EgressNetworkPolicy) {
	t.Helper()
	await.OK(t, testTimeout, func(context.Context) error {
		if got := versionOf(a.objects(want.Namespace)); !slices.Equal(got, []generation{generationOf(want)}) {
			return fmt.Errorf("got policies %v in the cache, want %v", got, generationOf(want))
		}
		return nil
	})
}

// The cache can have the policies of the new namespace before the last pod of the deleted one is detached: its rules are not retained for the new one.
func TestPolicies_replacedBeforeDetach(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.policies.Add(generationAt(1, egressPolicy("tenant/default", "Allow 192.0.2.0/24", "Deny 0.0.0.0/0")))
	a, _ := c.start(t, "tenant/5")
	a.want(denyAll1, "priority=124,reg10=0x1,nw_dst=192.0.2.0/24,actions=pass")
	func() {
		a.Policies.mu.Lock() // the event waits
		defer a.Policies.mu.Unlock()
		again := createdAgain("tenant/default")
		c.replacePolicy(again)
		a.wantCached(t, again)
		a.detach(owner("tenant/5"))
		if last, exists := a.retired["tenant"]; exists {
			t.Fatalf("got rules %v retained", last.rules)
		}
	}()
	if err := a.attach("tenant/6")(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.want("priority=100,reg10=0x2,actions=drop")
}

// With pods on the node, policies that replace all others do not inherit their rules either, as if the events of both were separate.
func TestPolicies_replacedWithPods(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.policies.Add(generationAt(1, egressPolicy("tenant/default", "Allow 192.0.2.0/24", "Deny 0.0.0.0/0")))
	a, _ := c.start(t, "tenant/5")
	a.want(denyAll1, "priority=124,reg10=0x1,nw_dst=192.0.2.0/24,actions=pass")
	c.replacePolicy(createdAgain("tenant/default"))
	a.want(denyAll1)
}

// Rules are stored for the policies of which they are certainly the last valid ones: between two changes in one event there can have been others.
func TestPolicies_storedVersion(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.resolve("www.example.com", "192.0.2.1")
	invalid := func(namespace string, number int64) {
		c.policies.Modify(generationAt(number, egressPolicy(namespace+"/default", invalidRule)))
	}
	for _, namespace := range []string{"attached", "detached"} {
		c.policies.Add(generationAt(1, egressPolicy(namespace+"/default", "Allow www.example.com", "Deny 0.0.0.0/0")))
	}
	a, stop := c.start(t, "attached/5", "detached/6", "other/7")
	for _, namespace := range []string{"attached", "detached"} {
		invalid(namespace, 2)
		a.wantRead(t, namespace, 2)
	}
	if err := a.Detach(owner("detached/6"))(t.Context()); err != nil {
		t.Fatal(err)
	}
	invalid("detached", 4)
	invalid("attached", 4)
	a.wantRead(t, "attached", 4) // its event is after the other one's
	stop()
	all, damaged, err := a.saved.read()
	if err != nil || len(damaged) > 0 || len(all) != 2 {
		t.Fatalf("got %v, %v, %v, want the rules of 2 namespaces", all, damaged, err)
	}
	for namespace, last := range all {
		if want := []generation{{types.UID("uid of " + namespace + "/default"), 2}}; !slices.Equal(last.version, want) {
			t.Errorf("%s: got rules of policies %v stored, want %v", namespace, last.version, want)
		}
	}
}

// Rules without names have no file: when their policies become invalid while no agent runs, the flows remain, also for the agent after the next one.
func TestPolicies_invalidWhileStopped(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.policies.Add(generationAt(1, egressPolicy("tenant/default", "Allow 192.0.2.7/32", "Deny 192.0.2.0/24", "Allow 198.51.100.0/24", "Deny 0.0.0.0/0")))
	want := []string{
		denyAll1, "priority=124,reg10=0x1,nw_dst=192.0.2.0/24,actions=drop", "priority=132,reg10=0x1,nw_dst=192.0.2.7,actions=pass",
		"priority=124,reg10=0x1,nw_dst=198.51.100.0/24,actions=pass",
	}
	a, stop := c.start(t, "tenant/5")
	a.want(want...)
	stop()
	c.wantSaved(t)
	changes := c.bridge.Changes()
	for _, number := range []int64{2, 4} {
		c.policies.Modify(generationAt(number, egressPolicy("tenant/default", invalidRule)))
		a, stop = c.start(t, "tenant/5")
		a.wantCached(t, generationAt(number, egressPolicy("tenant/default", invalidRule)))
		if err := a.st.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "n"}, pipeline.State{}).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop()
		a.want(want...)
	}
	if c.bridge.Changes() != changes {
		t.Errorf("got %d changes of flows by the restarts, want none", c.bridge.Changes()-changes)
	}
	c.policies.Modify(generationAt(5, egressPolicy("tenant/default", "Deny 198.51.100.0/24")))
	a, _ = c.start(t, "tenant/5")
	a.want("priority=100,reg10=0x1,actions=pass", "priority=124,reg10=0x1,nw_dst=198.51.100.0/24,actions=drop")
}

// Flows of the previous agent are not those of policies that replaced all that existed when the agent started.
func TestPolicies_replacedAfterRestart(t *testing.T) {
	tier.Parallel(t)
	for name, tc := range map[string]struct {
		again    *networkv1.EgressNetworkPolicy
		attached bool // before they are replaced
	}{
		"one event": {createdAgain("tenant/default"), false}, "another name": {createdAgain("tenant/other"), false}, "with pods": {createdAgain("tenant/default"), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.policies.Add(generationAt(1, egressPolicy("tenant/default", "Allow 192.0.2.0/24", "Deny 0.0.0.0/0")))
			const allowed = "priority=124,reg10=0x1,nw_dst=192.0.2.0/24,actions=pass"
			a, stop := c.start(t, "tenant/5")
			a.want(denyAll1, allowed)
			stop()
			invalid := generationAt(3, egressPolicy("tenant/default", invalidRule))
			c.policies.Modify(invalid)
			if tc.attached {
				a, _ = c.start(t, "tenant/5")
				a.want(denyAll1, allowed)
				c.replacePolicy(tc.again)
				a.want(denyAll1)
				return
			}
			a, _ = c.start(t)
			a.want()
			if tc.again.Name == invalid.Name {
				c.replacePolicy(tc.again)
			} else { // as after a list
				c.policies.Add(tc.again)
				c.policies.Delete(invalid)
			}
			a.wantCached(t, tc.again)
			if err := a.attach("tenant/5")(t.Context()); err != nil {
				t.Fatal(err)
			}
			a.want("priority=100,reg10=0x2,actions=drop")
		})
	}
}

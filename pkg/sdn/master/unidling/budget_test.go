package unidling

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	unidlingv1alpha1 "github.com/openshift/api/unidling/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// scaleRequests returns the number of requests of scale subresources in a namespace.
func (c *cluster) scaleRequests(namespace string) (n int) {
	for _, a := range c.scales.Actions() {
		if a.GetNamespace() == namespace {
			n++
		}
	}
	return n
}

// list returns an annotation with that many StatefulSets.
func (c *cluster) list(n int) string {
	c.t.Helper()
	var targets []unidlingv1alpha1.RecordedScaleReference
	for i := range n {
		targets = append(targets, unidlingv1alpha1.RecordedScaleReference{
			CrossGroupObjectReference: unidlingv1alpha1.CrossGroupObjectReference{Kind: "StatefulSet", Name: fmt.Sprint("db", i), Group: "apps"}, Replicas: 1,
		})
	}
	value, err := json.Marshal(targets)
	c.must(err)
	return string(value)
}

// The budget of a namespace pays for the objects of its services, so that long lists of failing objects do not take the API requests of others.
func TestController_longLists(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		for i := range config.MaxUnidleTargets {
			key := fmt.Sprint("attacker/statefulsets/db", i)
			c.replicas[key], c.failures[key] = 0, apierrors.NewForbidden(schema.GroupResource{Resource: "statefulsets"}, "db", errors.New("no right"))
		}
		c.idle("services", "shop", "web", web)
		defer c.lead()()
		for i := range 50 {
			service := fmt.Sprint("service", i)
			c.idle("services", "attacker", service, c.list(config.MaxUnidleTargets))
			c.packet("attacker", service, nil)
		}
		c.packet("shop", "web", nil)
		time.Sleep(time.Minute) //nolint:forbidigo // of the bubble
		c.settle()
		if got := c.replicas["shop/deployments/web"]; got != 2 {
			t.Errorf("got %d replicas of another namespace, want 2", got)
		}
		got, most := c.scaleRequests("attacker"), 2*(namespaceBurst+62*tokensPerSecond)
		if got > most || got < most/2 {
			t.Errorf("got %d requests, want %d to %d", got, most/2, most)
		}
	})
}

// A namespace has one worker: one whose requests wait does not delay others.
func TestController_oneWorkerPerNamespace(t *testing.T) {
	run(t, func(_ *testing.T, c *cluster) {
		defer c.lead()()
		defer close(c.slow)
		for i := range 2 * workers {
			service := fmt.Sprint("service", i)
			c.idle("services", "attacker", service, `[{"kind":"Slow","name":"web","group":"apps","replicas":2}]`)
			c.packet("attacker", service, nil)
		}
		c.settle()
		c.idle("services", "shop", "web", web)
		c.packet("shop", "web", nil)
		c.wantReplicas(map[string]int32{"shop/deployments/web": 2, "shop/statefulsets/db": 0})
	})
}

// A failure that only a user can correct is not tried again with each packet.
func TestController_permanentFailure(t *testing.T) {
	for name, targets := range map[string]string{"forbidden": web, "invalid list": "[]"} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, c *cluster) {
				c.fail("shop/deployments/web", apierrors.NewForbidden(schema.GroupResource{Resource: "deployments"}, "web", errors.New("no right")))
				c.idle("services", "shop", "web", targets)
				defer c.lead()()
				wantEvents := func(want int) {
					t.Helper()
					c.packet("shop", "web", nil)
					c.settle()
					c.mu.Lock()
					defer c.mu.Unlock()
					if len(c.events) != want {
						t.Errorf("got Events %q, want %d", c.events, want)
					}
				}
				for range 60 {
					wantEvents(1)
				}
				c.version = "8" // as after a user has changed the Service
				c.idle("services", "shop", "web", targets)
				wantEvents(2)
				wantEvents(2)
				time.Sleep(failureLifetime) //nolint:forbidigo // of the bubble
				wantEvents(3)
			})
		})
	}
}

// Any number of names in Events of users takes a bounded number of entries, and leaves none behind.
func TestRequests_limit(t *testing.T) {
	q := newRequests()
	now := time.Now()
	add := func(namespace, name string, at time.Time) bool {
		return q.add(cache.NewObjectName(namespace, name), at)
	}
	for i := range 5 * maxRequests {
		if got, want := add("attacker", fmt.Sprint("service", i), now), i < maxRequests; got != want {
			t.Fatalf("Event %d: got %t, want %t", i, got, want)
		}
	}
	if got := len(q.namespaces["attacker"].services); got != maxRequests {
		t.Errorf("got %d requests, want %d", got, maxRequests)
	}
	if !add("attacker", "service7", now.Add(time.Second)) || !add("shop", "web", now) {
		t.Error("got a refusal, want a later packet for a pending service and one of another namespace")
	}
	for i := range maxRequests {
		q.finish(cache.NewObjectName("attacker", fmt.Sprint("service", i)), request{at: now.Add(time.Minute)})
	}
	if _, ok := q.namespaces["attacker"]; ok || len(q.namespaces) != 1 {
		t.Errorf("got namespaces %v, want shop", q.namespaces)
	}
}

package egresspolicy

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	networkfake "github.com/openshift/client-go/network/clientset/versioned/fake"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/egressstatus"
	"github.com/ovsdn/ovsdn/test/fakeapi"
)

// While errors neither begin nor end, the summary is written once per minute, with the last text. The write is no reason to read the status again.
func TestController_changingErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := policy("shop/a", "")
		o.Spec.Egress[0].To.DNSName = "www.example.com"
		client := networkfake.NewClientset(netNamespace("shop", 100), o, node("n1"), node("n2"))
		s := &statuses{of: map[string]egressstatus.Status{"shop/a": {Nodes: map[string]*egressstatus.Node{"n1": {}, "n2": {}}}}}
		c, policies, netNamespaces, hostSubnets := newController(t, client, s, record.NewFakeRecorder(100))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		for _, informer := range []*fakeapi.Informer{policies, netNamespaces, hostSubnets} {
			running.Go(func() { informer.RunWithContext(ctx) })
		}
		running.Go(func() { c.Run(ctx) })
		written := func(version string) { // the API server reports a write of the status
			t.Helper()
			o.ResourceVersion = version
			if _, err := client.NetworkV1().EgressNetworkPolicies("shop").Update(ctx, o, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		report := func(version, problem string) { // of n1
			t.Helper()
			s.mu.Lock()
			s.of["shop/a"].Nodes["n1"] = &egressstatus.Node{Error: problem}
			s.mu.Unlock()
			written(version)
		}
		const unknown, soon = -1, 2 * summaryDelay
		want := func(after time.Duration, patches, gets int, summary string) {
			t.Helper()
			time.Sleep(after) //nolint:forbidigo // of the bubble
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			got := "never written"
			if text := s.of["shop/a"].DNSErrors; text != nil {
				got = *text
			}
			if gets == unknown { // the number of initial events depends on informers
				s.gets = 0
			} else if s.gets != gets {
				t.Errorf("got %d reads, want %d", s.gets, gets)
			}
			if s.patches != patches || got != summary {
				t.Errorf("got %d patches and summary %q, want %d and %q", s.patches, got, patches, summary)
			}
		}
		want(time.Second, 1, unknown, "never written") // conditions
		written("patched-1")
		want(soon, 1, 0, "never written")
		report("a", "SERVFAIL")
		want(soon, 2, 1, "1 of 2 nodes (n1): SERVFAIL")
		written("patched-2")
		want(soon, 2, 1, "1 of 2 nodes (n1): SERVFAIL")
		report("b", "i/o timeout")
		want(soon, 2, 2, "1 of 2 nodes (n1): SERVFAIL")
		report("c", "connection refused")
		want(textInterval-2*soon, 3, 4, "1 of 2 nodes (n1): connection refused")
		written("patched-3")
		report("d", "")
		want(soon, 4, 5, "")

		if err := client.NetworkV1().EgressNetworkPolicies("shop").Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want(time.Second, 4, 5, "")
		if len(c.last) != 0 {
			t.Errorf("deleted: got %v, want nothing", c.last)
		}
	})
}

// A report that an agent writes between the controller's read and its write is summarized.
func TestController_reportDuringWrite(t *testing.T) {
	o := policy("shop/a", "")
	o.Spec.Egress[0].To.DNSName = "www.example.com"
	c, policies, _, hostSubnets := newController(t, networkfake.NewClientset(), &statuses{}, record.NewFakeRecorder(100))
	if err := policies.GetStore().Add(o); err != nil {
		t.Fatal(err)
	}
	if err := hostSubnets.GetStore().Add(node("n1")); err != nil {
		t.Fatal(err)
	}
	for problem, want := range map[string]bool{"": true, "SERVFAIL": false} {
		o.ResourceVersion = "of " + problem
		result := &egressstatus.Status{ResourceVersion: o.ResourceVersion, Nodes: map[string]*egressstatus.Node{"n1": {Error: problem}}}
		c.setSummarized(o, result) // which has no summary
		if got := c.isSummarized("shop", "a"); got != want {
			t.Errorf("error %q: got all reports summarized %t, want %t", problem, got, want)
		}
	}
}

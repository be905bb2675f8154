package egresspolicy

import (
	"context"
	"strings"
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
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
	"github.com/ovsdn/ovsdn/test/fakeapi"
)

// failing is the report of a node on which a name fails.
func failing(problem string) *egressstatus.Node {
	since := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	return &egressstatus.Node{
		Error: "www.example.com: " + problem,
		Names: []egressstatus.Name{{Name: "resolved.example.com", Count: 1}, {Name: "www.example.com", Error: problem, Since: &since}},
	}
}

// The errors that several nodes report are summarized with one write, without those of deleted nodes, and of policies with names only.
func TestController_dnsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := policy("shop/a", "")
		o.Spec.Egress[0].To.DNSName = "www.example.com"
		client := networkfake.NewClientset(netNamespace("shop", 100), o, node("n1"), node("n2"), node("n3"))
		s := &statuses{of: map[string]egressstatus.Status{"shop/a": {Nodes: map[string]*egressstatus.Node{"n1": {}, "n2": failing("SERVFAIL"), "n3": {}}}}}
		c, policies, netNamespaces, hostSubnets := newController(t, client, s, record.NewFakeRecorder(100))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		for _, informer := range []*fakeapi.Informer{policies, netNamespaces, hostSubnets} {
			running.Go(func() { informer.RunWithContext(ctx) })
		}
		running.Go(func() { c.Run(ctx) })
		want := func(summary string, patches int) {
			t.Helper()
			time.Sleep(2*nodeDelay + time.Second) //nolint:forbidigo // of the bubble
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			got := "never written"
			if written := s.of["shop/a"].DNSErrors; written != nil {
				got = *written
			}
			if got != summary || s.patches != patches {
				t.Errorf("got %d patches and DNS errors %q, want %d and %q", s.patches, got, patches, summary)
			}
			s.patches = 0
		}
		update := func(generation int64) {
			t.Helper()
			o.Generation = generation
			if _, err := client.NetworkV1().EgressNetworkPolicies("shop").Update(ctx, o, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		want("1 of 3 nodes (n2): www.example.com: SERVFAIL, since 2026-01-02T03:04:05Z", 1)
		s.mu.Lock()
		s.of["shop/a"].Nodes["n1"] = failing("i/o timeout")
		s.mu.Unlock()
		for range 5 { // writes to the status
			update(1)
		}
		want("2 of 3 nodes (such as n1): www.example.com: i/o timeout, since 2026-01-02T03:04:05Z", 1)
		if err := client.NetworkV1().HostSubnets().Delete(ctx, "n1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want("1 of 2 nodes (n2): www.example.com: SERVFAIL, since 2026-01-02T03:04:05Z", 1)
		o = policy("shop/a", "0.0.0.0/0")
		update(2)
		want("", 1)
	})
}

// The summary is a line of limited length, whatever a node reports.
func TestSummarize(t *testing.T) {
	long := strings.Repeat("é\n", 500)
	excess := &egressstatus.Node{Error: "a: more addresses", Names: []egressstatus.Name{{Name: "a", Error: "more addresses"}}}
	for want, nodes := range map[string]map[string]*egressstatus.Node{
		"":                                     {"n1": {}},
		"1 of 1 nodes (n1): a: more addresses": {"n1": excess},
		"1 of 2 nodes (n2): without names":     {"n1": {}, "n2": {Error: "without\nnames"}},
		"2 of 2 nodes (such as n1): a: more addresses": {"n1": excess, "n2": {Error: long}},
	} {
		if got := summarize(nodes); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := summarize(map[string]*egressstatus.Node{strings.Repeat("n", 253): {Error: long}}); len(got) > reconcile.MaxMessage || strings.Contains(got, "\n") {
		t.Errorf("got %d bytes: %q", len(got), got)
	}
}

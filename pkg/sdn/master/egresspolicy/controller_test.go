package egresspolicy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	networkfake "github.com/openshift/client-go/network/clientset/versioned/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressstatus"
	"github.com/ovsdn/ovsdn/test/fakeapi"
)

// statuses is the status of all policies, in memory.
type statuses struct {
	mu      sync.Mutex
	of      map[string]egressstatus.Status
	gets    int
	patches int
}

func (s *statuses) Get(_ context.Context, namespace, name string) (*egressstatus.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gets++
	status := s.of[namespace+"/"+name]
	return &status, nil
}

func (s *statuses) Patch(_ context.Context, namespace, name string, status egressstatus.Status) (*egressstatus.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "deleted" {
		return nil, apierrors.NewNotFound(networkv1.Resource("egressnetworkpolicies"), name)
	}
	s.patches++
	nodes := maps.Clone(s.of[namespace+"/"+name].Nodes)
	for node, of := range status.Nodes {
		if of == nil {
			delete(nodes, node)
		}
	}
	status.Nodes = nodes
	if status.DNSErrors == nil {
		status.DNSErrors = s.of[namespace+"/"+name].DNSErrors
	}
	status.ResourceVersion = fmt.Sprint("patched-", s.patches)
	s.of[namespace+"/"+name] = status
	return &status, nil
}

// reasons returns the reasons of all conditions, and clears the number of patches.
func (s *statuses) reasons() (map[string]string, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]string{}
	for key, status := range s.of {
		var reasons []string
		for _, c := range status.Conditions {
			reasons = append(reasons, string(c.Status)+" "+c.Reason)
		}
		all[key] = strings.Join(reasons, ", ")
	}
	patches := s.patches
	s.patches = 0
	return all, patches
}

func policy(key, cidr string) *networkv1.EgressNetworkPolicy {
	o := &networkv1.EgressNetworkPolicy{}
	o.Namespace, o.Name, _ = strings.Cut(key, "/")
	o.Generation = 1
	o.Spec.Egress = []networkv1.EgressNetworkPolicyRule{{Type: networkv1.EgressNetworkPolicyRuleDeny, To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: cidr}}}
	return o
}

func netNamespace(name string, vnid uint32) *networkv1.NetNamespace {
	return &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, NetName: name, NetID: vnid}
}

func node(name string) *networkv1.HostSubnet {
	return &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Host: name}
}

func newController(t *testing.T, client *networkfake.Clientset, s *statuses, events record.EventRecorder) (c *Controller, policies, netNamespaces, hostSubnets *fakeapi.Informer) {
	t.Helper()
	policies = fakeapi.NewInformer(client.NetworkV1().EgressNetworkPolicies(metav1.NamespaceAll), &networkv1.EgressNetworkPolicy{})
	if err := policies.AddIndexers(cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}); err != nil {
		t.Fatal(err)
	}
	netNamespaces = fakeapi.NewInformer(client.NetworkV1().NetNamespaces(), &networkv1.NetNamespace{})
	hostSubnets = fakeapi.NewInformer(client.NetworkV1().HostSubnets(), &networkv1.HostSubnet{})
	c, err := New(policies, netNamespaces, hostSubnets, s, events)
	if err != nil {
		t.Fatal(err)
	}
	return c, policies, netNamespaces, hostSubnets
}

func TestController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := networkfake.NewClientset(netNamespace("shop", 100), netNamespace("system", 0),
			policy("shop/a", "192.0.2.0/24"), policy("system/a", "192.0.2.0/24"), policy("broken/a", "192.0.2.0/99"), policy("broken/b", "192.0.2.0/24"),
			policy("old/a", "0.0.0.0/32"), policy("old/deleted", "192.0.2.0/24"))
		s, events := &statuses{of: map[string]egressstatus.Status{}}, record.NewFakeRecorder(100)
		c, policies, netNamespaces, hostSubnets := newController(t, client, s, events)
		c.SetMode(config.ModeMultitenant)
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		running.Go(func() { policies.RunWithContext(ctx) })
		running.Go(func() { netNamespaces.RunWithContext(ctx) })
		running.Go(func() { hostSubnets.RunWithContext(ctx) })
		running.Go(func() { c.Run(ctx) })
		want := map[string]string{} // of all policies
		wantNow := func(patches int, changed map[string]string) {
			t.Helper()
			time.Sleep(time.Second) //nolint:forbidigo // of the bubble, so that informers have started
			synctest.Wait()
			maps.Copy(want, changed)
			got, n := s.reasons()
			if diff := cmp.Diff(want, got); diff != "" || n != patches {
				t.Errorf("got %d patches, want %d; conditions (-want +got):\n%s", n, patches, diff)
			}
		}
		const only = ", False OnlyPolicy"
		wantNow(5, map[string]string{
			"shop/a": "True Accepted" + only, "system/a": "False GlobalNamespace" + only,
			"broken/a": "False Invalid, True SeveralPolicies", "broken/b": "False Invalid, True SeveralPolicies", "old/a": "True AcceptedAsEverywhere, True SeveralPolicies",
		})
		if n := len(events.Events); n < 6 {
			t.Errorf("got %d Events, want one for each fault and merge", n)
		}
		update := func(o *networkv1.EgressNetworkPolicy, generation int64) {
			o.Generation = generation
			if _, err := client.NetworkV1().EgressNetworkPolicies(o.Namespace).Update(ctx, o, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		update(policy("shop/a", "192.0.2.0/24"), 1) // a status was written
		wantNow(0, nil)
		update(policy("broken/a", "192.0.2.0/24"), 2)
		wantNow(2, map[string]string{"broken/a": "True Accepted, True SeveralPolicies", "broken/b": "True Accepted, True SeveralPolicies"})
		if _, err := client.NetworkV1().NetNamespaces().Update(ctx, netNamespace("system", 200), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		wantNow(1, map[string]string{"system/a": "True Accepted" + only})
		if _, err := client.NetworkV1().NetNamespaces().Update(ctx, netNamespace("system", 0), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		wantNow(1, map[string]string{"system/a": "False GlobalNamespace" + only})
		c.SetMode(config.ModeSubnet)
		wantNow(1, map[string]string{"system/a": "True Accepted" + only})
	})
}

// The reports of nodes that no longer exist are removed: they would take the place of others.
func TestController_deletedNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := policy("shop/a", "")
		o.Spec.Egress[0].To.DNSName = "www.example.com"
		client := networkfake.NewClientset(netNamespace("shop", 100), o, node("n1"), node("n2"))
		s := &statuses{of: map[string]egressstatus.Status{"shop/a": {Nodes: map[string]*egressstatus.Node{"n1": {}, "n2": {}, "deleted": {}}}}}
		c, policies, netNamespaces, hostSubnets := newController(t, client, s, record.NewFakeRecorder(100))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		for _, informer := range []*fakeapi.Informer{policies, netNamespaces, hostSubnets} {
			running.Go(func() { informer.RunWithContext(ctx) })
		}
		running.Go(func() { c.Run(ctx) })
		want := func(nodes ...string) {
			t.Helper()
			time.Sleep(2*nodeDelay + time.Second) //nolint:forbidigo // of the bubble
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			if got := slices.Sorted(maps.Keys(s.of["shop/a"].Nodes)); !slices.Equal(got, nodes) {
				t.Errorf("got reports of nodes %v, want %v", got, nodes)
			}
		}
		want("n1", "n2")
		if err := client.NetworkV1().HostSubnets().Delete(ctx, "n2", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want("n1")
	})
}

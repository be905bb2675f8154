package networkpolicy

import (
	"context"
	"errors"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
)

// The caches have all policies of the maximum size with names of the maximum length, without what is beyond their budget, and all of many small policies.
func TestCaches_largePolicies(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: size")
	}
	server := apitest.Start(t)
	kube, ours := apitest.Clients(t, server)
	t.Cleanup(func() { apitest.Disconnect(kube, ours) })
	policies, err := policyclient.NewForConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	const namespace = "large"
	if _, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	objects := &apitest.Objects{Kube: kube, Policies: policies, Namespace: namespace}
	large, small := apitest.Sized(5, 100), apitest.Sized(5, 10_000)
	if err := objects.Create(t.Context(), large, small, "NetworkPolicy", "ClusterNetworkPolicy"); err != nil {
		t.Fatal(err)
	}
	c, err := New(Clients{Kube: kube, Policies: policies, Events: &record.FakeRecorder{}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() { c.Run(ctx) })
	await.OK(t, await.SyncTime, func(context.Context) error {
		if !c.networkPolicies.HasSynced() || !c.clusterPolicies.HasSynced() {
			return errors.New("the caches have not synced")
		}
		return nil
	})
	const most = 2 << 10
	apitest.CheckCache(t, "NetworkPolicy", c.networkPolicies.GetStore(), large+small, most)
	apitest.CheckCache(t, "ClusterNetworkPolicy", c.clusterPolicies.GetStore(), large+small, most)
}

package master

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/fakeapi"
)

// Only the addresses of the EndpointSlice are those of kube-apiservers, none before it was read.
func TestAPIServers(t *testing.T) {
	addr := netip.MustParseAddr
	kube := fake.NewClientset(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}, {Addresses: []string{"192.0.2.2"}}},
	})
	a := &apiServers{fakeapi.NewInformer(kube.DiscoveryV1().EndpointSlices("default"), &discoveryv1.EndpointSlice{})}
	if a.has(addr("192.0.2.1")) {
		t.Error("knows an address before the EndpointSlice was read")
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { a.slice.RunWithContext(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	await.OK(t, 90*time.Second, func(context.Context) error {
		if !a.has(addr("192.0.2.1")) || !a.has(addr("192.0.2.2")) {
			return errors.New("the addresses are not known")
		}
		return nil
	})
	if a.has(addr("192.0.2.3")) || a.has(netip.Addr{}) {
		t.Error("knows an address that the EndpointSlice does not have")
	}
}

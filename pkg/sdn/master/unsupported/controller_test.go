package unsupported

import (
	"context"
	"errors"
	"fmt"
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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	metadatafake "k8s.io/client-go/metadata/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/fakeapi"
)

// cluster is a fake API server with recorded Events, in a synctest bubble.
type cluster struct {
	t        *testing.T
	network  *networkfake.Clientset
	metadata *metadatafake.FakeMetadataClient

	mu       sync.Mutex
	lacksCRD bool     // of all policies
	events   []string // since the last call of wantEvents
}

func newCluster(t *testing.T) *cluster {
	scheme := metadatafake.NewTestScheme()
	if err := errors.Join(networkv1.Install(scheme), metav1.AddMetaToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, network: networkfake.NewClientset(), metadata: metadatafake.NewSimpleMetadataClient(scheme)}
	c.metadata.PrependReactor("list", "*", func(k8stesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.lacksCRD {
			return true, nil, apierrors.NewNotFound(config.UnsupportedKinds()[0].Resource.GroupResource(), "")
		}
		return false, nil, nil
	})
	return c
}

// recorder records Events as "Type Reason Kind namespace/name: message". Event is its only method in use.
type recorder struct {
	record.EventRecorder
	c *cluster
}

func (r recorder) Event(about runtime.Object, eventType, reason, message string) {
	what := "?"
	switch o := about.(type) {
	case *networkv1.NetNamespace:
		what = "NetNamespace " + o.Name
	case *networkv1.HostSubnet:
		what = "HostSubnet " + o.Name
	case *corev1.ObjectReference:
		what = fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name)
		if o.UID == "" || o.APIVersion == "" {
			r.c.t.Errorf("got reference %+v, want one with UID and version", o)
		}
	}
	message, _, _ = strings.Cut(message, ";")
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	r.c.events = append(r.c.events, fmt.Sprintf("%s %s %s: %s", eventType, reason, what, message))
}

// lead starts a controller, and returns the function that stops it.
func (c *cluster) lead() (stop func()) {
	c.t.Helper()
	_, stop = c.leadWith()
	return stop
}

// leadWith is lead, and returns the controller.
func (c *cluster) leadWith() (controller *Controller, stop func()) {
	c.t.Helper()
	netNamespaces := fakeapi.NewInformer(c.network.NetworkV1().NetNamespaces(), &networkv1.NetNamespace{})
	hostSubnets := fakeapi.NewInformer(c.network.NetworkV1().HostSubnets(), &networkv1.HostSubnet{})
	controller, err := New(Clients{Metadata: c.metadata, Events: recorder{c: c}}, netNamespaces, hostSubnets)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(c.t.Context(), logr.Discard()))
	var running sync.WaitGroup
	running.Go(func() { netNamespaces.RunWithContext(ctx) })
	running.Go(func() { hostSubnets.RunWithContext(ctx) })
	running.Go(func() { controller.Run(ctx) })
	return controller, func() {
		cancel()
		running.Wait()
	}
}

// wantEvents compares the Events since its last call, when all goroutines are idle.
func (c *cluster) wantEvents(want ...string) {
	c.t.Helper()
	time.Sleep(time.Second) //nolint:forbidigo // of the bubble, so that informers have started and the queue is empty
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.events)
	if diff := cmp.Diff(want, c.events); diff != "" {
		c.t.Errorf("Events (-want +got):\n%s", diff)
	}
	c.events = nil
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// createPolicies creates a policy of each kind that is not enforced.
func (c *cluster) createPolicies() {
	c.t.Helper()
	for _, kind := range config.UnsupportedKinds() {
		c.createPolicy(kind, "default")
	}
}

func (c *cluster) createPolicy(kind config.UnsupportedKind, name string) {
	c.t.Helper()
	c.must(c.metadata.Tracker().Create(kind.Resource, &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: kind.Resource.GroupVersion().String(), Kind: kind.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1},
	}, ""))
}

const (
	eventOfAdmin   = "Warning NotSupported AdminNetworkPolicy /default: the network ignores this AdminNetworkPolicy, which denies nothing"
	eventOfBase    = "Warning NotSupported BaselineAdminNetworkPolicy /default: the network ignores this BaselineAdminNetworkPolicy, which denies nothing"
	eventOfNetns   = "Warning NotSupported NetNamespace shop: the network ignores egressIPs 192.0.2.7 in mode subnet: packets to other networks have the address of the pod's node"
	eventOfSubnets = "Warning NotSupported HostSubnet shop: the network ignores egressCIDRs 192.0.2.0/24 in mode subnet: no egress IPs are assigned"
)

// Each object is reported once for what it asks for, and once by each leader.
func TestController_reportsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		api := c.network.NetworkV1()
		nn, err := api.NetNamespaces().Create(t.Context(), &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
		c.must(err)
		hs, err := api.HostSubnets().Create(t.Context(), &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
		c.must(err)
		stop := c.lead()
		c.wantEvents()

		nn.EgressIPs = []networkv1.NetNamespaceEgressIP{"192.0.2.7"}
		nn, err = api.NetNamespaces().Update(t.Context(), nn, metav1.UpdateOptions{})
		c.must(err)
		c.wantEvents(eventOfNetns)
		hs.EgressCIDRs = []networkv1.HostSubnetEgressCIDR{"192.0.2.0/24"}
		_, err = api.HostSubnets().Update(t.Context(), hs, metav1.UpdateOptions{})
		c.must(err)
		c.wantEvents(eventOfSubnets)
		c.createPolicies()
		c.wantEvents(eventOfAdmin, eventOfBase)

		nn.NetID = 0x50
		nn, err = api.NetNamespaces().Update(t.Context(), nn, metav1.UpdateOptions{})
		c.must(err)
		c.wantEvents()
		nn.EgressIPs = nil
		_, err = api.NetNamespaces().Update(t.Context(), nn, metav1.UpdateOptions{})
		c.must(err)
		for _, kind := range config.UnsupportedKinds() {
			c.must(c.metadata.Tracker().Delete(kind.Resource, "", "default"))
		}
		stop()

		stop = c.lead()
		c.wantEvents(eventOfSubnets)
		stop()
	})
}

// Egress IPs are ignored in mode subnet only.
func TestController_mode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		_, err := c.network.NetworkV1().NetNamespaces().Create(t.Context(), &networkv1.NetNamespace{
			ObjectMeta: metav1.ObjectMeta{Name: "shop"}, EgressIPs: []networkv1.NetNamespaceEgressIP{"192.0.2.7"},
		}, metav1.CreateOptions{})
		c.must(err)
		_, err = c.network.NetworkV1().HostSubnets().Create(t.Context(), &networkv1.HostSubnet{
			ObjectMeta: metav1.ObjectMeta{Name: "shop"}, EgressCIDRs: []networkv1.HostSubnetEgressCIDR{"192.0.2.0/24"},
		}, metav1.CreateOptions{})
		c.must(err)
		controller, stop := c.leadWith()
		defer stop()
		c.wantEvents(eventOfSubnets, eventOfNetns)
		controller.SetMode(config.ModeMultitenant)
		c.wantEvents()
		controller.SetMode(config.ModeNetworkPolicy)
		c.wantEvents()
		controller.SetMode(config.ModeSubnet)
		c.wantEvents(eventOfSubnets, eventOfNetns)
	})
}

// CRDs of policies may be created later.
func TestController_crdCreatedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.lacksCRD = true
		stop := c.lead()
		c.wantEvents()
		c.mu.Lock()
		c.lacksCRD = false
		c.mu.Unlock()
		c.createPolicies()
		time.Sleep(time.Hour) //nolint:forbidigo // of the bubble
		c.wantEvents(eventOfAdmin, eventOfBase)
		stop()
	})
}

package master

import (
	"context"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	networkfake "github.com/openshift/client-go/network/clientset/versioned/fake"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func initialNetwork(t *testing.T) *config.Network {
	t.Helper()
	network, err := config.ParseNetwork(&networkv1.ClusterNetwork{
		PluginName: "subnet", ServiceNetwork: "172.30.0.0/16",
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return network
}

// Another client may write the object between the leader's read and its write. Nothing is allocated until the condition and the leader's name
// are written, and the Event is sent after a write that succeeded, although an earlier write failed.
func TestNetworkController_acceptsAfterFirstWrite(t *testing.T) {
	ctx := t.Context()
	initial := initialNetwork(t)
	client := networkfake.NewClientset()
	objects, events := client.NetworkV1().ClusterNetworks(), record.NewFakeRecorder(10)
	informers := networkinformers.NewSharedInformerFactory(client, 0).Network().V1()
	applied := 0
	c, err := newNetworkController(client, events, initial, "me", informers, func(context.Context, *config.Network) error {
		applied++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	accepted := func() bool { return isClosed(c.accepted) }
	conflict := apierrors.NewConflict(networkv1.Resource("clusternetworks"), "default", nil)
	patchErr := error(conflict)
	client.PrependReactor("patch", "clusternetworks", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !c.named && accepted() {
			t.Error("accepted before the name was written to the object")
		}
		return patchErr != nil, nil, patchErr
	})
	if err := c.reconcile(ctx); !apierrors.IsConflict(err) || accepted() || applied != 1 {
		t.Fatalf("got error %v, accepted %t, applied %d times, want a conflict, not accepted, once", err, accepted(), applied)
	}
	patchErr = nil
	if err := c.reconcile(ctx); err != nil || !accepted() {
		t.Fatalf("got error %v, accepted %t, want it accepted", err, accepted())
	}
	stored, err := objects.Get(ctx, "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if by := stored.Annotations[config.ControllerAnnotation]; by != "me" {
		t.Errorf("annotation %s: got %q, want me", config.ControllerAnnotation, by)
	}

	mtu := uint32(1400)
	stored.MTU = &mtu
	if stored, err = objects.Update(ctx, stored, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	patchErr = conflict
	if err := c.reconcile(ctx); !apierrors.IsConflict(err) || applied != 2 || len(events.Events) != 0 {
		t.Errorf("got error %v, applied %d times, %d Events, want a conflict, twice, none", err, applied, len(events.Events))
	}
	// Another edit, which is invalid, follows.
	stored.ServiceNetwork = "nonsense"
	if _, err := objects.Update(ctx, stored, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	patchErr = nil
	for range 2 {
		if err := c.reconcile(ctx); err != nil {
			t.Error(err)
		}
	}
	wantInvalidThenActive(t, events)
}

// wantInvalidThenActive checks the Events of an invalid edit, and of the active network that precedes it.
func wantInvalidThenActive(t *testing.T, events *record.FakeRecorder) {
	t.Helper()
	if n := len(events.Events); n != 2 {
		t.Fatalf("got %d Events, want 2", n)
	}
	if got, want := <-events.Events, "Warning InvalidClusterNetwork "; !strings.HasPrefix(got, want) {
		t.Errorf("first Event: got %q, want prefix %q", got, want)
	}
	const want = "Normal AcceptedClusterNetwork active: 10.128.0.0/14 with 9 host bits; services 172.30.0.0/16; mode subnet; VXLAN port 4789; MTU 1400; " +
		"service proxy external (no annotation ovsdn.io/service-proxy)"
	if got := <-events.Events; got != want {
		t.Errorf("second Event: got %q, want %q", got, want)
	}
}

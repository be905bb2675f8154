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

// Others may write on the object between a leader's look and its verdict. Until the verdict is there, with the leader's name, nothing is
// given out; and what was accepted is told when it is there, though the first try was in vain.
func TestNothingIsGivenOutBeforeTheVerdictIsWritten(t *testing.T) {
	ctx := t.Context()
	wish, err := config.ParseNetwork(&networkv1.ClusterNetwork{
		PluginName: "subnet", ServiceNetwork: "172.30.0.0/16",
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
	})
	if err != nil {
		t.Fatal(err)
	}
	client := networkfake.NewClientset()
	objects := client.NetworkV1().ClusterNetworks()
	events := record.NewFakeRecorder(10)
	informer := networkinformers.NewSharedInformerFactory(client, 0).Network().V1().ClusterNetworks()
	followed := 0
	k, err := newNetworkKeeper(client, events, wish, "me", informer, func(context.Context, *config.Network) error {
		followed++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.queue.ShutDown)
	begun := func() bool {
		select {
		case <-k.inForce:
			return true
		default:
			return false
		}
	}
	var refused error
	client.PrependReactor("patch", "clusternetworks", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !k.ruling && begun() {
			t.Error("it was begun before the name is on the object")
		}
		return refused != nil, nil, refused
	})

	conflict := apierrors.NewConflict(networkv1.Resource("clusternetworks"), "default", nil)
	refused = conflict
	if err := k.keep(ctx); !apierrors.IsConflict(err) || begun() || followed != 1 {
		t.Fatalf("%v, begun: %t, followed: %d", err, begun(), followed)
	}
	refused = nil
	if err := k.keep(ctx); err != nil || !begun() {
		t.Fatalf("%v, begun: %t", err, begun())
	}
	stored, err := objects.Get(ctx, "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if by := stored.Annotations[config.ControllerAnnotation]; by != "me" {
		t.Errorf("the object names %q", by)
	}

	mtu := uint32(1400)
	stored.MTU = &mtu
	if _, err := objects.Update(ctx, stored, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	refused = conflict
	if err := k.keep(ctx); !apierrors.IsConflict(err) || followed != 2 || len(events.Events) != 0 {
		t.Errorf("%v, followed: %d, %d Events", err, followed, len(events.Events))
	}
	// Meanwhile another edit has come, which is wrong.
	if stored, err = objects.Get(ctx, "default", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	stored.ServiceNetwork = "nonsense"
	if _, err := objects.Update(ctx, stored, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	refused = nil
	for range 2 {
		if err := k.keep(ctx); err != nil {
			t.Error(err)
		}
	}
	if n := len(events.Events); n != 2 {
		t.Fatalf("%d Events", n)
	}
	if got, want := <-events.Events, "Warning InvalidClusterNetwork "; !strings.HasPrefix(got, want) {
		t.Errorf("the first Event is %q, want %s", got, want)
	}
	const want = "Normal AcceptedClusterNetwork in force: 10.128.0.0/14 with 9 host bits; services 172.30.0.0/16; mode subnet; VXLAN port 4789; MTU 1400"
	if got := <-events.Events; got != want {
		t.Errorf("the second Event is %q, want %q", got, want)
	}
}

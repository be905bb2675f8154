package node

import (
	"errors"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	networkfake "github.com/openshift/client-go/network/clientset/versioned/fake"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/nodestatus"
)

func TestHostSubnetHealthy(t *testing.T) {
	client := networkfake.NewSimpleClientset()
	a := &agent{Config: Config{NodeName: "node1"}, network: client, kube: fake.NewClientset()}
	c := a.newCaches()
	store := c.Network.Network().V1().HostSubnets().Informer().GetStore()
	if err := a.hostSubnetHealthy(c); !errors.Is(err, nodestatus.ErrNoHostSubnet) {
		t.Errorf("got %v without a HostSubnet, want ErrNoHostSubnet", err)
	}
	for name, annotations := range map[string]map[string]string{
		"confirmed": nil, "proposed": {config.ProposedAnnotation: ""}, "of a deleted Node": {config.NodeDeletedAnnotation: "2026-01-01T00:00:00Z"},
	} {
		hs := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "node1", Annotations: annotations}, Host: "node1", HostIP: "192.0.2.1", Subnet: "10.128.0.0/23"}
		if err := store.Replace([]any{hs}, ""); err != nil {
			t.Fatal(err)
		}
		if err := a.hostSubnetHealthy(c); err != nil {
			t.Errorf("%s: got %v, want no error", name, err)
		}
	}
}

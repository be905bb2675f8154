package node

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// The set-up continues when the controller has accepted other networks, which apply to the running firewall: on all nodes at once it would list all objects again.
// An edit that the controller refused changes nothing, and other fields end the set-up.
func TestWatchNetworkConfig_nonMasqueradeCIDRs(t *testing.T) {
	network := &config.Network{
		Mode: config.ModeSubnet, ClusterNetworks: []config.ClusterNetwork{{Prefix: netip.MustParsePrefix("10.128.0.0/14"), HostBits: 9}},
		ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"), VXLANPort: config.DefaultVXLANPort, MTU: 1450,
	}
	kube, ours := fake.NewClientset(nodeOf("uid")), networkfake.NewSimpleClientset()
	a := &agent{
		Config: Config{NodeName: "node1"}, network: ours, kube: kube,
		reporter: nodestatus.NewReporter(t.Context(), kube, "node1"), condition: nodestatus.NewCondition(kube.CoreV1().Nodes(), "node1"),
	}
	defer a.reporter.Stop()
	c := a.newCaches()
	must(t, c.Network.Network().V1().HostSubnets().Informer().GetStore().Add(&networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: "node1", Annotations: map[string]string{networkv1.NodeUIDAnnotation: "uid"}},
		Host:       "node1", HostIP: "192.0.2.1", Subnet: "10.128.0.0/23",
	}))
	store := func(annotations map[string]string) {
		t.Helper()
		accepted, err := network.Accepted()
		must(t, err)
		o := network.Object()
		o.Annotations = map[string]string{config.AcceptedAnnotation: accepted}
		maps.Copy(o.Annotations, annotations)
		must(t, c.Network.Network().V1().ClusterNetworks().Informer().GetStore().Add(o))
	}
	store(nil)
	active, err := a.clusterNetwork(c)
	must(t, err)
	hostSubnet, err := a.hostSubnet(c, active)
	must(t, err)
	setUp, changed := context.WithCancelCause(t.Context())
	defer changed(nil)
	check, err := a.watchNetworkConfig(changed, c, active, hostSubnet)
	must(t, err)
	var applied [][]netip.Prefix
	m := &masquerade{agent: a, caches: c, network: active, apply: func(_ context.Context, networks []netip.Prefix) ([]string, error) {
		applied = append(applied, networks)
		return nil, nil
	}}
	follow := func(want ...[]netip.Prefix) {
		t.Helper()
		m.sync(t.Context())
		if check(nil); setUp.Err() != nil {
			t.Errorf("the set-up ended: %v", context.Cause(setUp))
		}
		if diff := cmp.Diff(want, applied, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("applied networks differ (-want +got):\n%s", diff)
		}
	}
	follow()
	store(map[string]string{config.NonMasqueradeCIDRsAnnotation: "10.0.0.0"})
	follow()
	network.NonMasqueradeCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	store(nil)
	follow(network.NonMasqueradeCIDRs)
	follow(network.NonMasqueradeCIDRs)
	accepted := network.NonMasqueradeCIDRs
	network.NonMasqueradeCIDRs = nil
	store(nil)
	follow(accepted, nil)
	network.NonMasqueradeCIDRs, network.VXLANPort = accepted, 4790
	store(nil)
	if m.sync(t.Context()); len(applied) != 2 {
		t.Errorf("got networks %v applied to a set-up of another network", applied)
	}
	if check(nil); !errors.Is(context.Cause(setUp), errChanged) {
		t.Errorf("after an edit of another field: got cause %v, want %v", context.Cause(setUp), errChanged)
	}
}

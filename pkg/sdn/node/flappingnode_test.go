package node

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkfake "github.com/openshift/client-go/network/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/nodestatus"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

// While its Node is deleted and created again and again, the agent's set-up continues, and each new Node, which has no conditions, gets the agent's.
func TestWatchNetworkConfig_flappingNode(t *testing.T) {
	tier.Parallel(t)
	network := &config.Network{
		Mode: config.ModeSubnet, ClusterNetworks: []config.ClusterNetwork{{Prefix: netip.MustParsePrefix("10.128.0.0/14"), HostBits: 9}},
		ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"), VXLANPort: config.DefaultVXLANPort, MTU: 1450,
	}
	active := network.Object()
	accepted, err := network.Accepted()
	must(t, err)
	active.Annotations = map[string]string{config.AcceptedAnnotation: accepted}
	hostSubnet := &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: "node1", Annotations: map[string]string{networkv1.NodeUIDAnnotation: "uid0"}},
		Host:       "node1", HostIP: "192.0.2.1", Subnet: "10.128.0.0/23",
	}
	kube, ours := fake.NewClientset(nodeOf("uid0")), networkfake.NewSimpleClientset()
	a := &agent{
		Config: Config{NodeName: "node1"}, network: ours, kube: kube,
		reporter: nodestatus.NewReporter(t.Context(), kube, "node1"), condition: nodestatus.NewCondition(kube.CoreV1().Nodes(), "node1"),
	}
	defer a.reporter.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	c := a.newCaches()
	must(t, c.Network.Network().V1().ClusterNetworks().Informer().GetStore().Add(active))
	hostSubnets := c.Network.Network().V1().HostSubnets().Informer().GetStore()
	must(t, hostSubnets.Add(hostSubnet))
	running := make(chan struct{})
	go func() { defer close(running); a.condition.Run(ctx) }()
	defer func() { cancel(); <-running }()

	parsed, err := a.hostSubnet(c, network)
	must(t, err)
	setUp, changed := context.WithCancelCause(ctx)
	defer changed(nil)
	check, err := a.watchNetworkConfig(changed, c, network, parsed)
	must(t, err)
	a.condition.Set(nodestatus.Available("pods get addresses"))
	a.wantCondition(t, "uid0")
	annotate := func(annotation, value string) { // as the controller does; the watch calls check
		changed := hostSubnet.DeepCopy()
		changed.Annotations = map[string]string{annotation: value}
		must(t, hostSubnets.Update(changed))
		check(nil)
	}
	for i := range 10 {
		must(t, kube.CoreV1().Nodes().Delete(t.Context(), "node1", metav1.DeleteOptions{}))
		annotate(config.NodeDeletedAnnotation, "2026-01-01T00:00:00Z")
		uid := types.UID(fmt.Sprint("uid", i+1))
		_, err := kube.CoreV1().Nodes().Create(t.Context(), nodeOf(uid), metav1.CreateOptions{})
		must(t, err)
		annotate(networkv1.NodeUIDAnnotation, string(uid))
		a.wantCondition(t, uid)
	}
	if err := context.Cause(setUp); err != nil {
		t.Errorf("the set-up ended: %v", err)
	}
	events, err := kube.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(events.Items) > 0 {
		t.Errorf("got Events %+v, want none", events.Items)
	}
}

func nodeOf(uid types.UID) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: uid}}
}

// wantCondition waits until the Node with the UID has the agent's condition.
func (a *agent) wantCondition(t *testing.T, uid types.UID) {
	t.Helper()
	await.OK(t, 90*time.Second, func(ctx context.Context) error {
		node, err := a.kube.CoreV1().Nodes().Get(ctx, "node1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c := config.NetworkUnavailable(node); node.UID != uid || c == nil || c.Status != corev1.ConditionFalse {
			return fmt.Errorf("got Node %s with condition %+v, want %s with False", node.UID, c, uid)
		}
		return nil
	})
}

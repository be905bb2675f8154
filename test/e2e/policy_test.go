package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
	"github.com/ovsdn/ovsdn/test/seed"
)

// Policies have a lab of their own, in mode networkpolicy, for the time of their test. With policyLabVariable the test uses an existing lab and
// does not remove it.
const (
	policyLabVariable = "OVSDN_E2E_POLICIES_LAB"
	policyLab         = "e2e-policy"
)

// TestPolicies: in mode networkpolicy policies decide which packets arrive, from a pod's first packet on, also while agents and switches restart.
func TestPolicies(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: has a lab of its own; TestCapabilities sees some cases, newborn pods and revoked connections")
	}
	c := newPolicyCluster(t)
	t.Run("cases", func(t *testing.T) { testPolicyCases(t, c) })
	t.Run("first packets", func(t *testing.T) { testFirstPackets(t, c) })
	t.Run("connections", func(t *testing.T) { testConnections(t, c) })
	t.Run("cuts", func(t *testing.T) { testCuts(t, c) })
	t.Run("lasting", func(t *testing.T) { testLasting(t, c) })
	t.Run("restarts", func(t *testing.T) { testPolicyRestarts(t, c) })
	t.Run("probes", func(t *testing.T) { testProbes(t, c) })
	t.Run("hairpins", func(t *testing.T) { testHairpins(t, c) })
	t.Run("nodes", func(t *testing.T) { testNodeSources(t, c) })
	t.Run("pod replaced", func(t *testing.T) { seePodReplaced(t, trioOn(t, c)) })
	t.Run("flows", func(t *testing.T) { testPolicyFlows(t, c) })
	t.Run("updates", func(t *testing.T) { testPolicyUpdates(t, c) })
	// The last: what watches the API server pauses for up to half a minute after it.
	t.Run("no API server", func(t *testing.T) { testAPIServerAway(t, c) })
}

func newPolicyCluster(t *testing.T) *cluster {
	t.Helper()
	if name := os.Getenv(policyLabVariable); name != "" {
		return openCluster(t, name)
	}
	return ownCluster(t, policyLab, lab.Shape{Nodes: 2, Mode: lab.NetworkPolicy, ServiceProxy: lab.External, Install: fixture.Install()})
}

// grid is the cluster that the cases are about: three namespaces with three pods each, on both nodes.
type grid struct {
	*cluster
	*prober
	namespaces []string
	random     *rand.Rand
}

func gridNames(names ...string) []string { return names }

// newGrid also has both nodes, and a host outside that routes through the first, ask the pods.
func newGrid(t *testing.T, c *cluster) *grid {
	t.Helper()
	g := &grid{cluster: c, namespaces: gridNames("x", "y", "z"), random: seed.Rand(t)}
	for _, ns := range g.namespaces {
		c.namedNamespace(t, ns, map[string]string{"ns": ns})
		for i, name := range gridNames("a", "b", "c") {
			c.Create(t, ns, gridPod(name, []string{fixture.Node1, fixture.Node2}[i%2]))
		}
	}
	var stations []*station
	for _, ns := range g.namespaces {
		for _, name := range gridNames("a", "b", "c") {
			p := c.Ready(t, ns, name)
			p.Name = ns + "/" + name
			stations = append(stations, &station{end: p.End(), pod: true, node: p.Node})
		}
	}
	for _, node := range []string{fixture.Node1, fixture.Node2} {
		e := end{Name: node, NetNS: c.Machine(t, node).NetNS, Addr: c.Gateway(t, node)}
		stations = append(stations, &station{end: e, node: node})
	}
	c.routeOutside(t, fixture.Node1)
	outside := end{Name: "outside", NetNS: c.Machine(t, lab.Outside).NetNS, Addr: lab.OutsideAddr()}
	g.prober = newProber(t, append(stations, &station{end: outside, through: fixture.Node1})...)
	g.statelessSCTP = c.Shape().Datapath == lab.Netdev
	return g
}

// gridPod has names for the ports that the cases speak of.
func gridPod(name, node string) *corev1.Pod {
	p := fixture.Netexec(name, node)
	p.Labels = map[string]string{"pod": name}
	container := &p.Spec.Containers[0]
	container.Args, container.ReadinessProbe = []string{"pause"}, nil
	for _, port := range []int32{80, 81} {
		for word, protocol := range map[string]corev1.Protocol{"tcp": corev1.ProtocolTCP, "udp": corev1.ProtocolUDP, "sctp": corev1.ProtocolSCTP} {
			container.Ports = append(container.Ports, corev1.ContainerPort{Name: fmt.Sprintf("serve-%d-%s", port, word), ContainerPort: port, Protocol: protocol})
		}
	}
	return p
}

// namedNamespace is namespace for those that are called by their names.
func (c *cluster) namedNamespace(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	fixture.Eventually(t, fixture.PodTime, "create namespace "+name, func(ctx context.Context) error {
		_, err := c.Kube.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) { // one of that name is being deleted
			t.Fatal(err)
		}
		return err
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.PodTime)
		defer cancel()
		if err := errors.Join(c.DeletePods(ctx, name), c.Kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})); err != nil {
			t.Errorf("clean up namespace %s: %v", name, err)
		}
	})
}

// routeOutside gives the host outside a route to the cluster through a node, until the test ends.
func (c *cluster) routeOutside(t *testing.T, node string) {
	t.Helper()
	network := c.Shape().ClusterNetwork.String()
	c.Output(t, lab.Outside, "ip", "route", "replace", network, "via", c.Addr(t, node).String())
	t.Cleanup(func() {
		if _, err := c.TryOutput(context.WithoutCancel(t.Context()), lab.Outside, "ip", "route", "del", network); err != nil {
			t.Error(err)
		}
	})
}

// objects are what the API server has now, for the oracle.
func (c *cluster) objects(t *testing.T) *oracle.Cluster {
	t.Helper()
	namespaces, err := c.Kube.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := c.Kube.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	policies, err := c.Kube.NetworkingV1().NetworkPolicies("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := &oracle.Cluster{HostNetwork: []string{hostNetworkNamespace}, NodeAddrs: map[string][]netip.Addr{}}
	for _, node := range c.Nodes() {
		all.NodeAddrs[node] = []netip.Addr{c.Addr(t, node), c.Gateway(t, node)}
	}
	for i := range namespaces.Items {
		all.Namespaces = append(all.Namespaces, &namespaces.Items[i])
	}
	for i := range pods.Items {
		all.Pods = append(all.Pods, &pods.Items[i])
	}
	for i := range policies.Items {
		all.Policies = append(all.Policies, &policies.Items[i])
	}
	return all
}

func (c *cluster) deletePolicies(t *testing.T, namespace string) {
	t.Helper()
	policies := c.Kube.NetworkingV1().NetworkPolicies(namespace)
	if err := policies.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}

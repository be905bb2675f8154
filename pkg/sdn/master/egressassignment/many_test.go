package egressassignment

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	networkv1 "github.com/openshift/api/network/v1"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressstatus"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/egresspolicy"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
)

// testMany: of 1,000 namespaces with egress firewalls 100 have an egress IP, on 20 nodes.
func testMany(t *testing.T, c *cluster) {
	if testing.Short() {
		t.Skip("complete tier: creates 1,000 objects, and compares times")
	}
	const nodes, namespaces, ips = 20, 1000, 100
	for n := 1; n <= nodes; n++ {
		c.addNode(n, everywhere)
	}
	for i := range namespaces {
		var own []string
		if i < ips {
			own = []string{fmt.Sprint("192.0.2.", 1+i)}
		}
		c.setNamespace(fmt.Sprint("ns", i), uint32(100+i), own...) //nolint:gosec // small
	}
	c.addFirewalls(namespaces)
	c.writes.Store(0)
	start := cpuTime(t)
	_, stop := c.lead()
	defer stop()
	c.leadFirewalls()
	c.wantBalanced(nodes, ips)
	c.awaitProbed(nodes)
	c.log("assigned", start)
	start = cpuTime(t)
	c.awaitFirewalls(namespaces)
	c.log("reported the egress firewalls", start)
	before, err := c.placement(t.Context())
	c.must(err)
	start = cpuTime(t)
	died := time.Now()
	c.kill(true, 7)
	await.OK(t, timeout, func(ctx context.Context) error {
		got, err := c.placement(ctx)
		if err == nil && got[nodeName(7)] != "*" {
			err = fmt.Errorf("node07 has %q", got[nodeName(7)])
		}
		return err
	})
	took := time.Since(died)
	c.wantBalanced(nodes-1, ips)
	t.Logf("removed the IPs of the dead node after %v, all moved after %v", took, time.Since(died))
	if limit := 3 * time.Second; took > limit {
		t.Errorf("removed the IPs of the dead node after %v, want at most %v", took, limit)
	}
	c.log("moved", start)
	after, err := c.placement(t.Context())
	c.must(err)
	for name, ips := range before {
		for ip := range strings.FieldsSeq(ips) {
			if name != nodeName(7) && !slices.Contains(strings.Fields(after[name]), ip) {
				t.Errorf("%s left %s, which lives", ip, name)
			}
		}
	}
}

// log logs the writes and the CPU time of this process since start, and clears the writes.
func (c *cluster) log(what string, start time.Duration) {
	c.t.Helper()
	c.t.Logf("%s: %d writes, %v CPU time of the test", what, c.writes.Swap(0), cpuTime(c.t)-start)
}

func cpuTime(t *testing.T) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// addFirewalls creates an EgressNetworkPolicy in each of the namespaces.
func (c *cluster) addFirewalls(namespaces int) {
	c.t.Helper()
	rule := func(action networkv1.EgressNetworkPolicyRuleType, cidr string) networkv1.EgressNetworkPolicyRule {
		return networkv1.EgressNetworkPolicyRule{Type: action, To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: cidr}}
	}
	for i := range namespaces {
		name := fmt.Sprint("ns", i)
		_, err := c.kube.CoreV1().Namespaces().Create(c.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		c.must(err)
		_, err = c.network.NetworkV1().EgressNetworkPolicies(name).Create(c.t.Context(), &networkv1.EgressNetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "default"},
			Spec: networkv1.EgressNetworkPolicySpec{Egress: []networkv1.EgressNetworkPolicyRule{
				rule(networkv1.EgressNetworkPolicyRuleAllow, fmt.Sprintf("203.0.113.%d/32", i%256)), rule(networkv1.EgressNetworkPolicyRuleDeny, "0.0.0.0/0"),
			}},
		}, metav1.CreateOptions{})
		c.must(err)
	}
}

// leadFirewalls starts the controller that reports how EgressNetworkPolicies are enforced, as the leader does, until the test ends.
func (c *cluster) leadFirewalls() {
	c.t.Helper()
	kube, network := c.clients()
	informers := networkinformers.NewSharedInformerFactory(network, 0)
	of := informers.Network().V1()
	controller, err := egresspolicy.New(of.EgressNetworkPolicies().Informer(), of.NetNamespaces().Informer(), of.HostSubnets().Informer(), egressstatus.Client{Network: network}, recorder{c: c})
	c.must(err)
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	informers.Start(ctx.Done())
	controller.SetMode(config.ModeMultitenant)
	var running sync.WaitGroup
	running.Go(func() { controller.Run(ctx) })
	c.t.Cleanup(func() {
		cancel()
		running.Wait()
		informers.Shutdown()
		apitest.Disconnect(kube, network)
	})
}

// awaitFirewalls waits until all EgressNetworkPolicies are reported as accepted.
func (c *cluster) awaitFirewalls(namespaces int) {
	c.t.Helper()
	last := egressstatus.Client{Network: c.network}
	for i := range namespaces {
		await.OK(c.t, timeout, func(ctx context.Context) error {
			status, err := last.Get(ctx, fmt.Sprint("ns", i), "default")
			if err == nil && !meta.IsStatusConditionTrue(status.Conditions, egressstatus.ConditionAccepted) {
				err = fmt.Errorf("EgressNetworkPolicy of ns%d: got conditions %v", i, status.Conditions)
			}
			return err
		})
	}
}

package egressassignment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
)

// TestController runs controllers against a real API server.
func TestController(t *testing.T) {
	c := newCluster(t)
	for _, tc := range []struct {
		name string
		test func(*testing.T, *cluster)
	}{
		{"assigns", testAssigns},
		{"moves the IPs of a dead node", testFailover},
		{"marks a dead node with manual IPs", testManual},
		{"reports conflicts", testConflicts},
		{"ends with mode subnet", testModeSubnet},
		{"a deleted node returns", testRetained},
		{"two leaders", testTwoLeaders},
		{"many namespaces", testMany},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.t = t
			t.Cleanup(c.wipe)
			tc.test(t, c)
		})
	}
}

const everywhere = "192.0.2.0/24"

func testAssigns(t *testing.T, c *cluster) {
	before := goleak.IgnoreCurrent()
	c.addNode(1, everywhere)
	c.addNode(2, everywhere)
	c.addNode(3)
	c.setNamespace("shop", 100, "192.0.2.1", "192.0.2.3")
	c.setNamespace("dev", 101, "192.0.2.2")
	_, stop := c.lead()
	c.wantPlacement(map[string]string{"node01": "192.0.2.1", "node02": "192.0.2.2 192.0.2.3", "node03": ""})

	c.edit(1, func(o *networkv1.HostSubnet) { o.EgressIPs = []networkv1.HostSubnetEgressIP{"192.0.2.9", "192.0.2.2"} })
	c.wantPlacement(map[string]string{"node01": "192.0.2.1", "node02": "192.0.2.2 192.0.2.3", "node03": ""})
	c.edit(3, func(o *networkv1.HostSubnet) { o.EgressIPs = []networkv1.HostSubnetEgressIP{"192.0.2.1"} }) // manually
	c.wantPlacement(map[string]string{"node01": "192.0.2.3", "node02": "192.0.2.2", "node03": "192.0.2.1"})
	c.setNamespace("dev", 101)
	c.wantPlacement(map[string]string{"node01": "192.0.2.3", "node02": "", "node03": "192.0.2.1"})
	c.edit(1, func(o *networkv1.HostSubnet) { o.EgressCIDRs = []networkv1.HostSubnetEgressCIDR{"198.51.100.0/24"} })
	c.wantPlacement(map[string]string{"node01": "", "node02": "192.0.2.3", "node03": "192.0.2.1"})
	stop()
	await.OK(t, timeout, func(context.Context) error {
		apitest.Disconnect(c.kube, c.network)
		return goleak.Find(before)
	})
}

func testFailover(t *testing.T, c *cluster) {
	for n := 1; n <= 3; n++ {
		c.addNode(n, everywhere)
	}
	c.setNamespace("shop", 100, "192.0.2.1", "192.0.2.2", "192.0.2.3")
	c.setNamespace("dev", 101, "192.0.2.4", "192.0.2.5", "192.0.2.6")
	controller, stop := c.lead()
	c.wantPlacement(map[string]string{"node01": "192.0.2.1 192.0.2.4", "node02": "192.0.2.2 192.0.2.5", "node03": "192.0.2.3 192.0.2.6"})
	c.awaitProbed(3)
	conflicts := c.watchConflicts()
	c.kill(true, 2)
	c.wantPlacement(map[string]string{"node01": "192.0.2.1 192.0.2.2 192.0.2.4", "node02": "*", "node03": "192.0.2.3 192.0.2.5 192.0.2.6"})
	c.awaitEvent("EgressNodeUnreachable node02", "does not answer")
	c.awaitEvent("EgressIPMoved shop", "192.0.2.2 moved from node node02 to node node01")
	if got := controller.Failovers(); got != 1 {
		t.Errorf("got %d failovers, want 1", got)
	}
	stop()
	_, stop = c.lead() // which has no answer of node02, and knows that there was one
	defer stop()
	c.kill(true, 3)
	c.wantPlacement(map[string]string{"node01": "192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5 192.0.2.6", "node02": "*", "node03": "*"})
	c.kill(false, 2, 3)
	await.OK(t, timeout, func(ctx context.Context) error {
		got, err := c.placement(ctx)
		for _, ips := range got {
			if strings.Count(ips, "192.") != 2 || strings.Contains(ips, "*") {
				return fmt.Errorf("got %q, want two on each node", got)
			}
		}
		return err
	})
	c.awaitEvent("EgressNodeReachable node02", "")
	if found := conflicts(); len(found) > 0 {
		t.Errorf("two nodes had an IP at the same time: %q", found)
	}
}

// awaitProbed waits until nodes have answered.
func (c *cluster) awaitProbed(want int) {
	c.t.Helper()
	await.OK(c.t, timeout, func(ctx context.Context) error {
		list, err := c.network.NetworkV1().HostSubnets().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		n := 0
		for _, o := range list.Items {
			if o.Annotations[config.EgressProbedAnnotation] == "true" {
				n++
			}
		}
		if n != want {
			return fmt.Errorf("got %d nodes that have answered, want %d", n, want)
		}
		return nil
	})
}

func testManual(t *testing.T, c *cluster) {
	c.addNode(1, "192.0.2.1")
	c.addNode(2, "192.0.2.2")
	c.setNamespace("shop", 100, "192.0.2.1", "192.0.2.2")
	controller, stop := c.lead()
	defer stop()
	c.awaitProbed(2)
	c.wantPlacement(map[string]string{"node01": "192.0.2.1", "node02": "192.0.2.2"})
	c.kill(true, 1)
	c.wantPlacement(map[string]string{"node01": "192.0.2.1*", "node02": "192.0.2.2"})
	c.kill(true, 2) // no node answers
	c.kill(false, 1)
	c.wantPlacement(map[string]string{"node01": "192.0.2.1", "node02": "192.0.2.2*"})
	c.kill(false, 2)
	c.wantPlacement(map[string]string{"node01": "192.0.2.1", "node02": "192.0.2.2"})
	await.OK(t, timeout, func(context.Context) error {
		if got := controller.Usage(); got != (Usage{Active: 2}) {
			return fmt.Errorf("got %+v, want two active", got)
		}
		return nil
	})
}

func testConflicts(t *testing.T, c *cluster) {
	c.addNode(1, "192.0.2.1", "192.0.2.7")
	c.addNode(2, "192.0.2.1")
	c.addNode(3, everywhere)
	c.setNamespace("a", 100, "192.0.2.1", "192.0.2.2")
	c.setNamespace("b", 101, "192.0.2.2", "192.168.0.3")
	c.setNamespace("c", 102, "10.128.7.7", "127.0.0.1", "198.51.100.1")
	controller, stop := c.lead()
	defer stop()
	c.awaitEvent("EgressIPConflict a", "192.0.2.1 is not used, since several nodes host it: node01, node02")
	c.awaitEvent("EgressIPConflict node02", "192.0.2.1 is not used, since several nodes host it: node01, node02")
	c.awaitEvent("EgressIPConflict a", "192.0.2.2 is not used, since several namespaces have it: a, b")
	c.awaitEvent("EgressIPConflict b", "192.168.0.3 is not used, since it is the address of a node")
	c.awaitEvent("EgressIPConflict c", "10.128.7.7 is not used, since it lies in the cluster network")
	c.awaitEvent("InvalidEgressIP c", "egressIPs[1]: 127.0.0.1")
	c.wantPlacement(map[string]string{"node01": "192.0.2.1 192.0.2.7", "node02": "192.0.2.1", "node03": ""})
	want := Usage{Active: 0, Unhosted: 1, Conflict: 4, Unused: 1}
	await.OK(t, timeout, func(context.Context) error {
		if got := controller.Usage(); got != want {
			return fmt.Errorf("got %+v, want %+v", got, want)
		}
		return nil
	})
	c.setNamespace("b", 101)
	c.wantPlacement(map[string]string{"node01": "192.0.2.1 192.0.2.7", "node02": "192.0.2.1", "node03": "192.0.2.2"})
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.IndexFunc(c.events, func(e string) bool { return strings.HasPrefix(e, "EgressIPNotHosted") }); i >= 0 {
		t.Errorf("got %s before the grace has passed", c.events[i])
	}
}

// A returned node must not have the IPs that other nodes got in the meantime.
func testRetained(t *testing.T, c *cluster) {
	c.addNode(1, everywhere)
	c.addNode(2, everywhere)
	c.setNamespace("shop", 100, "192.0.2.1", "192.0.2.2")
	_, stop := c.lead()
	defer stop()
	c.wantPlacement(map[string]string{"node01": "192.0.2.1", "node02": "192.0.2.2"})
	c.edit(2, func(o *networkv1.HostSubnet) {
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, config.NodeDeletedAnnotation, time.Now().Format(time.RFC3339))
	})
	c.wantPlacement(map[string]string{"node01": "192.0.2.1 192.0.2.2", "node02": ""})
	conflicts := c.watchConflicts()
	c.edit(2, func(o *networkv1.HostSubnet) { delete(o.Annotations, config.NodeDeletedAnnotation) })
	c.wantPlacement(map[string]string{"node01": "192.0.2.1", "node02": "192.0.2.2"})
	if found := conflicts(); len(found) > 0 {
		t.Errorf("two nodes had an IP at the same time: %q", found)
	}
}

func testModeSubnet(t *testing.T, c *cluster) {
	c.addNode(1, everywhere)
	controller, stop := c.lead()
	defer stop()
	c.setNamespace("shop", 100, "192.0.2.1")
	c.wantPlacement(map[string]string{"node01": "192.0.2.1"})
	c.setNamespace("dev", 101, "127.0.0.1")
	c.awaitEvent("InvalidEgressIP dev", "127.0.0.1")
	controller.SetNetwork(testNetwork(config.ModeSubnet))
	c.setNamespace("shop", 100, "192.0.2.2")
	controller.SetNetwork(testNetwork(config.ModeSubnet)) // behind the event
	c.wantPlacement(map[string]string{"node01": "192.0.2.1"})
	await.OK(t, timeout, func(context.Context) error {
		if got := controller.Usage(); got != (Usage{}) {
			return fmt.Errorf("got %+v in mode subnet", got)
		}
		return nil
	})
	c.mu.Lock()
	c.events = nil
	c.mu.Unlock()
	controller.SetNetwork(testNetwork(config.ModeNetworkPolicy))
	c.wantPlacement(map[string]string{"node01": "192.0.2.2"})
	c.awaitEvent("InvalidEgressIP dev", "127.0.0.1") // again: in mode subnet it was no problem
}

// Two leaders, as after the loss of a lease that was not noticed, agree in the end.
func testTwoLeaders(t *testing.T, c *cluster) {
	for n := 1; n <= 4; n++ {
		c.addNode(n, everywhere)
	}
	for i := range 12 {
		c.setNamespace(fmt.Sprint("ns", i), uint32(100+i), fmt.Sprint("192.0.2.", 1+i)) //nolint:gosec // small
	}
	_, stop := c.lead()
	defer stop()
	_, stop2 := c.lead()
	defer stop2()
	c.wantBalanced(4, 12)
	c.awaitProbed(4)
	conflicts := c.watchConflicts()
	c.kill(true, 1)
	c.wantBalanced(3, 12)
	c.kill(false, 1)
	c.wantBalanced(4, 12)
	t.Logf("IPs that two nodes had for a moment: %q", conflicts())
}

// wantBalanced waits until so many IPs are on so many nodes, within one, and no IP is on two.
func (c *cluster) wantBalanced(nodes, ips int) {
	c.t.Helper()
	await.OK(c.t, timeout, func(ctx context.Context) error {
		got, err := c.placement(ctx)
		if err != nil {
			return err
		}
		seen, used := map[string]bool{}, 0
		for name, text := range got {
			list := strings.Fields(strings.TrimSuffix(text, "*"))
			if len(list) == 0 {
				continue
			}
			used++
			if len(list) < ips/nodes || len(list) > (ips+nodes-1)/nodes {
				return fmt.Errorf("%s has %d IPs: %q", name, len(list), got)
			}
			for _, ip := range list {
				if seen[ip] {
					return errors.New(ip + " is on two nodes")
				}
				seen[ip] = true
			}
		}
		if used != nodes || len(seen) != ips {
			return fmt.Errorf("got %d IPs on %d nodes, want %d on %d: %q", len(seen), used, ips, nodes, got)
		}
		return nil
	})
}

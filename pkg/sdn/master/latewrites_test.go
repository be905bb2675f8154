package master_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
)

// noDuplicates fails the test if two confirmed subnets overlap at any time until its end.
func (c *cluster) noDuplicates(t *testing.T) {
	t.Helper()
	// A separate client: the test closes the administrator's connections.
	client := must(networkclient.NewForConfig(c.admin))(t)
	ctx, cancel := context.WithCancel(context.Background())
	list := must(client.NetworkV1().HostSubnets().List(ctx, metav1.ListOptions{}))(t)
	w := must(client.NetworkV1().HostSubnets().Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion}))(t)
	confirmed := map[string]netip.Prefix{}
	var running sync.WaitGroup
	running.Go(func() {
		for e := range w.ResultChan() {
			hs, ok := e.Object.(*networkv1.HostSubnet)
			if !ok {
				if ctx.Err() == nil {
					t.Errorf("watch: %v", e)
				}
				return
			}
			delete(confirmed, hs.Name)
			if e.Type == watch.Deleted || config.IsProposed(hs) {
				continue
			}
			p, err := netip.ParsePrefix(hs.Subnet)
			if err != nil {
				t.Error(err)
			}
			for name, other := range confirmed {
				if other.Overlaps(p) {
					t.Errorf("subnet %s of %s overlaps %s of %s", p, hs.Name, other, name)
				}
			}
			confirmed[hs.Name] = p
		}
	})
	t.Cleanup(func() {
		cancel()
		w.Stop()
		running.Wait()
	})
}

// withoutElection runs a controller without a lease: the test must pass without it.
func withoutElection(cfg *master.Config) { cfg.LeaderElect = false }

// A leader chooses subnets for two nodes and is suspended before it writes. Another leader allocates these subnets to other nodes. Then the
// writes of the first leader arrive.
func testLateWrites(t *testing.T, c *cluster) {
	c.noLeaks(t)
	c.noDuplicates(t)
	proxy := newSlowProxy(t, c.master, func(r *http.Request) bool {
		return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/hostsubnets")
	})
	t.Cleanup(proxy.close)
	_, stopLate := c.start(t, func(cfg *master.Config) {
		withoutElection(cfg)
		cfg.REST = proxy.config
	})
	c.addNode(t, "deleted", "192.0.2.1")
	proxy.awaitDelayed(t, 1)
	c.addNode(t, "unready", "192.0.2.2")
	proxy.awaitDelayed(t, 2)
	proxy.freeze()

	c.deleteNode(t, "deleted")
	c.setAddress(t, "unready", "") // so that the next leader does not write for it
	c.start(t, withoutElection)
	c.addNode(t, "node3", "192.0.2.3")
	c.hostSubnet(t, "node3", has("10.128.0.0/23"))
	c.addNode(t, "node4", "192.0.2.4")
	c.hostSubnet(t, "node4", has("10.129.0.0/23"))

	proxy.open()
	for _, name := range []string{"deleted", "unready"} { // the API server accepts late writes
		proxy.awaitStatus(t, "POST /apis/network.openshift.io/v1/hostsubnets "+name, http.StatusCreated)
	}
	eventually(t, func(ctx context.Context) error {
		list, err := c.network.NetworkV1().HostSubnets().List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) != 2 {
			err = fmt.Errorf("got HostSubnets %v, want 2", list.Items)
		}
		return err
	})
	c.setAddress(t, "unready", "192.0.2.2")
	c.hostSubnet(t, "unready", nil)
	c.hostSubnet(t, "node3", has("10.128.0.0/23"))
	c.hostSubnet(t, "node4", has("10.129.0.0/23"))
	stopLate()
	proxy.close()
}

// A leader accepts the removal of an unused range and is suspended before it writes. The next leader allocates a subnet of the range. Then the
// write of the first leader arrives.
func testSuperseded(t *testing.T, c *cluster) {
	c.noLeaks(t)
	patches := 0
	proxy := newSlowProxy(t, c.master, func(r *http.Request) bool {
		if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/clusternetworks/default") {
			patches++
		}
		return patches > 1 // the first writes the name
	})
	t.Cleanup(proxy.close)
	ranges := []string{"10.128.0.0/23", "10.9.0.0/23"}
	late, stopLate := c.start(t, func(cfg *master.Config) {
		withoutElection(cfg)
		cfg.REST = proxy.config
		cfg.ClusterNetworks = ranges
	})
	c.accepted(t, "True", "Accepted", "", "10.128.0.0/23 with 9 host bits", "10.9.0.0/23 with 9 host bits")
	c.addNode(t, "node1", "192.0.2.1")
	c.hostSubnet(t, "node1", has("10.128.0.0/23"))
	c.edit(t, setRanges("10.128.0.0/23"))
	proxy.awaitDelayed(t, 1)

	// The edit is reverted before the next leader allocates from the second range.
	c.edit(t, setRanges(ranges...))
	c.start(t, withoutElection)
	c.addNode(t, "node2", "192.0.2.2")
	c.hostSubnet(t, "node2", has("10.9.0.0/23"))
	before := c.clusterNetwork(t)

	proxy.open()
	proxy.awaitStatus(t, "PATCH /apis/network.openshift.io/v1/clusternetworks/default ", http.StatusConflict)
	var now *networkv1.ClusterNetwork
	eventually(t, func(context.Context) error {
		stopped := late.contains("wrote its name to ClusterNetwork default")
		now = c.clusterNetwork(t) // before its next term
		if !stopped {
			return errors.New("the previous leader did not stop leading")
		}
		return nil
	})
	stopLate()
	if now.ResourceVersion != before.ResourceVersion {
		t.Errorf("the previous leader wrote: %v", now.Annotations)
	}
	proxy.close()
}

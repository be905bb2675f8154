package main

import (
	"context"
	"fmt"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
	"github.com/ovsdn/ovsdn/test/apitest"
)

// masterFigure: a master that comes to a cluster whose nodes have no subnets. The floor is a loop that knows them all beforehand
// and only creates the objects, at the same pace and as many at a time.
func masterFigure() figure {
	return figure{
		name:  "master",
		about: "HostSubnets for 1,000 and 5,000 nodes, beside a bare loop that creates the same objects at the same pace",
		run:   runMaster,
	}
}

// The pace that the master gives itself (pkg/sdn/master).
const (
	masterQPS   = 100
	masterBurst = 200
)

func runMaster(b *B) {
	server := apitest.Start(b)
	c := &masterCluster{b: b, server: server}
	var err error
	c.kube, err = kubernetes.NewForConfig(server)
	b.must(err)
	c.network, err = networkclient.NewForConfig(server)
	b.must(err)
	paced := rest.CopyConfig(server)
	paced.QPS, paced.Burst = masterQPS, masterBurst
	c.paced, err = networkclient.NewForConfig(paced)
	b.must(err)

	_, err = c.kube.CoreV1().Namespaces().Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ovsdn-system"}}, metav1.CreateOptions{})
	b.must(err) // the master's own

	for _, n := range []int{1000, 5000} {
		c.makeNodes(n)
		var ours, bare []time.Duration
		rounds := b.rounds
		if n > 1000 {
			rounds = 1 // minutes
		}
		for i := range rounds {
			b.say("%d nodes: round %d of %d", n, i+1, rounds)
			took, made := c.master(n)
			ours = append(ours, took)
			c.deleteHostSubnets()
			took, err := timed(func() error { return c.bare(made) })
			b.must(err)
			bare = append(bare, took)
			c.deleteHostSubnets()
		}
		b.record(fmt.Sprintf("%d nodes", n), "s", seriesOf("ours", seconds(ours)), seriesOf("bare loop", seconds(bare)))
	}
}

type masterCluster struct {
	b       *B
	server  *rest.Config
	kube    kubernetes.Interface
	network networkclient.Interface
	paced   networkclient.Interface
	nodes   int
}

// makeNodes adds to the nodes until there are so many.
func (c *masterCluster) makeNodes(n int) {
	c.b.Helper()
	c.b.say("making nodes, to have %d", n)
	first := c.nodes
	c.b.must(each(c.b.Context(), n-first, func(ctx context.Context, i int) error {
		i += first
		o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%d", i)}}
		o.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.168.%d.%d", i/250, 1+i%250)}}
		_, err := c.kube.CoreV1().Nodes().Create(ctx, o, metav1.CreateOptions{})
		return err
	}))
	c.nodes = n
}

// master runs the master until every node has its HostSubnet, and returns these.
func (c *masterCluster) master(n int) (time.Duration, []*networkv1.HostSubnet) {
	c.b.Helper()
	hostSubnets, err := c.network.NetworkV1().HostSubnets().Watch(c.b.Context(), metav1.ListOptions{})
	c.b.must(err)
	defer hostSubnets.Stop()

	cfg := master.Defaults()
	cfg.REST = c.server
	cfg.ClusterNetworks = []string{"10.128.0.0/10"} // 8,192 subnets
	ctx, cancel := context.WithCancel(c.b.Context())
	defer cancel()
	ended := make(chan error, 1)
	var given map[string]*networkv1.HostSubnet
	took, err := timed(func() error {
		go func() { ended <- master.Run(ctx, cfg) }()
		given, err = collect(ctx, hostSubnets, n, ended)
		return err
	})
	c.b.must(err)
	cancel()
	c.b.must(<-ended)
	var all []*networkv1.HostSubnet
	for _, o := range given {
		all = append(all, o)
	}
	return took, all
}

// collect waits for n HostSubnets that are in force.
func collect(ctx context.Context, w watch.Interface, n int, ended <-chan error) (map[string]*networkv1.HostSubnet, error) {
	given := map[string]*networkv1.HostSubnet{}
	for len(given) < n {
		select {
		case event, open := <-w.ResultChan():
			if !open {
				return nil, fmt.Errorf("the watch ended with %d of %d HostSubnets", len(given), n)
			}
			o, ok := event.Object.(*networkv1.HostSubnet)
			if ok && event.Type != watch.Deleted && !config.IsProposed(o) {
				given[o.Name] = o
			}
		case err := <-ended:
			return nil, fmt.Errorf("the master ended: %w", err)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return given, nil
}

// bare creates the same objects.
func (c *masterCluster) bare(all []*networkv1.HostSubnet) error {
	return each(c.b.Context(), len(all), func(ctx context.Context, i int) error {
		o := &networkv1.HostSubnet{
			ObjectMeta: metav1.ObjectMeta{Name: all[i].Name, Annotations: all[i].Annotations},
			Host:       all[i].Host, HostIP: all[i].HostIP, Subnet: all[i].Subnet,
		}
		_, err := c.paced.NetworkV1().HostSubnets().Create(ctx, o, metav1.CreateOptions{})
		return err
	})
}

func (c *masterCluster) deleteHostSubnets() {
	c.b.Helper()
	c.b.must(c.network.NetworkV1().HostSubnets().DeleteCollection(c.b.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
}

package main

import (
	"context"
	"fmt"
	"maps"
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

// masterFigure: a master that starts in a cluster whose nodes have no subnets. The floor is a loop with a known list of nodes that only
// creates the objects, at the same pace and concurrency; the peer also makes the master's second call, which activates a subnet that no
// other controller has proposed.
func masterFigure() figure {
	return figure{
		name:  "master",
		about: "HostSubnets for 1,000 and 5,000 nodes, beside a bare loop that creates the same objects at the same pace",
		run:   runMaster,
	}
}

// The pace that the master gives itself (pkg/sdn/master).
const (
	masterQPS   = 200
	masterBurst = 400
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

	for _, size := range []struct{ nodes, rounds int }{{1000, min(b.rounds, 3)}, {5000, 1}} { // a round takes half a minute, or two
		c.makeNodes(size.nodes)
		var ours, create, both []time.Duration
		for i := range size.rounds {
			b.progress("%d nodes: round %d of %d: the master, then the loops", size.nodes, i+1, size.rounds)
			took, made := c.master(size.nodes)
			ours = append(ours, took)
			c.deleteHostSubnets()
			create = append(create, c.loop(made, c.create))
			c.deleteHostSubnets()
			both = append(both, c.loop(made, c.proposeAndConfirm))
			c.deleteHostSubnets()
		}
		b.record(fmt.Sprintf("%d nodes", size.nodes), "s", seriesOf("ours", seconds(ours)),
			seriesOf("loop, creates only", seconds(create)), seriesOf("loop, same calls", seconds(both)))
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
	c.b.progress("making nodes, to have %d", n)
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
	cfg.REST, cfg.LeaderElect, cfg.HealthzAddress, cfg.Metrics.Address = c.server, false, "0", "0"
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

// collect waits for n active HostSubnets.
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

// loop makes the same objects, one call for each, and returns how long it takes.
func (c *masterCluster) loop(all []*networkv1.HostSubnet, call func(context.Context, *networkv1.HostSubnet) error) time.Duration {
	c.b.Helper()
	took, err := timed(func() error {
		return each(c.b.Context(), len(all), func(ctx context.Context, i int) error {
			return call(ctx, &networkv1.HostSubnet{
				ObjectMeta: metav1.ObjectMeta{Name: all[i].Name, Annotations: all[i].Annotations},
				Host:       all[i].Host, HostIP: all[i].HostIP, Subnet: all[i].Subnet,
			})
		})
	})
	c.b.must(err)
	return took
}

func (c *masterCluster) create(ctx context.Context, o *networkv1.HostSubnet) error {
	_, err := c.paced.NetworkV1().HostSubnets().Create(ctx, o, metav1.CreateOptions{})
	return err
}

func (c *masterCluster) proposeAndConfirm(ctx context.Context, o *networkv1.HostSubnet) error {
	active := o.Annotations
	o.Annotations = maps.Clone(active)
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, config.ProposedAnnotation, "")
	o, err := c.paced.NetworkV1().HostSubnets().Create(ctx, o, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	o.Annotations = active
	_, err = c.paced.NetworkV1().HostSubnets().Update(ctx, o, metav1.UpdateOptions{})
	return err
}

func (c *masterCluster) deleteHostSubnets() {
	c.b.Helper()
	c.b.must(c.network.NetworkV1().HostSubnets().DeleteCollection(c.b.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
}

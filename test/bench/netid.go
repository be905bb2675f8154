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
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/ovsdn/ovsdn/pkg/sdn/master"
	"github.com/ovsdn/ovsdn/test/apitest"
)

// netidNamespaces is how many namespaces the master catches up with, besides Kubernetes' own.
const netidNamespaces = 10_000

// netidFigure: a master that comes to a cluster whose namespaces have no VNIDs. The floor is a loop that knows them all beforehand
// and only creates the objects, at the same pace and as many at a time. A second master then finds all in order.
func netidFigure() figure {
	return figure{
		name:  "netid",
		about: "NetNamespaces for 10,000 namespaces, beside a bare loop that creates the same objects at the same pace; and a restart",
		run:   runNetID,
	}
}

func runNetID(b *B) {
	c := &netidCluster{b: b, server: apitest.Start(b)}
	fast := rest.CopyConfig(c.server)
	fast.QPS = -1
	var err error
	c.kube, err = kubernetes.NewForConfig(fast)
	b.must(err)
	c.network, err = networkclient.NewForConfig(fast)
	b.must(err)
	paced := rest.CopyConfig(c.server)
	paced.QPS, paced.Burst = masterQPS, masterBurst
	c.paced, err = networkclient.NewForConfig(paced)
	b.must(err)

	b.progress("making %d namespaces", netidNamespaces)
	b.must(each(b.Context(), netidNamespaces, func(ctx context.Context, i int) error {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("tenant%d", i)}}
		_, err := c.kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
		return err
	}))
	namespaces, err := c.kube.CoreV1().Namespaces().List(b.Context(), metav1.ListOptions{})
	b.must(err)
	n := len(namespaces.Items)

	var ours, bare []time.Duration
	rounds := min(b.rounds, 2) // each of minutes
	for i := range rounds {
		b.progress("round %d of %d", i+1, rounds)
		ours = append(ours, c.catchUp(n))
		made := c.list()
		if i == 0 {
			c.restart(made)
			n++ // its namespace
		}
		c.deleteAll()
		took, err := timed(func() error { return c.bare(made) })
		b.must(err)
		bare = append(bare, took)
		c.deleteAll()
	}
	b.record(fmt.Sprintf("%d namespaces", netidNamespaces), "s",
		seriesOf("ours", seconds(ours)), seriesOf("bare loop", seconds(bare), atMost(1.3)))
}

type netidCluster struct {
	b       *B
	server  *rest.Config
	kube    kubernetes.Interface
	network networkclient.Interface
	paced   networkclient.Interface
}

// run starts a master and returns when done does.
func (c *netidCluster) run(done func(ended <-chan error) error) time.Duration {
	c.b.Helper()
	cfg := master.Defaults()
	cfg.REST, cfg.LeaderElect, cfg.HealthzAddress, cfg.Metrics.Address = c.server, false, "0", "0"
	ctx, cancel := context.WithCancel(c.b.Context())
	defer cancel()
	ended := make(chan error, 1)
	took, err := timed(func() error {
		go func() { ended <- master.Run(ctx, cfg) }()
		return done(ended)
	})
	c.b.must(err)
	cancel()
	c.b.must(<-ended)
	return took
}

// catchUp runs a master until there are n NetNamespaces.
func (c *netidCluster) catchUp(n int) time.Duration {
	c.b.Helper()
	w := c.watch("")
	defer w.Stop()
	return c.run(func(ended <-chan error) error {
		for made := 0; made < n; {
			select {
			case event, open := <-w.ResultChan():
				if !open {
					return fmt.Errorf("the watch ended with %d of %d NetNamespaces", made, n)
				}
				if event.Type == watch.Added {
					made++
				}
			case err := <-ended:
				return fmt.Errorf("the master ended: %w", err)
			}
		}
		return nil
	})
}

// restart runs another master until it has processed all objects, and counts its changes. A new namespace is the last in its queue.
func (c *netidCluster) restart(before []networkv1.NetNamespace) {
	c.b.Helper()
	const last = "the-last"
	w := c.watch("metadata.name=" + last)
	defer w.Stop()
	took := c.run(func(ended <-chan error) error {
		if _, err := c.kube.CoreV1().Namespaces().Create(c.b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: last}}, metav1.CreateOptions{}); err != nil {
			return err
		}
		select {
		case <-w.ResultChan():
			return nil
		case err := <-ended:
			return fmt.Errorf("the master ended: %w", err)
		}
	})
	c.b.progress("a master that finds %d NetNamespaces has processed a new namespace %v after its start", len(before), took.Round(time.Millisecond))
	after := map[string]networkv1.NetNamespace{}
	for _, nn := range c.list() {
		after[nn.Name] = nn
	}
	renumbered, written := 0, 0
	for _, nn := range before {
		now := after[nn.Name]
		if now.NetID != nn.NetID {
			renumbered++
		}
		if now.ResourceVersion != nn.ResourceVersion {
			written++
		}
	}
	const scenario = "restart with 10000"
	floor := seriesOf("of", []float64{float64(len(before))}, none())
	c.b.record(scenario+": renumbered", "VNIDs", seriesOf("ours", []float64{float64(renumbered)}), floor)
	c.b.record(scenario+": written to", "objects", seriesOf("ours", []float64{float64(written)}), floor)
}

// watch begins now, and goes on when the API server ends it, which it does when the machine is too busy for it.
func (c *netidCluster) watch(fieldSelector string) watch.Interface {
	c.b.Helper()
	client := c.network.NetworkV1().NetNamespaces()
	now, err := client.List(c.b.Context(), metav1.ListOptions{Limit: 1})
	c.b.must(err)
	w, err := watchtools.NewRetryWatcherWithContext(c.b.Context(), now.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = fieldSelector
			return client.Watch(ctx, options)
		},
	})
	c.b.must(err)
	return w
}

func (c *netidCluster) list() []networkv1.NetNamespace {
	c.b.Helper()
	list, err := c.network.NetworkV1().NetNamespaces().List(c.b.Context(), metav1.ListOptions{})
	c.b.must(err)
	return list.Items
}

// bare creates the same objects.
func (c *netidCluster) bare(all []networkv1.NetNamespace) error {
	return each(c.b.Context(), len(all), func(ctx context.Context, i int) error {
		o := &networkv1.NetNamespace{
			ObjectMeta: metav1.ObjectMeta{Name: all[i].Name, Annotations: all[i].Annotations},
			NetName:    all[i].NetName, NetID: all[i].NetID,
		}
		_, err := c.paced.NetworkV1().NetNamespaces().Create(ctx, o, metav1.CreateOptions{})
		return err
	})
}

func (c *netidCluster) deleteAll() {
	c.b.Helper()
	c.b.must(c.network.NetworkV1().NetNamespaces().DeleteCollection(c.b.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
}

package egressassignment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
)

const timeout = await.SyncTime // a loaded machine is slow

// cluster is a real API server, nodes that answer probes or not, and the Events of all controllers.
type cluster struct {
	t       *testing.T
	rest    *rest.Config
	kube    kubernetes.Interface
	network networkclient.Interface
	writes  atomic.Int64 // of controllers

	mu     sync.Mutex
	dead   map[netip.Addr]bool
	events []string
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, rest: apitest.Start(t), dead: map[netip.Addr]bool{}}
	c.kube, c.network = apitest.Clients(t, c.rest)
	return c
}

// recorder records Events as "Reason name: message". Event is its only method in use.
type recorder struct {
	record.EventRecorder
	c *cluster
}

func (r recorder) Event(about runtime.Object, _, reason, message string) {
	name := ""
	if o, ok := about.(metav1.Object); ok {
		name = o.GetName()
	}
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	r.c.events = append(r.c.events, fmt.Sprintf("%s %s: %s", reason, name, message))
}

// awaitEvent waits for an Event whose text begins with begin and contains part.
func (c *cluster) awaitEvent(begin, part string) {
	c.t.Helper()
	await.OK(c.t, timeout, func(context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !slices.ContainsFunc(c.events, func(e string) bool { return strings.HasPrefix(e, begin) && strings.Contains(e, part) }) {
			return fmt.Errorf("no Event %s with %q in %q", begin, part, c.events)
		}
		return nil
	})
}

func (c *cluster) dial(ctx context.Context, a netip.Addr) error {
	c.mu.Lock()
	dead := c.dead[a]
	c.mu.Unlock()
	if dead {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (c *cluster) kill(dead bool, nodes ...int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range nodes {
		c.dead[nodeAddr(n)] = dead
	}
}

// countingTransport counts writes.
type countingTransport struct {
	http.RoundTripper
	n *atomic.Int64
}

func (t countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		t.n.Add(1)
	}
	return t.RoundTripper.RoundTrip(r)
}

// clients returns those of a controller, whose writes are counted.
func (c *cluster) clients() (kubernetes.Interface, networkclient.Interface) {
	c.t.Helper()
	cfg := rest.CopyConfig(c.rest)
	cfg.QPS, cfg.Burst = 200, 400
	cfg.WrapTransport = transport.Wrappers(func(t http.RoundTripper) http.RoundTripper { return countingTransport{t, &c.writes} })
	return apitest.Clients(c.t, cfg)
}

// lead starts a controller in mode multitenant, and returns it with the function that stops it.
func (c *cluster) lead() (controller *Controller, stop func()) {
	c.t.Helper()
	kube, network := c.clients()
	kubeInformers := informers.NewSharedInformerFactory(kube, 0)
	networkInformers := networkinformers.NewSharedInformerFactory(network, 0)
	controller, err := New(Clients{Network: network, Events: recorder{c: c}}, Informers{
		NetNamespaces: networkInformers.Network().V1().NetNamespaces().Informer(), HostSubnets: networkInformers.Network().V1().HostSubnets().Informer(),
		Nodes: kubeInformers.Core().V1().Nodes().Informer(),
	}, c.dial)
	c.must(err)
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	kubeInformers.StartWithContext(ctx)
	networkInformers.Start(ctx.Done())
	controller.SetNetwork(testNetwork(config.ModeMultitenant))
	var running sync.WaitGroup
	running.Go(func() { controller.Run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		kubeInformers.Shutdown()
		networkInformers.Shutdown()
		apitest.Disconnect(kube, network)
	})
	c.t.Cleanup(stop)
	return controller, stop
}

func testNetwork(mode config.Mode) *config.Network {
	return &config.Network{
		Mode: mode, ClusterNetworks: []config.ClusterNetwork{{Prefix: netip.MustParsePrefix("10.128.0.0/14"), HostBits: 9}},
		ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"), VXLANPort: config.DefaultVXLANPort,
	}
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func nodeName(n int) string { return fmt.Sprintf("node%02d", n) }

func nodeAddr(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, 0, byte(n)}) }

// addNode creates a node with that configuration: a range, or IPs.
func (c *cluster) addNode(n int, egress ...string) {
	c.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(n)}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	_, err := c.kube.CoreV1().Nodes().Create(c.t.Context(), node, metav1.CreateOptions{})
	c.must(err)
	o := &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(n), Annotations: map[string]string{networkv1.NodeUIDAnnotation: "uid" + nodeName(n)}},
		Host:       nodeName(n), HostIP: nodeAddr(n).String(), Subnet: fmt.Sprintf("10.128.%d.0/23", 2*n),
	}
	setEgress(o, egress)
	_, err = c.network.NetworkV1().HostSubnets().Create(c.t.Context(), o, metav1.CreateOptions{})
	c.must(err)
}

func setEgress(o *networkv1.HostSubnet, egress []string) {
	o.EgressIPs, o.EgressCIDRs = nil, nil
	for _, e := range egress {
		if strings.Contains(e, "/") {
			o.EgressCIDRs = append(o.EgressCIDRs, networkv1.HostSubnetEgressCIDR(e))
		} else {
			o.EgressIPs = append(o.EgressIPs, networkv1.HostSubnetEgressIP(e))
		}
	}
}

// edit changes a HostSubnet.
func (c *cluster) edit(n int, change func(*networkv1.HostSubnet)) {
	c.t.Helper()
	await.OK(c.t, timeout, func(ctx context.Context) error {
		o, err := c.network.NetworkV1().HostSubnets().Get(ctx, nodeName(n), metav1.GetOptions{})
		if err == nil {
			change(o)
			_, err = c.network.NetworkV1().HostSubnets().Update(ctx, o, metav1.UpdateOptions{})
		}
		return err
	})
}

// setNamespace sets the egress IPs of a namespace, which need not exist.
func (c *cluster) setNamespace(name string, vnid uint32, ips ...string) {
	c.t.Helper()
	await.OK(c.t, timeout, func(ctx context.Context) error {
		client := c.network.NetworkV1().NetNamespaces()
		o := &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, NetName: name, NetID: vnid}
		existing, err := client.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			o = existing
		}
		o.EgressIPs = nil
		for _, ip := range ips {
			o.EgressIPs = append(o.EgressIPs, networkv1.NetNamespaceEgressIP(ip))
		}
		if err == nil {
			_, err = client.Update(ctx, o, metav1.UpdateOptions{})
			return err
		}
		_, err = client.Create(ctx, o, metav1.CreateOptions{})
		return err
	})
}

// placement returns the egress IPs of all nodes, sorted, with * for an unreachable one.
func (c *cluster) placement(ctx context.Context) (map[string]string, error) {
	list, err := c.network.NetworkV1().HostSubnets().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	got := map[string]string{}
	for _, o := range list.Items {
		var ips []string
		for _, ip := range o.EgressIPs {
			ips = append(ips, string(ip))
		}
		slices.Sort(ips)
		text := strings.Join(ips, " ")
		if o.Annotations[config.EgressUnreachableAnnotation] != "" {
			text += "*"
		}
		got[o.Name] = text
	}
	return got, nil
}

// wantPlacement waits for the egress IPs of the nodes.
func (c *cluster) wantPlacement(want map[string]string) {
	c.t.Helper()
	await.OK(c.t, timeout, func(ctx context.Context) error {
		got, err := c.placement(ctx)
		if err == nil && !maps.Equal(got, want) {
			err = fmt.Errorf("got %q, want %q", got, want)
		}
		return err
	})
}

// watchConflicts returns the function that returns which IPs two nodes had at the same time since the call.
func (c *cluster) watchConflicts() (conflicts func() []string) {
	c.t.Helper()
	list, err := c.network.NetworkV1().HostSubnets().List(c.t.Context(), metav1.ListOptions{})
	c.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	w, err := c.network.NetworkV1().HostSubnets().Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	c.must(err)
	ips := map[string][]networkv1.HostSubnetEgressIP{}
	var found []string
	for _, o := range list.Items {
		ips[o.Name] = o.EgressIPs
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			o, ok := e.Object.(*networkv1.HostSubnet)
			if ctx.Err() != nil {
				return
			}
			if !ok {
				found = append(found, fmt.Sprintf("watch: %v", e.Object))
				return
			}
			ips[o.Name] = o.EgressIPs
			for name, other := range ips {
				for _, ip := range other {
					if name != o.Name && slices.Contains(o.EgressIPs, ip) {
						found = append(found, fmt.Sprintf("%s on %s and %s", ip, name, o.Name))
					}
				}
			}
		}
	}()
	stop := sync.OnceFunc(func() { cancel(); w.Stop(); <-done })
	c.t.Cleanup(stop)
	return func() []string { stop(); return found }
}

// wipe deletes all objects.
func (c *cluster) wipe() {
	ctx, all, now := context.Background(), metav1.ListOptions{}, metav1.DeleteOptions{}
	if err := errors.Join(
		c.kube.CoreV1().Nodes().DeleteCollection(ctx, now, all),
		c.network.NetworkV1().HostSubnets().DeleteCollection(ctx, now, all),
		c.network.NetworkV1().NetNamespaces().DeleteCollection(ctx, now, all),
	); err != nil {
		c.t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.dead)
	c.events = nil
	c.writes.Store(0)
}

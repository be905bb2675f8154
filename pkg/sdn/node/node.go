// Package node is the node agent: it waits for what the cluster says of this node, sets the host and the bridge up, and
// keeps both so while it serves CNI.
//
// The order, and why: the CNI socket with its lock first, so that there is no second agent, and that plugins are told what the agent
// waits for. The network's shape and this node's HostSubnet next, since all else depends on them. Then the bridge
// with its two fixed ports and the host around it. Then every object is compiled into the store and the bridge made
// equal in one bundle, which after a restart changes nothing. Then the CNI configuration is written, which makes kubelet
// call the node ready, and only then requests are served. Nothing is torn down when the agent stops: pods go on.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
	"github.com/ovsdn/ovsdn/pkg/sdn/probes"
)

// Back-off of a set-up that failed.
const (
	retryFirst = time.Second
	retryLast  = 30 * time.Second
)

// errChanged ends a round: the network or this node's place in it is another now.
var errChanged = errors.New("the node's network changed")

// Run is the agent. It returns nil when the context ends, and an error only for what no waiting mends: an interface
// flag that fits nothing on this host, or another agent that holds the node.
func Run(ctx context.Context, cfg Config, client *rest.Config) error {
	reach := &reach{}
	client = rest.CopyConfig(client)
	client.Wrap(reach.through)
	kube, err := kubernetes.NewForConfig(client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	network, err := networkclient.NewForConfig(client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	selector, err := cfg.selector()
	if err != nil {
		return err
	}
	policyKinds, err := policyclient.NewForConfig(client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	bridge := ovs.NewNative(bridgeName, ovs.DefaultRunDir)
	defer bridge.Close()
	a := &agent{
		Config:    cfg,
		selector:  selector,
		kube:      kube,
		network:   network,
		policies:  policyKinds,
		reach:     reach,
		bridge:    bridge,
		gate:      newGate(bridge),
		reporter:  newReporter(ctx, kube, cfg.NodeName),
		condition: newCondition(kube.CoreV1().Nodes(), cfg.NodeName),
		door:      newDoor(),
	}
	defer a.reporter.stop()
	return a.run(ctx)
}

type agent struct {
	Config
	selector  hostnet.Selector
	kube      kubernetes.Interface
	network   networkclient.Interface
	policies  policyclient.Interface
	reach     *reach // by which all of these go
	bridge    *ovs.Native
	gate      *gate // the bridge, for the store
	reporter  *reporter
	condition *condition
	door      *door

	installation *installation
}

// run serves the CNI socket, which leads nowhere until a round has set the node up.
func (a *agent) run(ctx context.Context) error {
	// A flag that fits nothing is the one fault that is known before the cluster is asked.
	if _, err := hostnet.Pick(a.selector); err != nil && a.selector != (hostnet.Selector{}) {
		a.reporter.warnLast(ctx, reasonFailed, err)
		return err
	}
	// The socket's lock comes before anything is touched: a second agent would sweep away what this one is setting up.
	socket, err := cniserver.Listen(a.CNISocket)
	if err != nil {
		a.reporter.warnLast(ctx, reasonFailed, err)
		return err
	}
	stopProbes, err := probes.Serve(ctx, a.HealthzAddr, a.probes())
	if err != nil {
		a.reporter.warnLast(ctx, reasonFailed, err)
		return errors.Join(err, socket.Close())
	}
	defer stopProbes()
	if err := a.arrive(ctx); err != nil {
		return errors.Join(err, socket.Close())
	}
	// Nobody else may have the lock before the last round is over.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		defer cancel()
		served <- cniserver.Serve(serving, socket, a.door)
	}()
	var parts sync.WaitGroup
	parts.Go(func() { a.condition.run(ctx) })
	parts.Go(func() { a.gate.run(ctx) })
	parts.Go(func() { a.installation.run(ctx) })
	a.rounds(ctx)
	parts.Wait()
	if a.installation.leaving.Load() {
		if err := a.uninstall(ctx, socket); err != nil {
			klog.FromContext(ctx).Error(err, "Not all of the pod network is off the node: run `ovsdn-node uninstall` there (docs/uninstall.md)")
		}
	}
	stopServing()
	return <-served
}

// rounds repeats rounds: a new one when the network changed, or when a round failed.
func (a *agent) rounds(ctx context.Context) {
	delay := wait.Backoff{Duration: retryFirst, Cap: retryLast, Factor: 2, Jitter: 0.1, Steps: 10}
	for {
		started := time.Now()
		err := a.round(ctx)
		switch {
		case ctx.Err() != nil:
			if err != nil && !errors.Is(err, ctx.Err()) {
				klog.FromContext(ctx).Error(err, "The agent did not stop cleanly")
			}
			return
		case errors.Is(err, errChanged):
			klog.FromContext(ctx).Info("Setting up anew", "reason", err)
			continue
		}
		klog.FromContext(ctx).Error(err, "The node's network is not set up, will try again")
		a.reporter.warn(reasonFailed, err)
		a.door.explain(err)
		if time.Since(started) > retryLast {
			delay = wait.Backoff{Duration: retryFirst, Cap: retryLast, Factor: 2, Jitter: 0.1, Steps: 10}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay.Step()):
		}
	}
}

// round sets the node up and serves until the context ends or something does not hold any more.
func (a *agent) round(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	caches := a.newCaches()
	defer caches.shutdown() // after cancel
	var looking sync.WaitGroup
	defer looking.Wait() // after cancel
	defer cancel(nil)
	caches.start(ctx)

	waiting := a.waiting(ctx, caches)
	networks, hostSubnets := caches.network.Network().V1().ClusterNetworks().Informer(), caches.network.Network().V1().HostSubnets().Informer()
	network, err := waitFor(ctx, []cache.SharedIndexInformer{networks}, waiting,
		func() (*config.Network, error) { return a.clusterNetwork(caches) })
	if err != nil {
		return err
	}
	own, err := waitFor(ctx, []cache.SharedIndexInformer{networks, hostSubnets}, waiting, func() (*config.HostSubnet, error) {
		// The cluster network may grow while the agent waits for a subnet in it.
		if n, err := a.clusterNetwork(caches); err == nil {
			network = n
		}
		return a.hostSubnet(caches, network)
	})
	if err != nil {
		return err
	}
	look, err := a.watchOwn(cancel, caches, network, own)
	if err != nil {
		return err
	}
	// Of the host's interfaces nothing tells.
	looking.Go(func() { wait.UntilWithContext(ctx, func(context.Context) { look(nil) }, sayAgain) })
	err = a.serve(ctx, caches, network, own)
	if cause := context.Cause(ctx); errors.Is(cause, errChanged) {
		return cause
	}
	if errors.Is(err, errChanged) {
		return err
	}
	if err != nil && ctx.Err() == nil {
		a.condition.set(unavailable(err))
	}
	return err
}

// waiting says what the agent waits for where people look: its log, Events on the Node, the answer to STATUS, and, when it is not
// for a HostSubnet, the Node's condition.
func (a *agent) waiting(ctx context.Context, c *caches) func(error) {
	return func(reason error) {
		klog.FromContext(ctx).Info("Waiting", "reason", reason.Error())
		a.reporter.warn(reasonWaiting, reason)
		a.door.explain(reason)
		if a.hasHostSubnet(c) {
			a.condition.set(unavailable(reason))
		} else {
			a.condition.set(nil)
		}
	}
}

// hasHostSubnet tells whether it is the agent's turn to say how the node's network is.
func (a *agent) hasHostSubnet(c *caches) bool {
	o, err := c.network.Network().V1().HostSubnets().Lister().Get(a.NodeName)
	return err == nil && !config.IsProposed(o)
}

// isProposed tells whether the controller is about to give this node a subnet.
func (a *agent) isProposed(c *caches) bool {
	o, err := c.network.Network().V1().HostSubnets().Lister().Get(a.NodeName)
	return err == nil && config.IsProposed(o)
}

// clusterNetwork returns the network in force. What the object says beyond that is the controller's to judge.
func (a *agent) clusterNetwork(c *caches) (*config.Network, error) {
	o, err := c.network.Network().V1().ClusterNetworks().Lister().Get(networkv1.ClusterNetworkDefault)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no ClusterNetwork %q yet: ovsdn-controller makes it; is it running?", networkv1.ClusterNetworkDefault)
	}
	if err != nil {
		return nil, fmt.Errorf("ClusterNetwork %s: %w", networkv1.ClusterNetworkDefault, err)
	}
	n, err := config.InForce(o)
	if err != nil {
		return nil, fmt.Errorf("ClusterNetwork %s %w", o.Name, err)
	}
	return n, nil
}

func (a *agent) hostSubnet(c *caches, network *config.Network) (*config.HostSubnet, error) {
	o, err := c.network.Network().V1().HostSubnets().Lister().Get(a.NodeName)
	if apierrors.IsNotFound(err) || a.isProposed(c) {
		return nil, fmt.Errorf("node %s has no HostSubnet yet: ovsdn-controller makes it when the Node is there; is it running, and is --node-name right?", a.NodeName)
	}
	if err != nil {
		return nil, fmt.Errorf("HostSubnet %s: %w", a.NodeName, err)
	}
	h, err := config.ParseHostSubnet(o)
	if err == nil {
		err = network.CheckHostSubnet(h)
	}
	if err != nil {
		return nil, fmt.Errorf("HostSubnet %s is not usable, correct or delete it: %w", o.Name, err)
	}
	return h, nil
}

// watchOwn ends the round when the network or this node's HostSubnet becomes another one. An edit that makes either
// unusable, in itself or on this host, is reported, and what was set up stays. The returned function looks once more.
func (a *agent) watchOwn(changed context.CancelCauseFunc, c *caches, network *config.Network, own *config.HostSubnet) (look func(any), err error) {
	look = func(any) {
		n, err := a.clusterNetwork(c)
		if err == nil {
			err = a.checkHost(n, own)
		}
		if err == nil && !sameNetwork(n, network) {
			changed(fmt.Errorf("%w: ClusterNetwork was edited", errChanged))
			return
		}
		if err == nil {
			var h *config.HostSubnet
			if h, err = a.hostSubnet(c, n); err == nil && !sameHostSubnet(h, own) {
				changed(fmt.Errorf("%w: HostSubnet %s was edited", errChanged, a.NodeName))
				return
			}
		}
		if err != nil && !a.isProposed(c) { // which takes milliseconds
			a.reporter.warn(reasonWaiting, err)
		}
		// The controller may have had its turn meanwhile.
		if a.hasHostSubnet(c) {
			a.condition.restate()
		}
	}
	if _, err := c.network.Network().V1().ClusterNetworks().Informer().AddEventHandler(handlerOf(networkv1.ClusterNetworkDefault, look)); err != nil {
		return nil, fmt.Errorf("watching the ClusterNetwork: %w", err)
	}
	if _, err := c.network.Network().V1().HostSubnets().Informer().AddEventHandler(handlerOf(a.NodeName, look)); err != nil {
		return nil, fmt.Errorf("watching the HostSubnet: %w", err)
	}
	return look, nil
}

// underlay finds where the node's tunnels end, which must be where its peers send to.
func (a *agent) underlay(network *config.Network, own *config.HostSubnet) (hostnet.Underlay, linkmtu.MTU, error) {
	underlay, err := a.pick(own)
	if err != nil {
		return underlay, linkmtu.MTU{}, err
	}
	mtu, err := a.fit(underlay, network)
	return underlay, mtu, err
}

// pick returns the interface and the address where the node's tunnels end.
func (a *agent) pick(own *config.HostSubnet) (hostnet.Underlay, error) {
	selector := a.selector
	if selector == (hostnet.Selector{}) {
		// Not told otherwise: the address that the peers know decides, if it is one of ours.
		selector.NodeIP = own.HostIP
	}
	underlay, err := hostnet.Pick(selector)
	if err != nil {
		return underlay, err
	}
	if underlay.Addr != own.HostIP {
		return underlay, fmt.Errorf("peers send to %s (HostSubnet %s, from the Node's InternalIP), but this agent was told to use %s: start kubelet with --node-ip=%s, or change --node-ip, --iface or --iface-regex",
			own.HostIP, own.Node, underlay, underlay.Addr)
	}
	return underlay, nil
}

// fit returns the MTU of this node's end of the pod network, for which flags come before what the cluster says, or all that keeps
// this host from carrying the network.
func (a *agent) fit(underlay hostnet.Underlay, network *config.Network) (linkmtu.MTU, error) {
	overlap := hostnet.CheckOverlap(prefixesOf(network), network.ServiceNetwork)
	mtu, err := hostnet.MTU(underlay, cmp.Or(a.MTU, network.MTU), cmp.Or(a.RoutableMTU, network.RoutableMTU))
	return mtu, errors.Join(overlap, err)
}

// checkHost says whether this host can carry the network.
func (a *agent) checkHost(network *config.Network, own *config.HostSubnet) error {
	underlay, err := a.pick(own)
	if err != nil {
		return nil // of no ClusterNetwork's doing
	}
	if _, err := a.fit(underlay, network); err != nil {
		return fmt.Errorf("ClusterNetwork %s does not fit this node, which stays as it is: %w", networkv1.ClusterNetworkDefault, err)
	}
	return nil
}

func prefixesOf(n *config.Network) []netip.Prefix {
	var p []netip.Prefix
	for _, c := range n.ClusterNetworks {
		p = append(p, c.Prefix)
	}
	return p
}

// podFinder finds pods of this node.
type podFinder struct {
	lister corelisters.PodLister
	kube   kubernetes.Interface
}

func (f podFinder) Cached(namespace, name string) *corev1.Pod {
	pod, err := f.lister.Pods(namespace).Get(name)
	if err != nil { // the cache knows no other error than that it has no such pod
		return nil
	}
	return pod
}

func (f podFinder) Get(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return f.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

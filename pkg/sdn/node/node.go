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
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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
	socket       *socketKeeper
	misplaced    error // what was said last of services outside of the service network; its watch's, of which rounds have one after the other
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
		a.reporter.warnLast(ctx, reasonFailed, err)
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
	a.socket = &socketKeeper{socket: socket, report: a.reporter.onNode, period: socketCheck}
	var lockLost error
	parts.Go(func() {
		if lockLost = a.socket.run(ctx); lockLost != nil {
			cancel()
		}
	})
	a.rounds(ctx)
	parts.Wait()
	if lockLost != nil {
		a.reporter.warnLast(context.WithoutCancel(ctx), reasonFailed, lockLost)
	}
	if a.installation.leaving.Load() {
		if err := a.uninstall(ctx, socket); err != nil {
			klog.FromContext(ctx).Error(err, "Not all of the pod network is off the node: run `ovsdn-node uninstall` there (docs/uninstall.md)")
		}
	}
	stopServing()
	return errors.Join(lockLost, <-served)
}

// rounds repeats rounds: a new one when the network changed, or when a round failed.
func (a *agent) rounds(ctx context.Context) {
	delay := wait.Backoff{Duration: retryFirst, Cap: retryLast, Factor: 2, Jitter: 0.1, Steps: 10}
	for ctx.Err() == nil {
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
		a.rest(ctx, delay.Step(), err)
	}
}

// rest lets the delay pass, or what is left of it when Open vSwitch comes, if that is what failed: it may start much later than the agent.
func (a *agent) rest(ctx context.Context, delay time.Duration, failed error) {
	ctx, cancel := context.WithTimeout(ctx, delay)
	defer cancel()
	if ovs.IsUnavailable(failed) {
		a.bridge.Watch(ctx, func(e ovs.Event) {
			if e.Kind == ovs.DatabaseConnected || e.Kind == ovs.SwitchConnected {
				cancel()
			}
		})
	}
	<-ctx.Done()
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

func (f podFinder) Local() []*corev1.Pod {
	pods, err := f.lister.List(labels.Everything())
	if err != nil { // the cache has no error to return
		return nil
	}
	return pods
}

func (f podFinder) Get(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return f.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

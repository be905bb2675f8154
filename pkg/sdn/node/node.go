// Package node is the node agent: it waits for the ClusterNetwork and the HostSubnet, sets up the host and the bridge, and
// reconciles both while it serves CNI requests.
//
// The order of the set-up:
//  1. The CNI socket with its lock: no second agent can run, and the plugin gets the reason why the agent is not ready.
//  2. The ClusterNetwork and this node's HostSubnet, since everything else depends on them.
//  3. The bridge with its two fixed ports, tun0 and the host's firewall.
//  4. All objects are compiled into the flow store, which writes the difference to the bridge in one bundle. After a restart it is empty.
//  5. The CNI configuration, with which kubelet reports the node as ready. Then requests are served.
//
// The network remains when the agent stops.
package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/apiserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/metrics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/agentmetrics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/apihealth"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/br0"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/caches"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/cnifiles"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/cnihandler"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/diagnosticsserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/installation"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/nodestatus"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/restorewait"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/servicenetwork"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/servingcertificate"
	"github.com/ovsdn/ovsdn/pkg/sdn/probes"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// Backoff of a set-up that failed.
const (
	retryFirst = time.Second
	retryLast  = 30 * time.Second
)

// errChanged ends a set-up whose configuration is out of date.
var errChanged = errors.New("the node's network changed")

// Run runs the agent until the context ends. It returns an error only for failures that a retry can't fix: an interface
// flag that matches nothing on this host, or another running agent.
func Run(ctx context.Context, cfg Config, client *rest.Config) error {
	apiHealth := &apihealth.Monitor{}
	client = rest.CopyConfig(client)
	client.Wrap(apiHealth.Wrap)
	kube, kubeErr := kubernetes.NewForConfig(client)
	network, networkErr := networkclient.NewForConfig(client)
	policies, policiesErr := policyclient.NewForConfig(client)
	if err := errors.Join(kubeErr, networkErr, policiesErr); err != nil {
		return fmt.Errorf("client of the API server: %w", err)
	}
	selector, err := cfg.selector()
	if err != nil {
		return err
	}
	bridge := native.New(br0.Name, native.DefaultRunDir)
	defer bridge.Close()
	bridge.MonitorTables(br0.MonitoredTables())
	a := &agent{
		Config:     cfg,
		selector:   selector,
		kube:       kube,
		network:    network,
		policies:   policies,
		apiHealth:  apiHealth,
		bridge:     bridge,
		flowBridge: restorewait.New(bridge),
		reporter:   nodestatus.NewReporter(ctx, kube, cfg.NodeName),
		condition:  nodestatus.NewCondition(kube.CoreV1().Nodes(), cfg.NodeName),
		cni:        cnihandler.New(),
	}
	if addr, ok := apiserver.Address(client); ok {
		a.apiServers = []netip.AddrPort{addr}
	}
	defer a.reporter.Stop()
	if a.certificates, err = servingcertificate.New(kube, cfg.NodeName); err != nil {
		return err
	}
	a.Metrics.Certificate = a.certificates.ServingCertificate
	a.serviceNetwork = servicenetwork.New(a.reporter.Warn)
	a.metrics = agentmetrics.New(a.probes()["/readyz"])
	a.diagnostics = a.newDiagnostics(a.certificates.ClientCAs)
	a.Metrics.Routes = append(a.Metrics.Routes, metrics.Route{Prefix: diagnosticsserver.Prefix, Handler: a.diagnostics})
	ctx = reconcile.WithObserver(ctx, a.metrics.ReconcileObserver())
	return a.run(ctx)
}

type agent struct {
	Config
	selector   hostnet.Selector
	kube       kubernetes.Interface
	network    networkclient.Interface
	policies   policyclient.Interface
	apiServers []netip.AddrPort   // addresses of the API server, unless kube has a host name
	apiHealth  *apihealth.Monitor // observes kube, network and policies
	bridge     *native.Native
	flowBridge *restorewait.Bridge // the bridge, for the flow store
	reporter   *nodestatus.Reporter
	condition  *nodestatus.Condition
	cni        *cnihandler.Handler
	metrics    *agentmetrics.Metrics

	certificates *servingcertificate.Manager
	diagnostics  *diagnosticsserver.Handler

	installation   *installation.Watch
	socket         *cnifiles.Socket
	serviceNetwork *servicenetwork.Check

	hostPortsReported bool // the pods without the host ports that they declare were reported
}

// run serves the CNI socket and repeats the set-up until the context ends. Requests fail with the reason until a set-up has succeeded.
func (a *agent) run(ctx context.Context) error {
	// The interface flags are validated before any request to the API server.
	if _, err := hostnet.FindUnderlay(a.selector); err != nil && a.selector != (hostnet.Selector{}) {
		a.reporter.WarnSync(ctx, eventreason.NetworkSetupFailed, err)
		return err
	}
	// Lock the socket before any change of the host: a second agent would delete what this one sets up.
	socket, err := cniserver.Listen(a.CNISocket)
	if err != nil {
		a.reporter.WarnSync(ctx, eventreason.NetworkSetupFailed, err)
		return err
	}
	stopProbes, err := probes.Serve(ctx, a.HealthzAddr, a.probes())
	if err != nil {
		a.reporter.WarnSync(ctx, eventreason.NetworkSetupFailed, err)
		return errors.Join(err, socket.Close())
	}
	defer stopProbes()
	if err := a.watchInstallation(ctx); err != nil {
		a.reporter.WarnSync(ctx, eventreason.NetworkSetupFailed, err)
		return errors.Join(err, socket.Close())
	}
	// Hold the lock until the last set-up has ended.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		defer cancel()
		served <- cniserver.Serve(serving, socket, a.metrics.ObserveCNI(a.cni))
	}()
	var parts sync.WaitGroup
	parts.Go(func() { a.condition.Run(ctx) })
	parts.Go(func() { metrics.Run(ctx, a.Metrics, a.kube, a.metrics.Registry()) })
	parts.Go(func() { a.certificates.Run(ctx) })
	parts.Go(func() { a.flowBridge.RunLoop(ctx) })
	parts.Go(func() { a.installation.Run(ctx) })
	a.socket = cnifiles.NewSocket(socket, a.reporter.Event)
	var lockLost error
	parts.Go(func() {
		if lockLost = a.socket.Run(ctx); lockLost != nil {
			cancel()
		}
	})
	a.runSetUps(ctx)
	parts.Wait()
	if lockLost != nil {
		a.reporter.WarnSync(context.WithoutCancel(ctx), eventreason.NetworkSetupFailed, lockLost)
	}
	if a.installation.Deleting() {
		if err := a.uninstall(ctx, socket); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to uninstall the pod network from the node", "action", "run `ovsdn-node uninstall` on the node (docs/uninstall.md)")
		}
	}
	stopServing()
	return errors.Join(lockLost, <-served)
}

// runSetUps repeats the set-up when the network changed or when the set-up failed.
func (a *agent) runSetUps(ctx context.Context) {
	backoff := wait.Backoff{Duration: retryFirst, Cap: retryLast, Factor: 2, Jitter: 0.1, Steps: 10}
	delay := backoff
	for ctx.Err() == nil {
		started := time.Now()
		err := a.setUp(ctx)
		switch {
		case ctx.Err() != nil:
			if err != nil && !errors.Is(err, ctx.Err()) {
				klog.FromContext(ctx).Error(err, "Failed to stop the agent cleanly")
			}
			return
		case errors.Is(err, errChanged):
			klog.FromContext(ctx).Info("Restarting network set-up", "err", err)
			continue
		}
		if time.Since(started) > retryLast {
			delay = backoff
		}
		retryAfter := delay.Step()
		klog.FromContext(ctx).Error(err, "Failed to set up the node's network", "retryAfter", retryAfter)
		a.reporter.Warn(eventreason.NetworkSetupFailed, err)
		a.cni.SetReason(err)
		a.waitToRetry(ctx, retryAfter, err)
	}
}

// waitToRetry waits for the delay. If Open vSwitch did not answer, it returns as soon as Open vSwitch has started.
func (a *agent) waitToRetry(ctx context.Context, delay time.Duration, failed error) {
	ctx, cancel := context.WithTimeout(ctx, delay)
	defer cancel()
	if ovs.IsUnavailable(failed) {
		a.bridge.Watch(ctx, func(e native.Event) {
			if e.Kind == native.DatabaseConnected || e.Kind == native.SwitchConnected {
				cancel()
			}
		})
	}
	<-ctx.Done()
}

// newCaches returns the informers of a set-up.
func (a *agent) newCaches() *caches.Set {
	return caches.New(caches.Options{NodeName: a.NodeName, Kube: a.kube, Network: a.network, Policies: a.policies})
}

// setUp sets up the node and serves CNI requests until the context ends, a part fails or the configuration changes.
func (a *agent) setUp(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	c := a.newCaches()
	defer c.Shutdown() // after cancel
	var polling sync.WaitGroup
	defer polling.Wait() // after cancel
	defer cancel(nil)
	c.Start(ctx)

	waiting := a.waiting(ctx, c)
	networks, hostSubnets := c.Network.Network().V1().ClusterNetworks().Informer(), c.Network.Network().V1().HostSubnets().Informer()
	network, err := caches.WaitFor(ctx, []cache.SharedIndexInformer{networks}, waiting,
		func() (*config.Network, error) { return a.clusterNetwork(c) })
	if err != nil {
		return err
	}
	hostSubnet, err := caches.WaitFor(ctx, []cache.SharedIndexInformer{networks, hostSubnets}, waiting, func() (*config.HostSubnet, error) {
		// The cluster network may grow while the agent waits for a subnet in it.
		if n, err := a.clusterNetwork(c); err == nil {
			network = n
		}
		return a.hostSubnet(c, network)
	})
	if err != nil {
		return err
	}
	a.certificates.SetHostIP(hostSubnet.HostIP)
	check, err := a.watchNetworkConfig(cancel, c, network, hostSubnet)
	if err != nil {
		return err
	}
	// The kernel reports no change of the host's interfaces to the agent: poll.
	polling.Go(func() { wait.UntilWithContext(ctx, func(context.Context) { check(nil) }, caches.ReportInterval) })
	err = a.serve(ctx, c, network, hostSubnet)
	if cause := context.Cause(ctx); errors.Is(cause, errChanged) {
		return cause
	}
	if err != nil && !errors.Is(err, errChanged) && ctx.Err() == nil {
		a.condition.Set(nodestatus.Unavailable(err))
	}
	return err
}

// waiting returns a function that reports what the agent waits for: in the log, in an Event on the Node, in the answer to STATUS and, if the node
// has a HostSubnet, in the Node's condition.
func (a *agent) waiting(ctx context.Context, c *caches.Set) func(error) {
	return func(reason error) {
		klog.FromContext(ctx).Info("Waiting for the node's configuration", "err", reason.Error())
		a.reporter.Warn(eventreason.NetworkWaiting, reason)
		a.cni.SetReason(reason)
		if a.hasHostSubnet(c) {
			a.condition.Set(nodestatus.Unavailable(reason))
		} else {
			a.condition.Set(nil)
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
	if err != nil { // a lister has no error but NotFound
		return nil
	}
	return pod
}

func (f podFinder) Local() []*corev1.Pod {
	pods, err := f.lister.List(labels.Everything())
	if err != nil { // a lister never fails
		return nil
	}
	return pods
}

func (f podFinder) Get(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return f.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

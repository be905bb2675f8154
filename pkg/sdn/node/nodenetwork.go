package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/agentmetrics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/br0"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/caches"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/cnifiles"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/egressaddress"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/egressips"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/egresspolicy"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostports"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/idling"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/macvlan"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/multicast"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/networkpolicy"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/pinger"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podflows"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podinterface"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/pods"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/remotenodes"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/servicenat"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/services"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/tunnelneighbours"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/vnids"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/zonelimits"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// ipamNetwork is the directory of IP leases, named as the network in host-local's format.
const ipamNetwork = "ovsdn"

// hostCheck is the interval of checks of the host's settings whose changes cause no event.
const hostCheck = 10 * time.Second

// nodeNetwork is one set-up of the network of a node with a HostSubnet.
type nodeNetwork struct {
	agent      *agent
	caches     *caches.Set
	network    *config.Network
	hostSubnet *config.HostSubnet
	node       pipeline.Node // compiles flows
	started    time.Time

	underlay hostnet.Underlay
	mtu      linkmtu.MTU
	tun0     *hostnet.Tun0
	bridge   *br0.Bridge
	firewall hostnet.Firewall

	store       *flowstore.Store
	staticFlows *flowstore.Commit
	primes      []func(context.Context) error // set the flows of all existing objects
	runs        []func(context.Context)       // handle changes until the context ends
	onConnected []func()                      // called when vswitchd was connected
	policies    *networkpolicy.Policies       // nil in mode subnet
	podHandlers []podflows.PodHandler
	pinger      *pinger.Pinger
	idling      *idling.Holder // nil unless node.HoldsIdled
	egress      *egresspolicy.Policies
	egressIPs   *egressips.EgressIPs // nil in mode subnet
	egressAddrs *egressaddress.Addresses
	ipam        *ipam.IPAM
	pods        *pods.Manager
	hostPorts   *hostports.Ports
	proxyCheck  *problemCheck // of kube-proxy with node.BalancesServices, else of any service proxy
	foreign     *foreignChanges
}

// serve sets up the network of a node with a HostSubnet, and runs it until the context ends or a part fails.
func (a *agent) serve(ctx context.Context, c *caches.Set, network *config.Network, hostSubnet *config.HostSubnet) error {
	nodePorts, err := a.nodePortRanges(hostSubnet.HostIP)
	if err != nil {
		return err
	}
	foreign := newForeignChanges(a.reporter.WarnNode)
	n := &nodeNetwork{agent: a, caches: c, network: network, hostSubnet: hostSubnet, started: time.Now(), foreign: foreign, node: pipeline.Node{
		Mode:            network.Mode,
		ClusterNetworks: prefixesOf(network),
		ServiceNetwork:  network.ServiceNetwork,
		Subnets:         hostSubnet.Subnets,
		VTEP:            hostSubnet.HostIP,
		VXLANPort:       network.VXLANPort,

		BalancesServices: a.serviceProxy(network) == config.ServiceProxyOVS, NodePortAddresses: nodePorts,

		HoldsIdled: a.Unidle && a.serviceProxy(network) == config.ServiceProxyOVS,

		Userspace: a.Datapath == ovs.DatapathNetdev,

		FlowExport: a.FlowExport.samples(hostSubnet.HostIP),
	}}
	defer n.close()
	a.logServiceProxy(ctx, network)
	for _, step := range []func(context.Context) error{
		n.setUpBridge, n.startCaches, n.setUpHost, n.caches.Sync, n.newFeatures, n.newPods, n.watchPods, n.prime,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return n.run(ctx)
}

func (n *nodeNetwork) close() {
	n.agent.metrics.SetNetwork(nil)
	n.agent.diagnostics.SetNetwork(nil)
	if n.ipam != nil {
		_ = n.ipam.Close()
	}
}

// startCaches starts the remaining informers, which list their objects while the host is set up.
func (n *nodeNetwork) startCaches(ctx context.Context) error {
	if err := n.caches.WatchPolicies(ctx, n.node); err != nil {
		return err
	}
	return n.caches.WatchServices(ctx, n.node)
}

// newFeatures creates the flow store, the static flows and the features other than pods.
func (n *nodeNetwork) newFeatures(ctx context.Context) error {
	a := n.agent
	static, err := n.node.Static()
	if err != nil {
		return fmt.Errorf("static flows: %w", err)
	}
	n.store = flowstore.New(a.flowBridge)
	n.store.Observe(a.metrics.FlowObserver())
	n.store.OnDrift(n.foreign.flowsRestored)
	n.staticFlows = n.store.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: a.NodeName}, static)

	objects := n.caches.Network.Network().V1()
	hostSubnets, netNamespaces := objects.HostSubnets(), objects.NetNamespaces()
	remoteNodes, err := remotenodes.New(a.NodeName, n.network, n.node, hostSubnets.Lister(), hostSubnets.Informer(), a.bridge, n.firewall.VTEPs(), n.store)
	if err != nil {
		return err
	}
	listeners := multicast.New(a.NodeName, a.kube, n.store)
	remoteNodes.Follow(n.followRemoteNodes(listeners))
	namespaces, err := vnids.New(vnids.Options{
		Node: n.node, Lister: netNamespaces.Lister(), Informer: netNamespaces.Informer(), Store: n.store, Bridge: a.bridge, Follower: listeners,
		Get: a.getNetNamespace,
	})
	if err != nil {
		return err
	}
	n.newFlowExport()
	n.primes = append(n.primes, remoteNodes.Prime, namespaces.Prime)
	n.runs = append(n.runs, remoteNodes.Run, namespaces.Run, listeners.Run)
	exceptions, err := n.newMasquerade()
	if err != nil {
		return err
	}
	n.runs = append(n.runs, exceptions.Run)
	outside, err := n.newServices(ctx)
	if err != nil {
		return err
	}
	if err := a.serviceNetwork.Watch(ctx, n.caches.Services.Core().V1().Services().Informer(), n.network.ServiceNetwork); err != nil {
		return err
	}
	if err := n.newPolicies(outside); err != nil {
		return err
	}
	if err := n.newEgressPolicies(outside); err != nil {
		return err
	}
	return n.newEgressIPs()
}

// followRemoteNodes creates the features that need the remote nodes, and returns the function that notifies them. The kernel's datapath resolves
// the tunnels' neighbours itself, and queues their packets.
func (n *nodeNetwork) followRemoteNodes(listeners *multicast.Listeners) func(name string, node *inputs.RemoteNode) {
	a := n.agent
	n.pinger = pinger.New(pinger.Options{Rate: a.PeerProbeRate, MTU: n.mtu.Link, Open: pinger.OpenICMP, Observe: a.metrics.ObservePeer})
	n.runs = append(n.runs, n.pinger.Run)
	followers := []func(string, *inputs.RemoteNode){listeners.SetRemoteNode, n.pinger.SetRemoteNode}
	if a.Datapath == ovs.DatapathNetdev {
		neighbours := tunnelneighbours.New(a.bridge, tunnelneighbours.DefaultCheckInterval)
		n.runs, n.onConnected = append(n.runs, neighbours.Run), append(n.onConnected, neighbours.Resync)
		followers = append(followers, neighbours.SetRemoteNode)
	}
	return func(name string, node *inputs.RemoteNode) {
		for _, set := range followers {
			set(name, node)
		}
	}
}

// newServices creates the feature of services, and the indexes of the ports that are not free for host ports. It returns the endpoints by which policies
// evaluate packets to services; nil if they evaluate the translated packets.
func (n *nodeNetwork) newServices(ctx context.Context) (outside networkpolicy.OutsideEndpoints, err error) {
	a, objects := n.agent, n.caches.Services.Core().V1().Services()
	if err := n.caches.IndexHostPorts(); err != nil {
		return nil, err
	}
	if n.node.BalancesServices {
		return nil, n.newBalancer(ctx)
	}
	if err := servicenat.Remove(ctx); err != nil { // of a set-up in which br0 balanced services
		return nil, err
	}
	svcs, err := services.New(services.Options{
		Node: n.node, Lister: objects.Lister(), Informer: objects.Informer(), Slices: n.caches.EndpointSlices, Store: n.store,
		NodeName: a.NodeName, Nodes: n.caches.Nodes(),
	})
	if err != nil {
		return nil, err
	}
	search := &serviceProxySearch{rules: hostnet.KubeProxyRules, services: objects.Lister(), connect: connectTCP}
	n.proxyCheck = newNoServiceProxyCheck(search, a.reporter.Warn)
	n.primes, n.runs = append(n.primes, svcs.Prime), append(n.runs, svcs.Run, n.proxyCheck.run)
	return svcs.Outside, nil
}

// newPods opens the lease directory and creates the pod manager.
func (n *nodeNetwork) newPods(context.Context) (err error) {
	a := n.agent
	if n.ipam, err = ipam.Open(a.IPAMDir, ipamNetwork, n.hostSubnet.Subnets); err != nil {
		return err
	}
	var fetchNamespace func(context.Context, string) (types.UID, error)
	if n.policies != nil {
		fetchNamespace = n.policies.Fetch
	}
	var previous pods.PreviousVNIDs
	if n.node.Mode != config.ModeSubnet {
		previous = n.previousVNIDs
	}
	n.pods, err = pods.New(podinterface.Options{
		NodeName:        a.NodeName,
		Subnets:         n.hostSubnet.Subnets,
		ClusterNetworks: n.node.ClusterNetworks,
		ServiceNetwork:  n.node.ServiceNetwork,
		MTU:             n.mtu.Link,
		RouteMTU:        n.mtu.Routes,
		Datapath:        a.Datapath,
		Devices:         br0.Devices(),
	}, pods.Dependencies{
		Pods:     podFinder{n.caches.Local.Core().V1().Pods().Lister(), a.kube},
		IPAM:     n.ipam,
		Links:    veth.Links{Sysctls: sysctl.Dir(a.SysctlDir)},
		Macvlans: macvlan.Links{},
		Switch:   a.bridge,
		Store:    n.store,
		Compile:  n.node.Pod,
		Events:   a.reporter,

		Handlers:       n.podHandlers,
		FetchNamespace: fetchNamespace,

		BeforeRelease: n.releaseHostPorts,
		PreviousVNIDs: previous,
	})
	return err
}

// previousVNIDs reads the VNIDs of the previous agent's flows.
func (n *nodeNetwork) previousVNIDs(ctx context.Context) (map[uint64]config.VNID, error) {
	flows, err := n.agent.bridge.DumpFlows(ctx)
	return pipeline.VNIDsOf(flows), err
}

// prime sets all flows: the store's first write replaces those of the previous agent.
func (n *nodeNetwork) prime(ctx context.Context) error {
	for _, prime := range append(n.primes, n.pods.Recover) {
		if err := prime(ctx); err != nil {
			return err
		}
	}
	return nil
}

// run handles changes, and serves CNI requests once the initial flows are installed.
func (n *nodeNetwork) run(ctx context.Context) error {
	a := n.agent
	reconciler := br0.NewReconciler(n.bridge, n.pods, func(err error) { a.reporter.Warn(eventreason.NetworkSetupFailed, err) },
		func(message string) { a.reporter.WarnNode(eventreason.BridgeRestored, message) })
	limits := zonelimits.New(a.bridge, n.node)
	n.onConnected = append(n.onConnected, limits.Reset)
	group, ctx := errgroup.WithContext(ctx)
	start := func(run func(context.Context)) { group.Go(func() error { run(ctx); return nil }) }
	// The writer outlives the requests: those in flight when the agent stops still wait for their flows.
	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWriting()
	group.Go(func() error {
		n.egress.AwaitNames(ctx)
		return n.store.Run(writing)
	})
	if n.node.LimitsZones() {
		start(limits.Run)
	}
	repair := br0.NewFlowRepair(n.store)
	start(repair.Run)
	start(func(ctx context.Context) {
		a.bridge.Watch(ctx, br0.OnEvent(n.store, reconciler, repair, n.onConnected...))
	})
	start(reconciler.Run)
	sampler := a.metrics.NewSampler(a.bridge, n.firewall.Drops, n.node, a.NodeName)
	a.metrics.SetNetwork(n.metricSources(sampler))
	n.setDiagnostics(sampler)
	start(sampler.Run)
	start(func(ctx context.Context) { br0.WatchSockets(ctx, a.bridge, a.reporter.WarnNode) })
	for _, run := range n.runs {
		start(run)
	}
	start(func(ctx context.Context) { n.tun0.Run(ctx, hostCheck) })
	start(func(ctx context.Context) { n.firewall.Run(ctx, hostCheck) })
	start(n.foreign.run)
	start(n.pods.Run)
	group.Go(func() error { return a.awaitClusterPolicies(ctx, n.caches) })
	group.Go(func() error {
		defer stopWriting()
		return n.serveRequests(ctx, reconciler, start)
	})
	return group.Wait()
}

// metricSources returns the sources of the metrics of this set-up.
func (n *nodeNetwork) metricSources(s *agentmetrics.Sampler) *agentmetrics.Network {
	state := &agentmetrics.Network{Flows: n.store.Statistics, Pods: func() int { return len(n.pods.Pods()) }, Addrs: n.ipam.Usage, Sampler: s, BeyondBudget: n.egress.BeyondBudget, Worst: n.pinger.Worst}
	if n.policies != nil {
		state.Denied, state.EgressIPs = n.policies.ReportedPackets, n.egressIPs.Hosted
	}
	if n.idling != nil {
		state.Idled = n.idling.Statistics
	}
	return state
}

// serveRequests waits for the initial flows, writes the CNI configuration, and serves CNI requests until the context ends.
func (n *nodeNetwork) serveRequests(ctx context.Context, bridge *br0.Reconciler, start func(func(context.Context))) error {
	a := n.agent
	if err := a.awaitFlows(ctx, n.staticFlows, func() error { return errors.Join(n.pods.Healthy(), n.store.Healthy()) }); err != nil {
		return fmt.Errorf("bridge %s: %w", br0.Name, err)
	}
	if n.policies != nil {
		n.policies.InitialSyncDone()
	}
	restricted, err := n.firewall.Restrict(ctx)
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Failed to restrict VXLAN to nodes", "retryAfter", hostCheck)
	}
	klog.FromContext(ctx).Info("Initial flow sync complete", "pods", len(n.pods.Pods()), "duration", time.Since(n.started), "firewall", restricted)
	files := cnifiles.New(a.fileOptions(), a.reporter.Warn, a.reporter.Event)
	files.Sync(ctx)
	start(files.Run)
	features := newHostFeatures(n.firewall, a.reporter)
	message := func() string {
		return fmt.Sprintf("pods get addresses of %v, tunnels end at %s, MTU %s, service proxy %s", n.hostSubnet.Subnets, n.underlay, n.mtu, a.serviceProxy(n.network)) +
			features.effects() + n.proxyCheck.condition()
	}
	if status := message(); files.Healthy() == nil { // without the CNI configuration kubelet reports no network
		a.reporter.Event(corev1.EventTypeNormal, eventreason.NetworkReady, status)
	}
	flows, routes := a.flowsHealthy(n.store), newRouteCheck(n.network, a.reporter.Warn)
	start(routes.run)
	healthy := func() error {
		return joinErrors(n.pods.Healthy(), n.tun0.Healthy(),
			n.pods.SysctlsHealthy(), a.hostSubnetHealthy(n.caches), n.pods.Outside(), bridge.Healthy(), files.Healthy(), a.socket.Healthy(), n.firewall.Healthy(), flows(),
			n.egressAddrs.Healthy(), routes.healthy())
	}
	start(func(ctx context.Context) { a.watchHealth(ctx, healthy, message) })
	n.reportMissingHostPorts(ctx, n.agent.reporter, n.pods.Pods()) // before the first request
	start(n.hostPorts.Run)
	defer n.closeHostPorts(ctx) // after the last request
	return a.cni.Serve(ctx, n.hostPorts.Handler(n.pods))
}

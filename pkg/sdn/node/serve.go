package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/multicast"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/peers"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/pods"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/services"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/vnids"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// ipamNetwork is the folder of host-local's files.
const ipamNetwork = "ovsdn"

// hostCheck is how often the host's settings are looked at when nothing tells of a change.
const hostCheck = 10 * time.Second

// serve brings the node from a known HostSubnet to an open door, and stays until the context ends or a part fails.
func (a *agent) serve(ctx context.Context, c *caches, network *config.Network, own *config.HostSubnet) error {
	started := time.Now()
	underlay, mtu, err := a.underlay(network, own)
	if err != nil {
		return err
	}
	tun := hostnet.NewTun0(hostnet.Tun0Config{
		Subnets:         own.Subnets,
		ClusterNetworks: prefixesOf(network),
		ServiceNetwork:  network.ServiceNetwork,
		MTU:             mtu,
		Sysctls:         a.sysctls(),
	})
	fixture := newFixture(a.bridge, a.Datapath, network, own, tun, mtu)
	if err := fixture.ensure(ctx); err != nil {
		return err
	}
	firewall, err := a.setUpHost(ctx, network, tun)
	if err != nil {
		return err
	}
	compiler := pipeline.Node{
		Mode:            network.Mode,
		ClusterNetworks: prefixesOf(network),
		ServiceNetwork:  network.ServiceNetwork,
		Subnets:         own.Subnets,
		VTEP:            own.HostIP,
		VXLANPort:       network.VXLANPort,
		StatelessSCTP:   a.Datapath == pods.DatapathNetdev,
		LaterFragments:  a.Datapath == pods.DatapathNetdev,
	}
	if err := a.watchPolicies(ctx, c, network.Mode); err != nil {
		return err
	}
	endpointSlices, err := a.watchSlices(ctx, c, compiler)
	if err != nil {
		return err
	}
	if err := c.sync(ctx); err != nil {
		return err
	}

	st := store.New(a.gate)
	static, err := compiler.Static()
	if err != nil {
		return fmt.Errorf("static flows: %w", err)
	}
	written := st.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: a.NodeName}, static)

	hostSubnets := c.network.Network().V1().HostSubnets()
	peers, err := peers.New(a.NodeName, network, compiler, hostSubnets.Lister(), hostSubnets.Informer(), a.bridge, firewall.VTEPs(), st)
	if err != nil {
		return err
	}
	listeners := multicast.New(a.NodeName, a.kube)
	peers.Follow(listeners.Peer)
	netNamespaces := c.network.Network().V1().NetNamespaces()
	byVNID, err := vnids.New(vnids.Options{
		Node:     compiler,
		Lister:   netNamespaces.Lister(),
		Informer: netNamespaces.Informer(),
		Get: func(ctx context.Context, name string) (*networkv1.NetNamespace, error) {
			return a.network.NetworkV1().NetNamespaces().Get(ctx, name, metav1.GetOptions{})
		},
		Store:     st,
		Bridge:    a.bridge,
		Elsewhere: listeners,
	})
	if err != nil {
		return err
	}
	serviceInformer := c.cluster.Core().V1().Services()
	services, err := services.New(services.Options{
		Node: compiler, Lister: serviceInformer.Lister(), Informer: serviceInformer.Informer(), Slices: endpointSlices, VNIDs: byVNID,
		NodeName: a.NodeName, Nodes: c.nodes(), Store: st,
	})
	if err != nil {
		return err
	}
	if err := a.watchServiceNetwork(ctx, c, network); err != nil {
		return err
	}
	judged, judge, err := a.judge(c, compiler, byVNID, services)
	if err != nil {
		return err
	}
	addresses, err := ipam.Open(a.IPAMDir, ipamNetwork, own.Subnets)
	if err != nil {
		return err
	}
	defer addresses.Close()
	manager, err := pods.New(pods.Options{
		NodeName:        a.NodeName,
		Subnets:         own.Subnets,
		ClusterNetworks: compiler.ClusterNetworks,
		ServiceNetwork:  compiler.ServiceNetwork,
		MTU:             mtu.Link,
		RouteMTU:        mtu.Routes,
		Datapath:        a.Datapath,
	}, pods.Seams{
		Pods:     podFinder{c.local.Core().V1().Pods().Lister(), a.kube},
		IPAM:     addresses,
		Links:    pods.Kernel{Sysctls: sysctl.Dir(a.SysctlDir)},
		Switch:   a.bridge,
		Flows:    byVNID,
		Policies: judged,
		Compile:  compiler.Pod,
		Events:   a.reporter,
	})
	if err != nil {
		return err
	}

	// The first replacement of the bridge's flows must hold all of them.
	if err := peers.Prime(ctx); err != nil {
		return err
	}
	if err := byVNID.Prime(ctx); err != nil {
		return err
	}
	if err := services.Prime(); err != nil {
		return err
	}
	if judge != nil {
		if err := judge.Prime(ctx); err != nil {
			return err
		}
	}
	if err := manager.Recover(ctx); err != nil {
		return err
	}

	keeper := newKeeper(fixture, manager, func(err error) { a.reporter.warn(reasonFailed, err) },
		func(message string) { a.reporter.WarnNode(reasonBridgeRestored, message) })
	group, ctx := errgroup.WithContext(ctx)
	// The writer outlives the requests: those in flight when the agent stops still wait for their flows.
	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWriting()
	group.Go(func() error { return st.Run(writing) })
	limits := newZoneLimits(a.bridge, compiler)
	if network.Mode != config.ModeSubnet { // which tracks nothing
		group.Go(func() error { limits.Run(ctx); return nil })
	}
	group.Go(func() error { a.bridge.Watch(ctx, follow(st, keeper, limits)); return nil })
	group.Go(func() error { keeper.run(ctx); return nil })
	group.Go(func() error { a.watchSockets(ctx); return nil })
	group.Go(func() error { peers.Run(ctx); return nil })
	group.Go(func() error { byVNID.Run(ctx); return nil })
	group.Go(func() error { listeners.Run(ctx, byVNID.Refresh); return nil })
	group.Go(func() error { services.Run(ctx); return nil })
	group.Go(func() error { return a.awaitClusterPolicies(ctx, c) })
	if judge != nil {
		group.Go(func() error { judge.Run(ctx); return nil })
	}
	group.Go(func() error { tun.Run(ctx, hostCheck); return nil })
	group.Go(func() error { firewall.Run(ctx, hostCheck); return nil })
	group.Go(func() error { manager.Run(ctx); return nil })
	group.Go(func() error {
		defer stopWriting()
		if err := a.awaitFlows(ctx, written, manager.Healthy); err != nil {
			return fmt.Errorf("bridge %s: %w", bridgeName, err)
		}
		if judge != nil {
			judge.Written()
		}
		restricted, err := firewall.Restrict(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to restrict VXLAN to nodes", "retryAfter", hostCheck)
		}
		klog.FromContext(ctx).Info("Initial flow sync complete", "pods", len(manager.Pods()), "duration", time.Since(started), "firewall", restricted)
		files := a.newRuntimeFiles()
		files.sync(ctx)
		group.Go(func() error { files.run(ctx); return nil })
		message := fmt.Sprintf("pods get addresses of %v, tunnels end at %s, MTU %s", own.Subnets, underlay, mtu)
		for _, s := range firewall.Skipped() {
			message += ", " + a.reportSkipped(s)
		}
		if files.healthy() == nil { // else kubelet does not know
			a.reporter.say(reasonReady, message)
		}
		healthy := func() error {
			return joinFaults(manager.Healthy(), tun.Healthy(), keeper.healthy(), files.healthy(), a.socket.healthy(), firewall.Healthy())
		}
		group.Go(func() error { a.watchHealth(ctx, healthy, message); return nil })
		return a.door.lead(ctx, manager)
	})
	return group.Wait()
}

// joinFaults joins what is wrong with the node's parts. While Open vSwitch does not serve there may be no tun0: that is said once.
func joinFaults(bridge, tun error, others ...error) error {
	if bridge == nil {
		bridge = tun
	}
	return errors.Join(append([]error{bridge}, others...)...)
}

// follow reacts to what Open vSwitch does by itself, and to what others do to it. A switch that has started anew has no flows: the store
// writes them again, and an unchanged one gets nothing.
func follow(st *store.Store, keeper *keeper, limits *zoneLimits) func(ovs.Event) {
	return func(e ovs.Event) {
		switch e.Kind {
		case ovs.SwitchConnected:
			st.Resync()
			limits.Reset()
		case ovs.DatabaseConnected:
			keeper.look(bridgeName)
		case ovs.PortChanged:
			keeper.look(e.Port.Name)
		case ovs.FlowsLost:
			keeper.look(bridgeName)
			st.Resync()
		}
	}
}

// setUpHost makes the host route to the pods, and let them through.
func (a *agent) setUpHost(ctx context.Context, network *config.Network, tun *hostnet.Tun0) (*hostnet.Firewall, error) {
	log := klog.FromContext(ctx)
	changes, err := tun.Sync(ctx)
	if err != nil {
		return nil, err
	}
	log.Info("Host interface is right", "interface", hostnet.Tun0Name, "changed", changes)

	firewall, err := hostnet.NewFirewall(hostnet.FirewallConfig{
		ClusterNetworks: prefixesOf(network),
		VXLANPort:       network.VXLANPort,
		// Sources are judged in no table of mode subnet (docs/decisions/0002).
		MasqueradeServices: a.ServiceProxy == ServiceProxyExternal && network.Mode == config.ModeSubnet,
		SourcesJudged:      network.Mode != config.ModeSubnet,
		ServiceNetwork:     network.ServiceNetwork,
		RoutedDSCP:         pipeline.RoutedDSCP,
		ForwardedDSCP:      pipeline.ForwardedDSCP,
		PodConnections:     hostnet.PodConnections(sysctl.Dir(a.SysctlDir)),
		PodDevices:         pods.HostDevices(a.Datapath),
		HostAccess:         a.HostAccess,
		NodeNetworks:       network.ClusterNetworks,
	})
	if err != nil {
		return nil, err
	}
	changes, err = firewall.Sync(ctx)
	if err != nil {
		return nil, err
	}
	log.Info("Host firewall is right", "changed", changes)
	return firewall, nil
}

// reportSkipped warns of a feature that the host's firewall can't have, and returns its effect.
func (a *agent) reportSkipped(s hostnet.Skipped) (effect string) {
	switch s.Feature {
	case hostnet.FeatureNotrack:
		a.reporter.warn(reasonTunnelTracked, fmt.Errorf("the host's conntrack tracks the tunnel, with an entry for each connection between pods of two nodes: %w; load the modules, or raise nf_conntrack_max", s.Err))
		return "tunnel tracked by the host's conntrack"
	case hostnet.FeatureVTEPs:
		a.reporter.warn(reasonTunnelUnrestricted, fmt.Errorf("the host accepts VXLAN from any address, and only Open vSwitch's flows drop that of unknown VTEPs: %w; load the modules", s.Err))
		return "VXLAN accepted from any address"
	case hostnet.FeaturePodLimit:
		a.reporter.warn(reasonPodConnectionsUnlimited, fmt.Errorf("one pod can fill the host's conntrack table, so that neither other pods nor the node can open connections: %w; load the modules", s.Err))
		return "connections of pods not limited in the host's conntrack"
	default:
		return string(s.Feature) + " not supported by the kernel"
	}
}

// handlerOf calls look for every event of the object of that name.
func handlerOf(name string, look func(any)) cache.FilteringResourceEventHandler {
	return cache.FilteringResourceEventHandler{
		FilterFunc: func(obj any) bool {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				return gone.Key == name
			}
			o, ok := obj.(metav1.Object)
			return ok && o.GetName() == name
		},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    look,
			UpdateFunc: func(_, obj any) { look(obj) },
			DeleteFunc: look,
		},
	}
}

func sameNetwork(a, b *config.Network) bool { return reflect.DeepEqual(a, b) }

func sameHostSubnet(a, b *config.HostSubnet) bool {
	return a.HostIP == b.HostIP && slices.EqualFunc(a.Subnets, b.Subnets, func(x, y netip.Prefix) bool { return x == y })
}

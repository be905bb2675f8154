// Package bareagent is the node agent without Kubernetes: its pods, store, pipeline and CNI server, put together as pkg/sdn/node does.
package bareagent

import (
	"context"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/br0"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/diagnosticsserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/macvlan"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podinterface"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/pods"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

const (
	// NodeName is the node's.
	NodeName = "node1"

	// Network is the name of the network and of its folder of addresses.
	Network = "ovsdn"

	// MTU is that of pods and tun0, in bytes.
	MTU = 1450
)

// Node is one of OpenShift's default network with these addresses for its pods.
func Node(subnet netip.Prefix) pipeline.Node {
	return pipeline.Node{
		Mode:            config.ModeSubnet,
		ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
		Subnets:         []netip.Prefix{subnet},
		VXLANPort:       config.DefaultVXLANPort,
	}
}

// Agent is what an agent is made of.
type Agent struct {
	Node    pipeline.Node
	RunDir  string // of Open vSwitch
	Socket  string // to serve CNI on
	IPAMDir string // of the address files
	Pods    pods.Pods
	Events  pods.Events

	// Bridge and Dependencies, unless nil, wrap what the agent uses.
	Bridge       func(ovs.Interface) ovs.Interface
	Dependencies func(*pods.Dependencies)

	// Serve, unless nil, runs beside the CNI server. The network has what traces need.
	Serve func(context.Context, *diagnosticsserver.Network) error
}

// Run is the agent until the context ends.
func (a Agent) Run(ctx context.Context) error {
	socket, err := cniserver.Listen(a.Socket)
	if err != nil {
		return err
	}
	defer socket.Close()
	backend := native.New(ovstest.Bridge, a.RunDir)
	defer backend.Close()
	if err := onceAvailable(ctx, func(ctx context.Context) error { return SetUpBridge(ctx, backend) }); err != nil {
		return err
	}
	var bridge ovs.Interface = backend
	if a.Bridge != nil {
		bridge = a.Bridge(backend)
	}
	flows := flowstore.New(bridge)
	static, err := a.Node.Static()
	if err != nil {
		return err
	}
	written := flows.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: NodeName}, static)
	addresses, err := ipam.Open(a.IPAMDir, Network, a.Node.Subnets)
	if err != nil {
		return err
	}
	defer addresses.Close()
	manager, err := a.manager(backend, flows, addresses)
	if err != nil {
		return err
	}
	if err := onceAvailable(ctx, manager.Recover); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx)) // until no call waits for the switch
	defer stopWriting()
	group.Go(func() error { return flows.Run(writing) })
	group.Go(func() error {
		backend.Watch(ctx, func(e native.Event) {
			if e.Kind == native.SwitchConnected {
				flows.Resync()
			}
		})
		return nil
	})
	group.Go(func() error { manager.Run(ctx); return nil })
	if a.Serve != nil {
		group.Go(func() error { return a.Serve(ctx, a.network(backend, flows, manager)) })
	}
	group.Go(func() error {
		defer stopWriting()
		if err := written.Wait(ctx); err != nil {
			return err
		}
		return cniserver.Serve(ctx, socket, manager)
	})
	return group.Wait()
}

func (a Agent) network(backend *native.Native, flows *flowstore.Store, manager *pods.Manager) *diagnosticsserver.Network {
	return &diagnosticsserver.Network{
		Mode: a.Node.Mode, HostSubnet: &config.HostSubnet{Node: NodeName, Subnets: a.Node.Subnets}, Node: a.Node, Store: flows, Switch: backend, Pods: manager.Pods,
		HostSubnetOf: func(string) (*config.HostSubnet, bool) { return nil, false },
		NodeOf:       func(netip.Addr) (string, bool) { return "", false },
	}
}

// onceAvailable tries again while Open vSwitch does not answer.
func onceAvailable(ctx context.Context, try func(context.Context) error) error {
	return wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		err := try(ctx)
		if ovs.IsUnavailable(err) {
			return false, nil
		}
		return true, err
	})
}

func (a Agent) manager(backend *native.Native, flows *flowstore.Store, addresses *ipam.IPAM) (*pods.Manager, error) {
	flows.Source(inputs.KindVNID, flowstore.Source{Default: config.GlobalVNID})
	flows.Source(inputs.KindNamespaceUID, flowstore.Source{Default: types.UID("")})
	flows.Source(inputs.KindPodPolicies, flowstore.Source{Default: pipeline.PodPolicies{}})
	flows.Source(inputs.KindEgressFirewall, flowstore.Source{Default: pipeline.EgressFirewallID(0)})
	flows.Source(inputs.KindEgressIPs, flowstore.Source{Default: inputs.EgressIPs{}})
	dependencies := pods.Dependencies{
		Pods: a.Pods, IPAM: addresses, Links: veth.Links{}, Macvlans: macvlan.Links{}, Switch: backend, Store: flows, Compile: a.Node.Pod, Events: a.Events,
	}
	if a.Dependencies != nil {
		a.Dependencies(&dependencies)
	}
	return pods.New(podinterface.Options{
		NodeName:        NodeName,
		Subnets:         a.Node.Subnets,
		ClusterNetworks: a.Node.ClusterNetworks,
		ServiceNetwork:  a.Node.ServiceNetwork,
		MTU:             MTU,
		Datapath:        ovs.DatapathNetdev,
		Devices:         br0.Devices(),
	}, dependencies)
}

// SetUpBridge makes br0 with the two ports that every node has.
func SetUpBridge(ctx context.Context, bridge ovs.Interface) error {
	if err := bridge.EnsureBridge(ctx, ovs.Bridge{Name: ovstest.Bridge, DatapathType: ovs.DatapathNetdev, TableNames: pipeline.TableNames()}); err != nil {
		return err
	}
	for _, p := range []ovs.Port{
		{Name: "vxlan0", Type: "vxlan", OFPort: pipeline.PortVXLAN, Options: map[string]string{"remote_ip": "flow", "key": "flow"}},
		{Name: "tun0", Type: "internal", OFPort: pipeline.PortTun, MTURequest: MTU},
	} {
		if _, err := bridge.AddPort(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

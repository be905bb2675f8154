package node

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/reconcile"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// bridgeName is OpenShift SDN's; people's habits know it.
const bridgeName = "br0"

// fixture is br0 with its two fixed ports. Flows are the store's.
type fixture struct {
	bridge *ovs.Native
	wanted ovs.Bridge
	ports  []ovs.Port
	tun    *hostnet.Tun0
}

func newFixture(bridge *ovs.Native, datapath string, network *config.Network, own *config.HostSubnet, tun *hostnet.Tun0, mtu linkmtu.MTU) *fixture {
	options := map[string]string{"remote_ip": "flow", "key": "flow"}
	if network.VXLANPort != config.DefaultVXLANPort {
		options["dst_port"] = strconv.Itoa(int(network.VXLANPort))
	}
	return &fixture{
		bridge: bridge,
		wanted: ovs.Bridge{Name: bridgeName, DatapathType: datapath, TableNames: pipeline.TableNames()},
		ports: []ovs.Port{
			{Name: "vxlan0", Type: "vxlan", Options: options, OFPort: pipeline.PortVXLAN},
			{
				Name: hostnet.Tun0Name, Type: "internal", OFPort: pipeline.PortTun, MTURequest: mtu.Link,
				MAC: config.MAC(config.Gateway(own.Subnets[0])).String(),
			},
		},
		tun: tun,
	}
}

// owns says whether the port of that name is part of the fixture.
func (f *fixture) owns(port string) bool {
	for _, p := range f.ports {
		if p.Name == port {
			return true
		}
	}
	return port == f.wanted.Name
}

// ensure makes the bridge and its ports right. It writes nothing when they are.
func (f *fixture) ensure(ctx context.Context) error {
	// With its port, tun0 gets its MTU.
	changes, err := f.tun.PrepareMTU(ctx)
	if err != nil {
		return err
	}
	if len(changes) > 0 {
		klog.FromContext(ctx).Info("Routes are ready for another MTU", "interface", hostnet.Tun0Name, "changed", changes)
	}
	if err := f.bridge.EnsureBridge(ctx, f.wanted); err != nil {
		return err
	}
	for _, port := range f.ports {
		got, err := f.bridge.AddPort(ctx, port)
		if err != nil {
			return err
		}
		if got.OFPort != port.OFPort {
			return fmt.Errorf("port %s of %s has OpenFlow number %d, it must be %d: another port holds that number; `ovs-vsctl del-port` it", port.Name, bridgeName, got.OFPort, port.OFPort)
		}
	}
	return nil
}

// keeper puts right what others do to the bridge and its ports, one port at a time: the rest of the node goes on.
type keeper struct {
	fixture *fixture
	pods    interface {
		Repair(ctx context.Context, port string) error
	}
	report func(error) // where the user looks
	loop   *reconcile.Loop

	mu    sync.Mutex
	fault error // of the fixture
}

// keepers is how many ports are repaired at the same time: each may wait for vswitchd.
const keepers = 4

func newKeeper(f *fixture, pods interface {
	Repair(ctx context.Context, port string) error
}, report func(error)) *keeper {
	k := &keeper{fixture: f, pods: pods, report: report}
	k.loop = reconcile.New("bridge", keepers, k.serve)
	return k
}

// look has the port of that name looked at, soon.
func (k *keeper) look(port string) {
	if k.fixture.owns(port) {
		port = k.fixture.wanted.Name // the key of all the fixture
	}
	k.loop.Add(port)
}

func (k *keeper) run(ctx context.Context) {
	k.look(k.fixture.wanted.Name)
	k.loop.Run(ctx)
}

func (k *keeper) serve(ctx context.Context, port string) error {
	if !k.fixture.owns(port) {
		return k.pods.Repair(ctx, port)
	}
	err := k.fixture.ensure(ctx)
	if ctx.Err() != nil {
		return err
	}
	k.note(err)
	if err == nil {
		k.loop.AddAfter(port, hostCheck) // of other changes than numbers nothing tells
	}
	return err
}

// note keeps the fault. That Open vSwitch is away is no fault of the fixture.
func (k *keeper) note(err error) {
	if ovs.IsUnavailable(err) {
		err = nil
	}
	k.mu.Lock()
	was := k.fault
	k.fault = err
	k.mu.Unlock()
	if err != nil && (was == nil || was.Error() != err.Error()) {
		k.report(err)
	}
}

// healthy returns what is wrong with the bridge and can't be put right, nil if nothing is.
func (k *keeper) healthy() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fault
}

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/pods"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// The names are OpenShift SDN's; people's habits know them.
const (
	bridgeName = "br0"
	vxlanName  = "vxlan0"
)

// ownBridge is how br0 is known to be this network's.
func ownBridge() ovs.Bridge {
	return ovs.Bridge{Name: bridgeName, Ports: []string{vxlanName, hostnet.Tun0Name}, PortID: pods.IDSandbox}
}

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
	wanted := ownBridge()
	wanted.DatapathType, wanted.TableNames = datapath, pipeline.TableNames()
	return &fixture{
		bridge: bridge,
		wanted: wanted,
		ports: []ovs.Port{
			{Name: vxlanName, Type: "vxlan", Options: options, OFPort: pipeline.PortVXLAN},
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
	return port == f.wanted.Name || slices.ContainsFunc(f.ports, func(p ovs.Port) bool { return p.Name == port })
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
		return noSwitch(err)
	}
	if err := f.evict(ctx); err != nil {
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

// missing returns the names of the fixture's ports that do not exist; all of them if the bridge does not.
func (f *fixture) missing(ctx context.Context) (names []string, err error) {
	have, err := f.bridge.ListPorts(ctx)
	if err != nil && !ovs.IsNoBridge(err) {
		return nil, err
	}
	for _, port := range f.ports {
		if !slices.ContainsFunc(have, func(p ovs.Port) bool { return p.Name == port.Name }) {
			names = append(names, port.Name)
		}
	}
	return names, nil
}

// noSwitch says what to do where nothing listens at Open vSwitch's socket, since there is none.
func noSwitch(err error) error {
	if isNoSwitch(err) {
		return fmt.Errorf("no Open vSwitch runs on this host: install it and start it, or add deploy/overlays/ovs to the installation, which brings one: %w", err)
	}
	return err
}

func isNoSwitch(err error) bool { return ovs.IsUnavailable(err) && errors.Is(err, fs.ErrNotExist) }

// evict takes pods' ports away that have got a fixed number, as can happen when somebody deletes a fixed port, or the bridge. They are
// made anew with another.
func (f *fixture) evict(ctx context.Context) error {
	ports, err := f.bridge.ListPorts(ctx)
	if err != nil {
		return err
	}
	for _, p := range ports {
		fixed := slices.ContainsFunc(f.ports, func(own ovs.Port) bool { return own.OFPort == p.OFPort })
		if !fixed || f.owns(p.Name) || p.ExternalIDs[pods.IDSandbox] == "" {
			continue
		}
		klog.FromContext(ctx).Info("A pod's port has a number that is another's", "port", p.Name, "ofport", p.OFPort)
		if err := f.bridge.DeletePort(ctx, p.Name); err != nil {
			return err
		}
	}
	return nil
}

// keeper puts right what others do to the bridge and its ports, one port at a time: the rest of the node goes on.
type keeper struct {
	fixture  *fixture
	pods     *pods.Manager
	report   func(error)          // where the user looks
	restored func(message string) // reports on the Node that ports were deleted and restored
	period   time.Duration        // of checks of the fixture for changes that cause no event
	loop     *reconcile.Loop

	mu    sync.Mutex
	fault error // of the fixture
}

// keepers is how many ports are repaired at the same time: each may wait for vswitchd.
const keepers = 4

func newKeeper(f *fixture, manager *pods.Manager, report func(error), restored func(message string)) *keeper {
	k := &keeper{fixture: f, pods: manager, report: report, restored: restored, period: hostCheck}
	k.loop = reconcile.New("bridge", k.serve)
	return k
}

// look has the port of that name looked at, soon.
func (k *keeper) look(port string) {
	if k.fixture.owns(port) {
		port = k.fixture.wanted.Name // the key of all the fixture
	}
	k.loop.AddUnlessFailing(port)
}

func (k *keeper) run(ctx context.Context) {
	k.look(k.fixture.wanted.Name)
	k.loop.Run(ctx, keepers)
}

func (k *keeper) serve(ctx context.Context, port string) error {
	if !k.fixture.owns(port) {
		return k.pods.Repair(ctx, port)
	}
	missing, err := k.fixture.missing(ctx)
	if err == nil {
		err = k.fixture.ensure(ctx)
	}
	if ctx.Err() != nil {
		return err
	}
	k.note(err)
	if err == nil && len(missing) > 0 {
		klog.FromContext(ctx).Info("Restored ports of the bridge", "bridge", bridgeName, "ports", missing)
		k.restored(fmt.Sprintf("ports %s of bridge %s were deleted, alone or with the bridge, while the agent ran, and are restored; find the program that deletes them",
			strings.Join(missing, " and "), bridgeName))
	}
	if err == nil {
		k.loop.AddAfter(port, k.period) // of other changes than numbers nothing tells
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

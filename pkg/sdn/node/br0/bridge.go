// Package br0 sets up the bridge of the pod network with its two fixed ports, and supervises Open vSwitch: it restores the bridge, its ports and its flows after another
// program changed them, and reports lost sockets. The flows belong to the flow store, the ports of pods to the pod manager.
package br0

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// The names are those of OpenShift SDN, for users of ovs-vsctl and ovs-ofctl.
const (
	Name      = "br0" // of the bridge
	vxlanName = "vxlan0"
)

// Identity returns the properties that identify br0 as this network's.
func Identity() ovs.Bridge {
	return ovs.Bridge{Name: Name, Ports: nodePorts(), PortID: sandbox.IDSandbox}
}

// nodePorts returns the names of the ports that are not pods'.
func nodePorts() []string { return []string{vxlanName, hostnet.Tun0Name} }

// Devices returns the names of the bridge and of its ports that are not pods'.
func Devices() []string { return append(nodePorts(), Name) }

// Bridge is br0 with its two fixed ports. Its flows belong to the flow store.
type Bridge struct {
	bridge *native.Native
	wanted ovs.Bridge
	ports  []ovs.Port
	tun    *hostnet.Tun0
}

// New returns the bridge of a node, which Ensure creates.
func New(bridge *native.Native, datapath string, network *config.Network, hostSubnet *config.HostSubnet, tun *hostnet.Tun0, mtu linkmtu.MTU) *Bridge {
	options := map[string]string{"remote_ip": "flow", "key": "flow"}
	if network.VXLANPort != config.DefaultVXLANPort {
		options["dst_port"] = strconv.Itoa(int(network.VXLANPort))
	}
	wanted := Identity()
	wanted.DatapathType, wanted.TableNames = datapath, pipeline.TableNames()
	return &Bridge{
		bridge: bridge,
		wanted: wanted,
		ports: []ovs.Port{
			{Name: vxlanName, Type: "vxlan", Options: options, OFPort: pipeline.PortVXLAN},
			{
				Name: hostnet.Tun0Name, Type: "internal", OFPort: pipeline.PortTun, MTURequest: mtu.Link,
				MAC: config.MAC(config.Gateway(hostSubnet.Subnets[0])).String(),
			},
		},
		tun: tun,
	}
}

// hasFixed reports whether the port is br0 or one of its fixed ports.
func (b *Bridge) hasFixed(port string) bool {
	return port == b.wanted.Name || slices.ContainsFunc(b.ports, func(p ovs.Port) bool { return p.Name == port })
}

// Ensure creates or corrects the bridge and its fixed ports. It writes nothing if they are in sync.
func (b *Bridge) Ensure(ctx context.Context) error {
	// AddPort sets the MTU of tun0; its routes must fit before.
	changes, err := b.tun.PrepareMTU(ctx)
	if err != nil {
		return err
	}
	if len(changes) > 0 {
		klog.FromContext(ctx).Info("Updated routes before a change of the MTU", "interface", hostnet.Tun0Name, "changed", changes)
	}
	if err := b.bridge.EnsureBridge(ctx, b.wanted); err != nil {
		return noSwitch(err)
	}
	if err := b.releaseFixedOFPorts(ctx); err != nil {
		return err
	}
	for _, port := range b.ports {
		got, err := b.bridge.AddPort(ctx, port)
		if err != nil {
			return err
		}
		if got.OFPort != port.OFPort {
			return fmt.Errorf("port %s of %s has OpenFlow port number %d, want %d, which another port has; delete that port with `ovs-vsctl del-port`",
				port.Name, Name, got.OFPort, port.OFPort)
		}
	}
	return nil
}

// missing returns the names of the fixed ports that do not exist; all of them if the bridge does not.
func (b *Bridge) missing(ctx context.Context) (names []string, err error) {
	have, err := b.bridge.ListPorts(ctx)
	if err != nil && !ovs.IsNoBridge(err) {
		return nil, err
	}
	for _, port := range b.ports {
		if !slices.ContainsFunc(have, func(p ovs.Port) bool { return p.Name == port.Name }) {
			names = append(names, port.Name)
		}
	}
	return names, nil
}

// noSwitch adds the remedy to an error caused by a host without Open vSwitch.
func noSwitch(err error) error {
	if IsNoSwitch(err) {
		return fmt.Errorf("no Open vSwitch runs on this host: install it and start it, or add deploy/overlays/ovs to the installation, which brings one: %w", err)
	}
	return err
}

// IsNoSwitch reports whether the error is that no Open vSwitch runs on this host.
func IsNoSwitch(err error) bool { return ovs.IsUnavailable(err) && errors.Is(err, fs.ErrNotExist) }

// releaseFixedOFPorts deletes ports of pods that have the OpenFlow port number of a fixed port, which vswitchd may assign after a fixed port or the
// bridge was deleted. The pod manager creates the ports again with other numbers.
func (b *Bridge) releaseFixedOFPorts(ctx context.Context) error {
	ports, err := b.bridge.ListPorts(ctx)
	if err != nil {
		return err
	}
	for _, p := range ports {
		fixed := slices.ContainsFunc(b.ports, func(fixed ovs.Port) bool { return fixed.OFPort == p.OFPort })
		if !fixed || b.hasFixed(p.Name) || p.ExternalIDs[sandbox.IDSandbox] == "" {
			continue
		}
		klog.FromContext(ctx).Info("Deleting pod port with the OpenFlow port number of a fixed port", "port", p.Name, "ofport", p.OFPort)
		if err := b.bridge.DeletePort(ctx, p.Name); err != nil {
			return err
		}
	}
	return nil
}

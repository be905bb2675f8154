package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/pods"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/vnids"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// agentCommand makes this program the node agent without Kubernetes: its pods, store, pipeline and CNI server, put together
// as pkg/sdn/node does. It runs as a process of its own, in the node's network namespace, as the real one does.
const agentCommand = "agent"

// podMTU is that of pods and tun0, in bytes.
const podMTU = 1450

// podNetwork is what the compilers and the agent are told: a node of OpenShift's default network, with room for 1,000 pods.
func podNetwork() pipeline.Node {
	return pipeline.Node{
		Mode:            config.ModeSubnet,
		ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
		Subnets:         []netip.Prefix{netip.MustParsePrefix("10.128.0.0/20")},
		VXLANPort:       config.DefaultVXLANPort,
	}
}

func runAgent(ctx context.Context, args []string) error {
	var runDir, socket, ipamDir string
	flags := pflag.NewFlagSet(agentCommand, pflag.ContinueOnError)
	flags.StringVar(&runDir, "run-dir", "", "Open vSwitch's")
	flags.StringVar(&socket, "socket", "", "to serve CNI on")
	flags.StringVar(&ipamDir, "ipam-dir", "", "of the address files")
	if err := flags.Parse(args); err != nil {
		return errors.Join(errUsage, err)
	}
	listener, err := cniserver.Listen(socket)
	if err != nil {
		return err
	}
	defer listener.Close()
	bridge := ovs.NewNative(ovstest.Bridge, runDir)
	defer bridge.Close()
	if err := setUpBridge(ctx, bridge); err != nil {
		return err
	}
	node := podNetwork()
	flows := store.New(bridge)
	static, err := node.Static()
	if err != nil {
		return err
	}
	written := flows.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: nodeName}, static)
	addresses, err := ipam.Open(ipamDir, "ovsdn", node.Subnets)
	if err != nil {
		return err
	}
	defer addresses.Close()
	byVNID, err := vnids.New(vnids.Options{Node: node, Store: flows})
	if err != nil {
		return err
	}
	manager, err := pods.New(pods.Options{
		NodeName:        nodeName,
		Subnets:         node.Subnets,
		ClusterNetworks: node.ClusterNetworks,
		ServiceNetwork:  node.ServiceNetwork,
		MTU:             podMTU,
		Datapath:        pods.DatapathNetdev,
	}, pods.Seams{Pods: anyPod{}, IPAM: addresses, Links: pods.Kernel{}, Switch: bridge, Flows: byVNID, Policies: pods.NoPolicies{}, Compile: node.Pod, Events: noEvents{}})
	if err != nil {
		return err
	}
	if err := manager.Recover(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return flows.Run(ctx) })
	group.Go(func() error {
		bridge.Watch(ctx, func(e ovs.Event) {
			if e.Kind == ovs.SwitchConnected {
				flows.Resync()
			}
		})
		return nil
	})
	group.Go(func() error { manager.Run(ctx); return nil })
	group.Go(func() error {
		if err := written.Wait(ctx); err != nil {
			return err
		}
		return cniserver.Serve(ctx, listener, manager)
	})
	return group.Wait()
}

// cniNode is a node without Kubernetes: a switch, an agent, and a runtime whose plugin calls it.
type cniNode struct {
	ovs     *ovstest.Switch
	socket  string
	runtime *cniRuntime
}

func (b *B) newNode() *cniNode {
	b.Helper()
	n := &cniNode{ovs: ovstest.Start(b), socket: filepath.Join(b.TempDir(), "run", "cni.sock")}
	self, err := os.Executable()
	b.must(err)
	agent := b.start(n.ovs.NS, "", self, agentCommand, "--run-dir="+n.ovs.RunDir, "--socket="+n.socket, "--ipam-dir="+b.TempDir())
	b.awaitCNI(agent, n.socket)
	n.runtime = b.ours(n.ovs.NS, n.socket)
	return n
}

const nodeName = "node1"

// setUpBridge makes br0 with the two ports that every node has.
func setUpBridge(ctx context.Context, bridge ovs.Interface) error {
	if err := bridge.EnsureBridge(ctx, ovs.Bridge{Name: ovstest.Bridge, DatapathType: pods.DatapathNetdev, TableNames: pipeline.TableNames()}); err != nil {
		return err
	}
	for _, p := range []ovs.Port{
		{Name: "vxlan0", Type: "vxlan", OFPort: pipeline.PortVXLAN, Options: map[string]string{"remote_ip": "flow", "key": "flow"}},
		{Name: "tun0", Type: "internal", OFPort: pipeline.PortTun, MTURequest: podMTU},
	} {
		if _, err := bridge.AddPort(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// anyPod answers from memory, as the agent's cache of its pods does: it knows every pod that sandbox.args names.
type anyPod struct{}

func (anyPod) Cached(namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(podUID(name))}}
}

func (anyPod) Get(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	return nil, fmt.Errorf("pod %s/%s: there is no API server", namespace, name)
}

func podUID(name string) string { return "uid-of-" + name }

// noEvents has nobody to tell: what fails here, fails the figure.
type noEvents struct{}

func (noEvents) WarnPod(pods.Pod, string, string) {}
func (noEvents) WarnNode(string, string)          {}

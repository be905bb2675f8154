package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/bareagent"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// startFigure: how long a node starts no pods after a restart of its agent. The floor is the required input: one list of each kind of object,
// and a dump of the bridge.
func startFigure() figure {
	return figure{
		name:  "start",
		about: "an agent's start on a node with 250 pods and 2,000 remote nodes, from the process to the CNI socket that answers",
		run:   runStart,
	}
}

const (
	startPods  = 250
	startPeers = 2000
)

func runStart(b *B) {
	n := b.newStartNode()
	b.progress("making %d HostSubnets and %d pods in the API", startPeers, startPods)
	pods := b.sandboxes(startPods)
	n.fillAPI(pods)
	agent := n.startAgent(n.ovs.RunDir)
	b.progress("making the %d pods on the node", startPods)
	_, err := wave(b.Context(), pods, b.ours(n.ovs.NS, n.socket).add)
	b.must(err)

	before := n.looks(pods)
	var starts, floor []time.Duration
	for i := range b.rounds {
		b.step("start %d of %d", i+1, b.rounds)
		agent.kill()
		took, err := timed(n.learn)
		b.must(err)
		floor = append(floor, took)
		took, _ = timed(func() error {
			agent = n.startAgent(n.ovs.RunDir)
			return nil
		})
		starts = append(starts, took)
	}
	scenario := fmt.Sprintf("%d pods, %d remote nodes", startPods, startPeers)
	b.record(scenario, "s", seriesOf("ours", seconds(starts)), seriesOf("lists and dump", seconds(floor)))

	agent.kill()
	counter := b.newCounter(n.ovs)
	n.startAgent(counter.dir)
	sent := float64(counter.flowMods(b))
	b.record(scenario, "flow-mods", seriesOf("ours", []float64{sent}), seriesOf("needed", []float64{0}, none()))
	touched := 0.
	for i, after := range n.looks(pods) {
		if after != before[i] {
			touched++
		}
	}
	b.record(scenario, "pods touched", seriesOf("ours", []float64{touched}), seriesOf("needed", []float64{0}, none()))
}

// startNode is a node of a cluster: an Open vSwitch, an underlay, and a way to a real API server.
type startNode struct {
	b       *B
	ovs     *ovstest.Switch
	kube    kubernetes.Interface
	network networkclient.Interface

	server     string // host and port of the API server
	kubeconfig string
	socket     string
	ipamDir    string
	confDir    string
}

// nodeAddr is the node's in the underlay.
const nodeAddr = "192.0.2.2"

func (b *B) newStartNode() *startNode {
	b.Helper()
	n := &startNode{b: b, ovs: ovstest.Start(b), ipamDir: b.TempDir(), confDir: b.TempDir()}
	n.socket = filepath.Join(b.TempDir(), "run", "cni.sock")
	n.kubeconfig = filepath.Join(b.TempDir(), "kubeconfig")
	cp := apitest.StartControlPlane(b)
	server, err := url.Parse(cp.RESTConfig().Host)
	b.must(err)
	n.server = server.Host
	content, err := cp.Plane().AdminKubeconfig(server.String())
	b.must(err)
	b.must(os.WriteFile(n.kubeconfig, content, 0o600))
	n.kube, err = kubernetes.NewForConfig(cp.RESTConfig())
	b.must(err)
	n.network, err = networkclient.NewForConfig(cp.RESTConfig())
	b.must(err)
	b.must(n.ovs.NS.Do(func(ns.NetNS) error { return makeUnderlay() }))
	b.forward(n.ovs.NS, n.server)
	return n
}

// makeUnderlay gives the namespace's host its node address.
func makeUnderlay() error {
	h, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "underlay0"
	veth := netlink.NewVeth(attrs)
	veth.PeerName = "underlay1"
	if err := h.LinkAdd(veth); err != nil {
		return err
	}
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(nodeAddr), Mask: net.CIDRMask(24, 32)}}
	if err := h.AddrAdd(veth, address); err != nil {
		return err
	}
	for _, l := range []netlink.Link{lo, veth} {
		if err := h.LinkSetUp(l); err != nil {
			return err
		}
	}
	return nil
}

// forward lets programs in the namespace reach what listens on this address here, until the figure ends.
func (b *B) forward(netns ns.NetNS, address string) {
	b.Helper()
	var l net.Listener
	b.must(netns.Do(func(ns.NetNS) (err error) {
		l, err = new(net.ListenConfig).Listen(b.Context(), "tcp", address)
		return err
	}))
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return // closed
			}
			go pass(in, address)
		}
	}()
}

// pass carries a connection until both sides have ended it.
func pass(in net.Conn, address string) {
	defer in.Close()
	out, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer out.Close()
	var ways sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		ways.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // ends with the connections
			way[0].Close()
		})
	}
	ways.Wait()
}

// fillAPI creates the cluster's objects, and assigns pods to the sandboxes.
func (n *startNode) fillAPI(pods []*sandbox) {
	n.b.Helper()
	ctx := n.b.Context()
	n.createNetwork(config.ModeSubnet, netip.MustParsePrefix("10.128.0.0/11"))
	_, err := n.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: bareagent.NodeName}}, metav1.CreateOptions{})
	n.b.must(err)
	_, err = n.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: podNamespace}}, metav1.CreateOptions{})
	n.b.must(err)
	// No controller makes it here, and pods are refused without.
	_, err = n.kube.CoreV1().ServiceAccounts(podNamespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	n.b.must(err)

	vtep, subnet := netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("10.128.2.0")
	n.b.must(n.hostSubnet(ctx, bareagent.NodeName, nodeAddr, "10.128.0.0/23"))
	n.b.must(each(ctx, startPeers, func(ctx context.Context, i int) error {
		a, s := vtep.As4(), subnet.As4()
		a[2], a[3] = byte(i/250), byte(1+i%250)
		third := int(s[1])<<8 + int(s[2]) + 2*i
		s[1], s[2] = byte(third>>8), byte(third)
		return n.hostSubnet(ctx, fmt.Sprintf("peer%d", i), netip.AddrFrom4(a).String(), netip.PrefixFrom(netip.AddrFrom4(s), 23).String())
	}))
	n.b.must(each(ctx, len(pods), func(ctx context.Context, i int) error {
		made, err := n.kube.CoreV1().Pods(podNamespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: pods[i].name},
			Spec:       corev1.PodSpec{NodeName: bareagent.NodeName, Containers: []corev1.Container{{Name: "c", Image: "localhost/none"}}},
		}, metav1.CreateOptions{})
		if err == nil {
			pods[i].uid = string(made.UID)
		}
		return err
	}))
}

// createNetwork creates the ClusterNetwork, as the controller accepts it.
func (n *startNode) createNetwork(mode config.Mode, cluster netip.Prefix) {
	n.b.Helper()
	network := &config.Network{
		Mode:            mode,
		ClusterNetworks: []config.ClusterNetwork{{Prefix: cluster, HostBits: 9}},
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
		VXLANPort:       config.DefaultVXLANPort,
	}
	accepted, err := network.Accepted()
	n.b.must(err)
	object := network.Object()
	object.Annotations = map[string]string{config.AcceptedAnnotation: accepted} // no controller writes it here
	_, err = n.network.NetworkV1().ClusterNetworks().Create(n.b.Context(), object, metav1.CreateOptions{})
	n.b.must(err)
}

func (n *startNode) hostSubnet(ctx context.Context, name, address, subnet string) error {
	_, err := n.network.NetworkV1().HostSubnets().Create(ctx, &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Host: name, HostIP: address, Subnet: subnet,
	}, metav1.CreateOptions{})
	return err
}

// callers is how many API calls are under way at a time, as in the master (its default of workers).
const callers = 8

// each calls f for 0 to n-1, several at a time.
func each(ctx context.Context, n int, f func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(callers)
	for i := range n {
		group.Go(func() error { return f(ctx, i) })
	}
	return group.Wait()
}

// startAgent starts the real agent and returns when it serves CNI. More arguments may be given.
func (n *startNode) startAgent(runDir string, more ...string) *process {
	n.b.Helper()
	p := n.b.start(n.ovs.NS, runDir, n.b.program("ovsdn-node"), n.agentArgs(more...)...)
	n.b.awaitCNI(p, n.socket)
	return p
}

func (n *startNode) agentArgs(more ...string) []string {
	return append([]string{
		"--kubeconfig=" + n.kubeconfig, "--node-name=" + bareagent.NodeName,
		"--node-ip=" + nodeAddr, "--datapath=netdev", "--cni-socket=" + n.socket, "--cni-conf-dir=" + n.confDir, "--ipam-dir=" + n.ipamDir,
	}, more...)
}

// learn asks for all that an agent must know before it may touch the bridge.
func (n *startNode) learn() error {
	ctx, all := n.b.Context(), metav1.ListOptions{}
	own := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", bareagent.NodeName).String()}
	if _, err := n.network.NetworkV1().ClusterNetworks().List(ctx, all); err != nil {
		return err
	}
	if _, err := n.network.NetworkV1().HostSubnets().List(ctx, all); err != nil {
		return err
	}
	if _, err := n.kube.CoreV1().Services("").List(ctx, all); err != nil {
		return err
	}
	if _, err := n.kube.CoreV1().Pods("").List(ctx, own); err != nil {
		return err
	}
	n.ovs.OFCtl(n.b, "dump-flows", ovstest.Bridge)
	return nil
}

package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// connectFigure: what it takes a pod to connect to a service. The peer is a connection to a pod, with the same flows on the same bridge.
func connectFigure() figure {
	return figure{
		name:  "connect",
		about: "TCP connections of a pod to a service of 10 endpoints, beside those to a pod on the same bridge; upcalls, and shares of the endpoints",
		run:   runConnect,
	}
}

const (
	connectors         = 4   // that connect at the same time
	connectionsABatch  = 100 // a sample of the rate
	latenciesASample   = 10  // single connections for each of options.samples
	warmUpConnections  = 5_000
	spreadConnections  = 10_000
	connectSlack       = 1.15 // of times, to those of the peer
	spreadSlack        = 15   // % of an endpoint's share
	strayUpcalls       = 0.01 // for each connection, such as for packets of the kernel's own
	directPort         = 9090 // no port of an endpoint: replies of an endpoint's port are looked up as those of the service
	synRetransmissions = 2
)

// connectNode is a node with a client and a pod that has all endpoints of a service. Both targets are on one bridge.
type connectNode struct {
	b               *B
	client          *datapath.Pod
	bridge          *native.Native
	service, direct netip.AddrPort
	opened          atomic.Int64                      // connections to the service
	accepted        [endpointsPerService]atomic.Int64 // by its endpoints
}

// newConnectNode starts a node in mode networkpolicy. Policies may select its pods, but isolate none.
func (b *B) newConnectNode(selected bool) *connectNode {
	b.Helper()
	node := datapath.New(b, 1).Nodes[0]
	client, server := node.AddPod(b), node.AddPod(b)
	node.Switch.OFCtl(b, "set-frags", ovstest.Bridge, "nx-match") // as the agent does
	// Closed connections retain their ports for a minute.
	client.Sh(b, "sysctl -qw net.ipv4.ip_local_port_range='10000 65535'")
	c := &connectNode{
		b: b, client: client, bridge: native.New(ovstest.Bridge, node.Switch.RunDir),
		service: netip.AddrPortFrom(netip.MustParseAddr("172.30.0.10"), servicePort), direct: netip.AddrPortFrom(server.Addr, directPort),
	}
	b.Cleanup(c.bridge.Close)
	var endpoints []netip.AddrPort
	for i := range uint16(endpointsPerService) {
		endpoints = append(endpoints, netip.AddrPortFrom(server.Addr, endpointPort+i))
		go serve(server.ListenTCP(b, endpointPort+i), &c.accepted[i])
	}
	go serve(server.ListenTCP(b, directPort), new(atomic.Int64))
	c.install(node, endpoints, selected)
	return c
}

func (c *connectNode) install(node *datapath.Node, endpoints []netip.AddrPort, selected bool) {
	b := c.b
	b.Helper()
	n := pipeline.Node{
		Mode:             config.ModeNetworkPolicy,
		ClusterNetworks:  []netip.Prefix{netip.MustParsePrefix(datapath.ClusterNetwork)},
		ServiceNetwork:   netip.MustParsePrefix(datapath.ServiceNetwork),
		Subnets:          []netip.Prefix{node.Subnet},
		VTEP:             node.VTEP,
		VXLANPort:        config.DefaultVXLANPort,
		BalancesServices: true,
		Userspace:        true,
	}
	static, err := n.Static()
	b.must(err)
	svc := n.BalancedService(pipeline.BalancedService{Frontends: []pipeline.Frontend{
		{Addr: c.service.Addr(), Protocol: goovs.ProtocolTCPv4, Port: c.service.Port(), Endpoints: endpoints},
	}})
	changes := []flowstore.Change{
		{Owner: pipeline.Owner{Kind: pipeline.KindNode, Key: "node"}, State: static}, {Owner: pipeline.Owner{Kind: pipeline.KindService, Key: "service"}, State: svc},
	}
	for _, p := range node.Pods {
		state := n.Pod(pipeline.Pod{OFPort: p.OFPort, MAC: p.MAC, Addrs: []netip.Addr{p.Addr}, Policies: pipeline.PodPolicies{Evaluated: selected}})
		changes = append(changes, flowstore.Change{Owner: pipeline.Owner{Kind: pipeline.KindPod, Key: p.Addr.String()}, State: state})
	}
	store := flowstore.New(c.bridge)
	go func() { _ = store.Run(b.Context()) }() // ends with the figure's context
	b.must(flowstore.WaitAll(b.Context(), store.SetAll(changes...)))
	node.Revalidate(b)
}

// serve counts the connections of a listener, and closes each after its client, until the listener is closed.
func serve(l net.Listener, accepted *atomic.Int64) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		accepted.Add(1)
		go func() {
			defer conn.Close()
			_, _ = io.Copy(io.Discard, conn) // the client has ended
		}()
	}
}

// openTCP opens a connection from the thread's network namespace, and closes it. It returns how long the connection took to open.
func openTCP(to netip.AddrPort) (took time.Duration, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("new socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SYNCNT, synRetransmissions); err != nil {
		return 0, fmt.Errorf("set TCP_SYNCNT: %w", err)
	}
	took, err = timed(func() error {
		return unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	})
	if err != nil {
		return 0, fmt.Errorf("connect to %s: %w", to, err)
	}
	return took, nil
}

// connect is openTCP, and counts connections to the service.
func (c *connectNode) connect(to netip.AddrPort) (time.Duration, error) {
	took, err := openTCP(to)
	if err == nil && to == c.service {
		c.opened.Add(1)
	}
	return took, err
}

// connectAll opens and closes connections, several at a time.
func (c *connectNode) connectAll(n int, to netip.AddrPort) error {
	var group errgroup.Group
	for i := range connectors {
		group.Go(func() error {
			return c.client.NS.Do(func(ns.NetNS) error {
				for range (n + i) / connectors {
					if _, err := c.connect(to); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	return group.Wait()
}

// connectTarget is what the client connects to.
type connectTarget struct {
	name      string
	to        netip.AddrPort
	latencies []time.Duration
	rates     []float64 // connections per second
	upcalls   uint64    // of the batches
}

func runConnect(b *B) {
	c := b.newConnectNode(false)
	c.measure("")
	b.record(fmt.Sprintf("%d connections to %d endpoints, most from a tenth", spreadConnections, endpointsPerService), "%",
		seriesOf("ours", []float64{c.spread(spreadConnections)}), seriesOf("even", []float64{0}, within(spreadSlack, "%")))
	b.newConnectNode(true).measure(", policies select both pods")
}

// measure records times, rates and upcalls of the two targets.
func (c *connectNode) measure(title string) {
	b := c.b
	b.Helper()
	b.progress("warming up: %d connections", 2*warmUpConnections)
	service, direct := &connectTarget{name: "ours", to: c.service}, &connectTarget{name: "pod to pod", to: c.direct}
	both := []*connectTarget{service, direct}
	for _, t := range both {
		b.must(c.connectAll(warmUpConnections, t.to))
	}
	for i := range b.samples {
		b.step("batches: %d of %d", i+1, b.samples)
		for _, t := range turns(both, i) {
			c.batch(t)
		}
	}
	n := b.samples * latenciesASample
	b.must(c.client.NS.Do(func(ns.NetNS) error {
		for i := range n {
			b.step("single connections: %d of %d", i+1, n)
			for _, t := range turns(both, i) {
				took, err := c.connect(t.to)
				if err != nil {
					return err
				}
				t.latencies = append(t.latencies, took)
			}
		}
		return nil
	}))
	micro := func(t *connectTarget) []float64 { return in(time.Microsecond, t.latencies) }
	b.record("TCP connection to a service"+title, "µs", seriesOf(service.name, micro(service)), seriesOf(direct.name, micro(direct), atMost(connectSlack)))
	b.record(fmt.Sprintf("TCP connections, %d at a time%s", connectors, title), "1/s", seriesOf(service.name, service.rates),
		seriesOf(direct.name, direct.rates, atLeast(math.Round(100/connectSlack)/100)))
	upcalls := func(t *connectTarget) []float64 {
		return []float64{float64(t.upcalls) / float64(b.samples*connectionsABatch)}
	}
	b.record("a TCP connection, warm"+title, "upcalls", seriesOf(service.name, upcalls(service)), seriesOf(direct.name, upcalls(direct), within(strayUpcalls, "upcalls")))
}

// batch measures the rate and the upcalls.
func (c *connectNode) batch(t *connectTarget) {
	c.b.Helper()
	before := c.missed()
	took, err := timed(func() error { return c.connectAll(connectionsABatch, t.to) })
	c.b.must(err)
	t.rates = append(t.rates, connectionsABatch/took.Seconds())
	t.upcalls += c.missed() - before
}

// missed returns the number of packets that the datapath has passed to vswitchd's flow tables.
func (c *connectNode) missed() uint64 {
	c.b.Helper()
	stats, err := c.bridge.DatapathStats(c.b.Context())
	c.b.must(err)
	return stats.Missed
}

// spread opens connections to the service, and returns how much the share of an endpoint differs from an equal one at most, in percent.
func (c *connectNode) spread(connections int) (most float64) {
	c.b.Helper()
	before := c.shares()
	c.b.must(c.connectAll(connections, c.service))
	share := float64(connections) / endpointsPerService
	for i, n := range c.shares() {
		most = max(most, math.Abs(float64(n-before[i])-share)/share*100)
	}
	return most
}

// shares waits until the endpoints have accepted all connections to the service, and returns how many each has accepted.
func (c *connectNode) shares() (counts [endpointsPerService]int64) {
	c.b.Helper()
	c.b.must(wait.PollUntilContextTimeout(c.b.Context(), 10*time.Millisecond, echoTimeout, true, func(context.Context) (bool, error) {
		total := int64(0)
		for i := range c.accepted {
			counts[i] = c.accepted[i].Load()
			total += counts[i]
		}
		return total == c.opened.Load(), nil
	}))
	return counts
}

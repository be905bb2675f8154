package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// datapathFigure: what packets between pods take when policies are evaluated for both ends. The floor is a bridge with the flows that it takes
// to deliver packets, and no others.
func datapathFigure() figure {
	return figure{
		name:  "datapath",
		about: "packets between two pods with policies, on one node and on two, beside a bridge that only delivers them",
		run:   runDatapath,
	}
}

const (
	echoesASample = 50      // round trips on an existing connection
	bytesASample  = 8 << 20 // of a TCP stream
	echoPort      = 7
	echoTimeout   = 5 * time.Second
)

func runDatapath(b *B) {
	networks := map[string]*datapath.Network{"ours": b.datapathNetwork(b.pipelineFlows), "floor": b.datapathNetwork(b.deliveryFlows)}
	for _, place := range []struct {
		name      string
		node, pod int // of the server
	}{{"same node", 0, 1}, {"other node", 1, 0}} {
		paths := map[string]path{}
		for network, n := range networks {
			paths[network] = b.path(n.Nodes[0].Pods[0], n.Nodes[place.node].Pods[place.pod])
		}
		measure := func(what, unit string, samples int, of func(path) error, in func([]time.Duration) []float64) {
			times := b.alternate(place.name+", "+what, samples, func() {},
				way{"ours", func() error { return of(paths["ours"]) }}, way{"floor", func() error { return of(paths["floor"]) }})
			b.record(what+", "+place.name, unit, seriesOf("ours", in(times["ours"])), seriesOf("floor", in(times["floor"])))
		}
		measure("UDP round trip", "µs", b.samples, path.echoes, func(t []time.Duration) []float64 { return in(echoesASample*time.Microsecond, t) })
		measure("first UDP round trip", "ms", b.samples, path.firstEcho, milliseconds)
		measure("TCP stream", "MB/s", b.samples, path.stream, func(t []time.Duration) []float64 {
			rates := seconds(t)
			for i, s := range rates {
				rates[i] = bytesASample / 1e6 / s
			}
			return rates
		})
	}
}

// datapathNetwork makes two nodes with two and one pods, and the flows.
func (b *B) datapathNetwork(flows func(*datapath.Network, *datapath.Node) string) *datapath.Network {
	b.Helper()
	n := datapath.New(b, 2)
	for i, pods := range []int{2, 1} {
		for range pods {
			n.Nodes[i].AddPod(b)
		}
	}
	for _, node := range n.Nodes {
		node.Switch.OFCtl(b, "set-frags", ovstest.Bridge, "nx-match") // as the agent does; else fragments have no ports in userspace
		node.SetFlows(b, flows(n, node))
	}
	return n
}

// pipelineFlows are ours in mode networkpolicy; all pods are isolated in both directions, and one rule allows the cluster network.
func (b *B) pipelineFlows(network *datapath.Network, node *datapath.Node) string {
	b.Helper()
	cluster := netip.MustParsePrefix(datapath.ClusterNetwork)
	n := pipeline.Node{
		Mode:            config.ModeNetworkPolicy,
		ClusterNetworks: []netip.Prefix{cluster},
		ServiceNetwork:  netip.MustParsePrefix(datapath.ServiceNetwork),
		Subnets:         []netip.Prefix{node.Subnet},
		VXLANPort:       config.DefaultVXLANPort,
	}
	static, err := n.Static()
	b.must(err)
	states := []pipeline.State{static}
	for _, peer := range network.Nodes {
		if peer != node {
			states = append(states, n.Peer(pipeline.Peer{VTEP: peer.VTEP, Subnets: []netip.Prefix{peer.Subnet}}))
		}
	}
	var text strings.Builder
	for _, pod := range node.Pods {
		policies := pipeline.PodPolicies{Evaluated: true, Ingress: true, Egress: true}
		states = append(states, n.Pod(pipeline.Pod{OFPort: pod.OFPort, MAC: pod.MAC, Addrs: []netip.Addr{pod.Addr}, Policies: policies}))
		fmt.Fprintf(&text, "table=27,priority=26026,ip,nw_src=%s,nw_dst=%s,actions=goto_table:28\n", pod.Addr, cluster)
		fmt.Fprintf(&text, "table=81,priority=26026,ip,reg2=%d,nw_src=%s,actions=goto_table:82\n", pod.OFPort, cluster)
	}
	for _, s := range states {
		for _, m := range s.Meters {
			line, err := ovs.MeterText(m)
			b.must(err)
			text.WriteString(line + "\n")
		}
		for _, f := range s.Flows {
			line, err := ovs.FlowText(f)
			b.must(err)
			text.WriteString(line + "\n")
		}
	}
	return text.String()
}

// deliveryFlows send each packet to the port that its destination has.
func (b *B) deliveryFlows(network *datapath.Network, node *datapath.Node) string {
	var text strings.Builder
	to := func(destination netip.Prefix, actions string) {
		fmt.Fprintf(&text, "arp,arp_tpa=%s,actions=%s\nip,nw_dst=%[1]s,actions=%[2]s\n", destination, actions)
	}
	for _, pod := range node.Pods {
		to(netip.PrefixFrom(pod.Addr, pod.Addr.BitLen()), fmt.Sprintf("output:%d", pod.OFPort))
	}
	for _, peer := range network.Nodes {
		if peer != node {
			to(peer.Subnet, fmt.Sprintf("set_field:%s->tun_dst,output:%d", peer.VTEP, datapath.PortVXLAN))
		}
	}
	return text.String()
}

// path is a client and a server, between which an address and a connection are known.
type path struct {
	client         *datapath.Pod
	asking         net.Conn // a UDP connection
	echo           netip.AddrPort
	sender, reader net.Conn // of the TCP stream
}

// path starts an echo server and connects to it.
func (b *B) path(client, server *datapath.Pod) path {
	b.Helper()
	answering := server.UDP(b, echoPort)
	go func() {
		buffer := make([]byte, 64)
		for {
			n, from, err := answering.ReadFrom(buffer)
			if err != nil {
				return // closed
			}
			if _, err := answering.WriteTo(buffer[:n], from); err != nil {
				return
			}
		}
	}()
	p := path{client: client, echo: answering.Addr()}
	var err error
	p.asking, err = p.dial()
	b.must(err)
	b.Cleanup(func() { p.asking.Close() })
	for range 10 { // the first ones wait for ARP
		if err = echo(p.asking, time.Second); err == nil {
			break
		}
	}
	b.must(err)
	stream := client.Dial(b, netip.AddrPortFrom(server.Addr, 80), server.ListenTCP(b, 80))
	p.sender, p.reader = stream.Client, stream.Server
	return p
}

// dial opens a UDP socket with a port of its own.
func (p path) dial() (conn net.Conn, err error) {
	err = p.client.NS.Do(func(ns.NetNS) (err error) {
		conn, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(p.echo)) //nolint:noctx // it sends nothing
		return err
	})
	return conn, err
}

// echo sends a packet and waits for its copy.
func echo(conn net.Conn, wait time.Duration) error {
	var packet [64]byte
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	if _, err := conn.Write(packet[:]); err != nil {
		return err
	}
	_, err := conn.Read(packet[:])
	return err
}

// echoes makes round trips on an existing connection.
func (p path) echoes() error {
	for range echoesASample {
		if err := echo(p.asking, echoTimeout); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return nil
}

// firstEcho makes the first round trip of a connection.
func (p path) firstEcho() error {
	conn, err := p.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	return echo(conn, echoTimeout)
}

// stream sends bytes on an existing TCP connection and waits until all have arrived.
func (p path) stream() error {
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyN(p.sender, zeros{}, bytesASample)
		sent <- err
	}()
	if _, err := io.CopyN(io.Discard, p.reader, bytesASample); err != nil {
		return err
	}
	return <-sent
}

// zeros reads as zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ovsdn/ovsdn/test/ovstest"
)

// servicesFigure: all services of a large cluster on a node without kube-proxy. The peer is kube-proxy, with the same objects.
func servicesFigure() figure {
	return figure{
		name:  "services",
		about: "10,000 services of 10 endpoints, from an empty switch to all flows, and the agent's memory, beside kube-proxy in mode nftables",
		run:   runServices,
	}
}

// balancing is the agent's flag with which the switch implements services.
const balancing = "--service-proxy=ovs"

// serviceProxy is a program that implements services.
type serviceProxy struct {
	name    string
	start   func(services int) *process // returns when the last one is programmed
	inspect func(services int)          // what was programmed
	reset   func()

	alone  float64 // its memory with one service, in MiB
	times  []time.Duration
	memory []float64
	peak   []float64
}

// run programs the services once.
func (p *serviceProxy) run(b *B, services int) {
	b.Helper()
	var running *process
	took, _ := timed(func() error {
		running = p.start(services)
		return nil
	})
	p.times = append(p.times, took)
	p.memory, p.peak = append(p.memory, b.memoryOf(running, residentMemory)), append(p.peak, b.memoryOf(running, peakMemory))
	running.kill()
	p.inspect(services)
	p.reset()
}

// runAlone measures the memory with one service.
func (p *serviceProxy) runAlone(b *B) {
	b.Helper()
	p.run(b, 1)
	p.alone, p.times, p.memory, p.peak = p.memory[0], nil, nil, nil
}

// share is the memory for all services but one.
func (p *serviceProxy) share() (all []float64) {
	for _, m := range p.memory {
		all = append(all, m-p.alone)
	}
	return all
}

func runServices(b *B) {
	n := b.newStartNode()
	n.fillForServices()
	limit := b.limitOf("node.yaml")
	table := &serviceFlows{startNode: n}
	ours, peer := n.balancingAgent(limit, table), n.kubeProxyPeer()
	n.createServices(0, 1)
	ours.runAlone(b)
	peer.runAlone(b)
	n.createServices(1, manyServices)
	rounds := min(b.rounds, 3) // kube-proxy's may take a minute
	for i := range rounds {
		b.progress("round %d of %d", i+1, rounds)
		for _, p := range turns([]*serviceProxy{ours, peer}, i) {
			p.run(b, manyServices)
		}
	}

	name := fmt.Sprintf("%d services × %d endpoints", manyServices, endpointsPerService)
	b.record(name+", from empty", "s", seriesOf("ours", seconds(ours.times)), seriesOf(peer.name, seconds(peer.times), atMost(1)))
	b.record(name+", memory for them", "MiB", seriesOf("ours", ours.share()), seriesOf(peer.name, peer.share(), atMost(1)))
	b.record(name+", memory", "MiB", seriesOf("ours", ours.memory), seriesOf(peer.name, peer.memory))
	b.record(name+", most memory", "MiB", seriesOf("ours", ours.peak), seriesOf("limit", []float64{float64(limit) / mebi}, atMost(1)))
	first, last := table.counts[0], table.counts[len(table.counts)-1]
	const added = manyServices - 1
	b.record(name, "flows", seriesOf("ours", []float64{last.flows - first.flows}),
		seriesOf("services and endpoints", []float64{added * (1 + endpointsPerService)}, atMost(1)))
	b.record(name, "groups", seriesOf("ours", []float64{last.groups - first.groups}), seriesOf("services", []float64{added}, atMost(1)))
	// Later rounds reuse memory that vswitchd has not returned.
	b.record(name+", ovs-vswitchd", "MiB", seriesOf("ours", []float64{table.counts[1].memory - first.memory}))
}

// balancingAgent returns the real agent, with the memory limit of its manifest.
func (n *startNode) balancingAgent(limit int64, table *serviceFlows) *serviceProxy {
	return &serviceProxy{
		name:    "ours",
		start:   func(int) *process { return n.startLimited(limit, balancing) }, // it serves CNI after all flows
		inspect: table.inspect,
		reset: func() {
			for _, kind := range []string{"del-flows", "del-groups", "del-meters"} {
				n.ovs.OFCtl(n.b, kind, ovstest.Bridge)
			}
		},
	}
}

func (n *startNode) kubeProxyPeer() *serviceProxy {
	proxy := n.newKubeProxy()
	return &serviceProxy{
		name: "kube-proxy",
		start: func(services int) *process {
			last, _ := serviceObjects(services - 1)
			return proxy.start(last)
		},
		inspect: func(services int) {
			if got := proxy.services(); got < services {
				n.b.Fatalf("kube-proxy has rules of %d services, want %d", got, services)
			}
		},
		reset: proxy.reset,
	}
}

// serviceFlows are what runs of the agent have left on the switch.
type serviceFlows struct {
	*startNode
	counts []switchCount
}

// switchCount has the numbers of flows and groups of the bridge, and vswitchd's memory in MiB.
type switchCount struct{ flows, groups, memory float64 }

func (f *serviceFlows) inspect(services int) {
	f.b.Helper()
	pid, err := os.ReadFile(filepath.Join(f.ovs.RunDir, "ovs-vswitchd.pid"))
	f.b.must(err)
	number, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	f.b.must(err)
	c := switchCount{groups: float64(strings.Count(f.ovs.OFCtl(f.b, "dump-groups", ovstest.Bridge), "group_id="))}
	c.memory, err = readMemory(number, residentMemory)
	f.b.must(err)
	_, count, _ := strings.Cut(f.ovs.OFCtl(f.b, "dump-aggregate", ovstest.Bridge), "flow_count=")
	_, err = fmt.Sscan(count, &c.flows)
	f.b.must(err)
	if int(c.groups) < services {
		f.b.Fatalf("the switch has %v groups of %d services", c.groups, services)
	}
	f.counts = append(f.counts, c)
}

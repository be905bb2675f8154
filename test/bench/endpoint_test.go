package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// One endpoint of one of several services costs one flow-mod and one group-mod, and the switch reports one changed flow.
func TestEndpoint_flowMods(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	b := &B{tb: newTB(t.Context(), t.Name(), t.Logf)}
	if err := b.do(func() { b.changeEndpoints() }); err != nil {
		t.Fatal(err)
	}
}

func (b *B) changeEndpoints() {
	s, _ := b.newBridge()
	counter := b.newCounter(s)
	backend := native.New(ovstest.Bridge, counter.dir)
	b.Cleanup(backend.Close)
	store := flowstore.New(backend)
	go func() { _ = store.Run(b.Context()) }() // ends with the figure's context
	node := podNetwork()
	node.BalancesServices, node.Userspace = true, true
	change := func(i, endpoints int) flowstore.Change {
		svc, slice := serviceObjects(i)
		f := pipeline.Frontend{Addr: netip.MustParseAddr(svc.Spec.ClusterIP), Protocol: goovs.ProtocolTCPv4, Port: servicePort}
		for _, e := range slice.Endpoints[:endpoints] {
			f.Endpoints = append(f.Endpoints, netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), endpointPort))
		}
		return flowstore.Change{
			Owner: pipeline.Owner{Kind: pipeline.KindService, Key: svc.Name}, State: node.BalancedService(pipeline.BalancedService{Frontends: []pipeline.Frontend{f}}),
		}
	}
	var all []flowstore.Change
	for i := range 3 {
		all = append(all, change(i, endpointsPerService))
	}
	b.must(flowstore.WaitAll(b.Context(), store.SetAll(all...)))
	flows := b.watchFlows(s, translateTable)
	for _, endpoints := range []int{endpointsPerService - 1, endpointsPerService} {
		counter.reset()
		b.must(flowstore.WaitAll(b.Context(), store.SetAll(change(1, endpoints))))
		b.next(flows)
		if got, groups := counter.flowMods(b), counter.groups.Load(); got != 1 || groups != 1 {
			b.Errorf("change to %d endpoints: got %d flow-mods and %d group-mods, want 1 and 1", endpoints, got, groups)
		}
	}
	if n := len(flows); n != 0 {
		b.Errorf("flows that changed besides: got %d, want none", n)
	}
}

// A program that computes uses CPU time, and one that waits does not.
func TestProcessorTimeOf(t *testing.T) {
	b := &B{tb: newTB(t.Context(), t.Name(), t.Logf)}
	if err := b.do(func() {
		cmd := exec.CommandContext(b.Context(), "sh", "-c", "while :; do :; done")
		b.must(cmd.Start())
		b.Cleanup(func() { _ = cmd.Wait() }) // "signal: killed" by the context
		p := &process{cmd: cmd}
		for first := b.processorTimeOf(p); b.processorTimeOf(p) == first; {
			b.must(b.Context().Err())
		}
	}); err != nil {
		t.Fatal(fmt.Errorf("read the CPU time of a program: %w", err))
	}
}

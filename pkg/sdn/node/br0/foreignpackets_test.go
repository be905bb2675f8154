package br0

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/seed"
)

const (
	changeInterval = time.Second
	packetInterval = 10 * time.Millisecond
	// recoveryTime is within what pods talk after the last change; emulatedTime in the virtual machine, which has a tenth of the speed.
	recoveryTime, emulatedTime = 2 * time.Second, 20 * time.Second
	// gapLength is the number of packets lost in a row from which on pods do not talk. A busy machine may lose fewer.
	gapLength = 5
)

// numbered is a series of packets from one pod to another, which count themselves.
type numbered struct {
	name     string
	from, to *datapath.Socket
	addr     netip.AddrPort

	mu      sync.Mutex
	sent    []time.Time // by number
	arrived map[uint64]bool
}

// send sends packets until the context ends.
func (n *numbered) send(ctx context.Context) error {
	ticker := time.NewTicker(packetInterval)
	defer ticker.Stop()
	for {
		n.mu.Lock()
		payload := binary.BigEndian.AppendUint64(nil, uint64(len(n.sent)))
		n.sent = append(n.sent, time.Now())
		n.mu.Unlock()
		if _, err := n.from.WriteTo(payload, net.UDPAddrFromAddrPort(n.addr)); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// receive counts packets until the socket is closed.
func (n *numbered) receive() error {
	if err := n.to.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	buffer := make([]byte, 64)
	for {
		length, _, err := n.to.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil || length != 8 {
			return fmt.Errorf("%s: received %d bytes: %w", n.name, length, err)
		}
		n.mu.Lock()
		n.arrived[binary.BigEndian.Uint64(buffer)] = true
		n.mu.Unlock()
	}
}

// awaitSent waits until the pod has sent a packet after the time.
func (n *numbered) awaitSent(t *testing.T, after time.Time) {
	t.Helper()
	await.OK(t, await.SyncTime, func(context.Context) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if sent := n.sent[len(n.sent)-1]; sent.Before(after) {
			return fmt.Errorf("%s: the last packet was sent at %v", n.name, sent)
		}
		return nil
	})
}

// losses returns the number of packets sent and lost, the longest time without an arrival, and when the last gap ended; zero: there was none.
func (n *numbered) losses() (sent, lost int, longest time.Duration, recovered time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	row := 0 // lost in a row
	for i, at := range n.sent {
		if !n.arrived[uint64(i)] {
			lost++
			row++
		}
		if arrived, last := n.arrived[uint64(i)], i == len(n.sent)-1; row > 0 && (arrived || last) {
			longest = max(longest, at.Sub(n.sent[max(i-row, 0)]))
			if row >= gapLength {
				recovered = at
			}
			row = 0
		}
	}
	return len(n.sent), lost, longest, recovered
}

// repairedNodes are two nodes with the flows that an agent installs: pods, of which one has bandwidth limits, the other node, and a service in the switch.
type repairedNodes struct {
	*datapath.Network
	stores []*flowstore.Store
}

// serviceAddr is the address of the service, whose endpoint is the second node's pod.
const (
	serviceAddr = "172.30.0.10"
	probedPort  = 53
	podPort     = 8053
)

func newRepairedNodes(t *testing.T) *repairedNodes {
	t.Helper()
	n := &repairedNodes{Network: datapath.New(t, 2)}
	var bridges []*Bridge
	for i, count := range []int{2, 1} {
		bridges = append(bridges, n.bridge(t, n.Nodes[i])) // the agent refuses a bridge with other ports
		for range count {
			n.Nodes[i].AddPod(t)
		}
	}
	for i, node := range n.Nodes {
		st := flowstore.New(bridges[i].bridge)
		commits := n.set(t, st, node)
		runRepair(t, bridges[i], st)
		if err := flowstore.WaitAll(t.Context(), commits); err != nil {
			t.Fatal(err)
		}
		n.stores = append(n.stores, st)
	}
	return n
}

// bridge makes the node's bridge the agent's.
func (n *repairedNodes) bridge(t *testing.T, node *datapath.Node) *Bridge {
	t.Helper()
	bridge := native.New(Name, node.Switch.RunDir)
	t.Cleanup(bridge.Close)
	bridge.MonitorTables(MonitoredTables())
	hostSubnet := &config.HostSubnet{Node: "node", Subnets: []netip.Prefix{node.Subnet}}
	f := New(bridge, n.Type, &config.Network{VXLANPort: config.DefaultVXLANPort}, hostSubnet, hostnet.NewTun0(hostnet.Tun0Config{}), linkmtu.MTU{Link: 1450})
	if err := f.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

// set sets the flows of the node's owners.
func (n *repairedNodes) set(t *testing.T, st *flowstore.Store, node *datapath.Node) (commits []*flowstore.Commit) {
	t.Helper()
	compiler := pipeline.Node{
		Mode: config.ModeNetworkPolicy, ClusterNetworks: []netip.Prefix{netip.MustParsePrefix(datapath.ClusterNetwork)},
		ServiceNetwork: netip.MustParsePrefix(datapath.ServiceNetwork), Subnets: []netip.Prefix{node.Subnet}, VTEP: node.VTEP, VXLANPort: config.DefaultVXLANPort,
		BalancesServices: true, Userspace: n.Type == ovstest.DatapathNetdev,
	}
	static, err := compiler.Static()
	if err != nil {
		t.Fatal(err)
	}
	set := func(kind pipeline.Kind, key string, state pipeline.State) {
		commits = append(commits, st.Set(pipeline.Owner{Kind: kind, Key: key}, state))
	}
	set(pipeline.KindNode, "node", static)
	for _, peer := range n.Nodes {
		if peer != node {
			set(pipeline.KindHostSubnet, "peer", compiler.Peer(pipeline.Peer{VTEP: peer.VTEP, Subnets: []netip.Prefix{peer.Subnet}, IsNode: true}))
		}
	}
	for i, p := range node.Pods {
		pod := pipeline.Pod{OFPort: p.OFPort, MAC: p.MAC, Addrs: []netip.Addr{p.Addr}}
		if i == 0 { // no packet of it passes without its meters
			pod.Bandwidth = config.Bandwidth{Ingress: 1e9, Egress: 1e9}
		}
		set(pipeline.KindPod, fmt.Sprint(i), compiler.Pod(pod))
	}
	set(pipeline.KindService, "service", compiler.BalancedService(pipeline.BalancedService{Frontends: []pipeline.Frontend{{
		Addr: netip.MustParseAddr(serviceAddr), Protocol: goovs.ProtocolUDPv4, Port: probedPort,
		Endpoints: []netip.AddrPort{netip.AddrPortFrom(n.Nodes[1].Pods[0].Addr, podPort)},
	}}}))
	return commits
}

// series returns packets on each path of the first node: within it, from and to the other node, and to the service, through its group.
func (n *repairedNodes) series(t *testing.T) (all []*numbered) {
	t.Helper()
	limited, local, remote := n.Nodes[0].Pods[0], n.Nodes[0].Pods[1], n.Nodes[1].Pods[0]
	add := func(name string, from, to *datapath.Socket, addr netip.AddrPort) {
		all = append(all, &numbered{name: name, from: from, to: to, addr: addr, arrived: map[uint64]bool{}})
	}
	for _, pair := range []struct {
		name     string
		from, to *datapath.Pod
	}{{"on the node", limited, local}, {"to the other node", local, remote}, {"from the other node", remote, limited}} {
		to := pair.to.UDP(t, 0)
		add(pair.name, pair.from.UDP(t, 0), to, to.Addr())
	}
	add("to the service", local.UDP(t, 0), remote.UDP(t, podPort), netip.AddrPortFrom(netip.MustParseAddr(serviceAddr), probedPort))
	for _, s := range all {
		s.from.MustReach(t, s.addr, s.to)
	}
	return all
}

// start sends and receives the packets until stop is called.
func start(t *testing.T, all []*numbered) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var senders, receivers sync.WaitGroup
	for _, s := range all {
		senders.Go(func() {
			if err := s.send(ctx); err != nil {
				t.Error(err)
			}
		})
		receivers.Go(func() {
			if err := s.receive(); err != nil {
				t.Error(err)
			}
		})
	}
	return sync.OnceFunc(func() {
		cancel()
		senders.Wait()
		for _, s := range all {
			s.to.Close()
		}
		receivers.Wait()
	})
}

// modeChanges are changes of the fail mode, with and without which vswitchd deletes all flows.
func modeChanges() []foreignChange {
	return []foreignChange{
		{name: "fail mode", commands: [][]string{{"ovs-vsctl", "--timeout=30", "set-fail-mode", Name, "standalone"}}},
		{name: "no fail mode", commands: [][]string{{"ovs-vsctl", "--timeout=30", "del-fail-mode", Name}}},
	}
}

// Another program makes a random change of the bridge each second, most of which meet a bridge that is being repaired, and in the end deletes all: pods talk
// within two seconds of that. What is lost in the meantime is printed.
func TestBridgeRepaired_randomForeignChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: two minutes, and compares times")
	}
	const rounds = 120
	n, limit := newRepairedNodes(t), recoveryTime
	if n.Type == ovstest.DatapathSystem {
		limit = emulatedTime
	}
	sw := n.Nodes[0].Switch
	want, err := contents(t.Context(), sw)
	if err != nil {
		t.Fatal(err)
	}
	changes := append(foreignChanges(groupOf(want)), modeChanges()...)
	random := seed.Rand(t)
	series := n.series(t)
	stop := start(t, series)
	defer stop()
	var made []string
	ticker := time.NewTicker(changeInterval)
	defer ticker.Stop()
	for round := range rounds {
		<-ticker.C
		change := changes[random.IntN(len(changes))]
		if round == rounds-1 {
			change = changes[slices.IndexFunc(changes, func(c foreignChange) bool { return c.name == "all" })]
		}
		made = append(made, change.name)
		for _, command := range change.commands {
			_ = sw.Command(t.Context(), command[0], command[1:]...).Run() // fails if the previous change removed what it changes
		}
	}
	last := time.Now()
	for _, s := range series {
		s.awaitSent(t, last.Add(2*limit))
	}
	stop()
	drift := n.stores[0].Drift()
	t.Logf("changes %s: repaired %d missing, %d altered and %d foreign flows, groups and meters",
		strings.Join(made, ", "), drift.Missing, drift.Altered, drift.Foreign)
	for _, s := range series {
		sent, lost, longest, recovered := s.losses()
		after := max(recovered.Sub(last), 0)
		t.Logf("%s: %d of %d packets lost, for at most %v at a time, and until %v after the last change", s.name, lost, sent, longest, after)
		if after > limit {
			t.Errorf("%s: got packets again %v after the last change, want within %v", s.name, after, limit)
		}
		if lost == 0 {
			t.Errorf("%s: got no loss: no change had an effect", s.name)
		}
	}
	n.wantRepaired(t, want)
}

// wantRepaired checks that the first node's bridge has all that it had, and that nothing is refused.
func (n *repairedNodes) wantRepaired(t *testing.T, want string) {
	t.Helper()
	await.OK(t, await.SyncTime, func(ctx context.Context) error {
		got, err := contents(ctx, n.Nodes[0].Switch)
		if err == nil && got != want {
			err = fmt.Errorf("got\n%s\nwant\n%s", got, want)
		}
		return err
	})
	if err := n.stores[0].Healthy(); err != nil {
		t.Errorf("got error %v, want none", err)
	}
}

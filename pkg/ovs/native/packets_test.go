package native_test

import (
	"context"
	"encoding/hex"
	"sync"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// somePacket is an Ethernet frame of an unassigned type.
const somePacket = "ffffffffffff0a58000000018888" + "0001020304050607"

// controllerTable is the table whose flow sets a register and sends the packet with ToController.
const controllerTable = 5

func addControllerFlow(t *testing.T, n *native.Native) {
	t.Helper()
	tx := n.NewTransaction()
	tx.Add(&ovs.Flow{Table: controllerTable, Cookie: 9, Actions: []ovs.Action{goovs.Load("0xdeadbeef", "NXM_NX_REG5[]"), ovs.ToController()}})
	must(t, n.Run(t.Context(), tx))
}

func packetOut(t *testing.T, s *ovstest.Switch) {
	t.Helper()
	s.OFCtl(t, "packet-out", ovstest.Bridge, "in_port=LOCAL packet="+somePacket+" actions=resubmit(,5)")
}

// watchPackets runs WatchPackets until the test ends.
func watchPackets(t *testing.T, n *native.Native, handle func(ovs.PacketIn)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { n.WatchPackets(ctx, handle) })
	t.Cleanup(func() { cancel(); watching.Wait() })
}

// sendUntil sends packets until one arrives; packets are lost while WatchPackets connects.
func sendUntil(t *testing.T, s *ovstest.Switch, got <-chan ovs.PacketIn) ovs.PacketIn {
	t.Helper()
	deadline := time.After(patience)
	for {
		packetOut(t, s)
		select {
		case p := <-got:
			return p
		case <-time.After(100 * time.Millisecond):
		case <-deadline:
			t.Fatalf("got no packet in %v, want one", patience)
		}
	}
}

func TestNativeWatchesPackets(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	events := watch(t, n)
	got := make(chan ovs.PacketIn, 1000)
	watchPackets(t, n, func(p ovs.PacketIn) { got <- p })
	for range 2 {
		addControllerFlow(t, n)
		p := sendUntil(t, s, got)
		if p.Table != controllerTable || p.Cookie != 9 || p.Registers[5] != 0xdeadbeef || p.Registers[4] != 0 || hex.EncodeToString(p.Packet)[:len(somePacket)] != somePacket {
			t.Errorf("got %+v, want the sent packet of table 5 with cookie 9 and reg5=0xdeadbeef", p)
		}
		s.StopVSwitchd(t)
		s.StartVSwitchd(t)
		expect(t, events, "SwitchConnected after the restart", kind(native.SwitchConnected))
	}
}

// A handler that blocks does not delay changes of flows.
func TestNativeWatchPackets_blockedHandler(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	var first sync.Once
	watchPackets(t, n, func(ovs.PacketIn) {
		first.Do(func() { close(entered) })
		<-leave
	})
	defer close(leave)
	addControllerFlow(t, n)
	poll(t, "a packet arrived", func() bool {
		packetOut(t, s)
		select {
		case <-entered:
			return true
		default:
			return false
		}
	})
	packets := make([]ovs.Action, 30)
	for i := range packets {
		packets[i] = ovs.ToController()
	}
	for range 10 { // three times the length of the switch's queue
		tx := n.NewTransaction()
		tx.Add(&ovs.Flow{Table: controllerTable, Cookie: 9, Actions: packets})
		must(t, n.Run(t.Context(), tx))
		packetOut(t, s)
	}
}

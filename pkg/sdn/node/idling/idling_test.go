package idling

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// tableIdled is the table of packets to idled services; toNode, the bit of packets to addresses of the node in reg4.
const (
	tableIdled = 71
	toNode     = 1 << 18
)

// fixture runs a Holder with a fake switch, whose clock is that of the test.
type fixture struct {
	*testing.T
	*Holder
	bridge *ovs.Fake

	frontends map[string]pipeline.Frontend // by key

	mu      sync.Mutex
	events  []string
	awaited error         // result of AwaitDatapath
	awaits  []time.Time   // its calls
	blocked chan struct{} // AwaitDatapath returns when it is closed; nil: at once
}

// bridge is the fake switch with the result of AwaitDatapath.
type bridge struct {
	*ovs.Fake
	f *fixture
}

func (b bridge) AwaitDatapath(context.Context) error {
	b.f.mu.Lock()
	b.f.awaits = append(b.f.awaits, time.Now())
	blocked := b.f.blocked
	b.f.mu.Unlock()
	if blocked != nil {
		<-blocked
	}
	b.f.mu.Lock()
	defer b.f.mu.Unlock()
	return b.f.awaited
}

func (f *fixture) EventService(namespace, name string, uid types.UID, reason, _ string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, fmt.Sprintf("%s/%s %s %s", namespace, name, uid, reason))
}

// inBubble runs a test of a Holder with a fake clock.
func inBubble(t *testing.T, test func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{T: t, bridge: ovs.NewFake("br0"), frontends: map[string]pipeline.Frontend{}}
		if err := f.bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
			t.Fatal(err)
		}
		f.Holder = New(Options{Bridge: bridge{f.bridge, f}, Events: f, MTU: 1450})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { f.Holder.Run(ctx) })
		defer func() { cancel(); running.Wait() }()
		synctest.Wait()
		test(f)
	})
}

func newService(namespace, name string) (key string, svc *endpoints.Service) {
	return namespace + "/" + name, endpoints.NewService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "uid"}})
}

// idle idles a service with a cluster IP of its own, which it retains.
func (f *fixture) idle(namespace, name string) (key string) {
	key = namespace + "/" + name
	to, ok := f.frontends[key]
	if !ok {
		n := len(f.frontends)
		to = pipeline.Frontend{Kind: pipeline.ClusterIP, Addr: netip.AddrFrom4([4]byte{172, 30, 0, byte(n)}), Port: 53}
	}
	f.hold(namespace, name, to)
	return key
}

// hold idles a service with frontends of UDP, to the first of which packets are sent.
func (f *fixture) hold(namespace, name string, frontends ...pipeline.Frontend) {
	key, svc := newService(namespace, name)
	for i := range frontends {
		frontends[i].Protocol, frontends[i].Idled = goovs.ProtocolUDPv4, true
	}
	f.frontends[key] = frontends[0]
	f.Hold(key, svc, frontends)
}

// send sends a packet of a client to a service through the switch, to the agent.
func (f *fixture) send(key, client string, change func(*ovs.PacketIn)) {
	f.Helper()
	addr := netip.MustParseAddr(client)
	p := ovs.PacketIn{Table: tableIdled, InPort: portOf(addr), Packet: frame(addr, f.address(key), 0)}
	if change != nil {
		change(&p)
	}
	if f.bridge.SendPacket(p) != 1 {
		f.Fatal("the Holder does not watch packets")
	}
	synctest.Wait()
}

// portOf returns the port of a pod.
func portOf(client netip.Addr) int { return int(client.As4()[3]) + 1000 }

// address returns the destination of packets to a service.
func (f *fixture) address(key string) netip.AddrPort {
	to := f.frontends[key]
	if to.Kind == pipeline.NodePort {
		to.Addr = netip.MustParseAddr("192.0.2.1")
	}
	return netip.AddrPortFrom(to.Addr, to.Port)
}

// frame returns a UDP packet of a client with a number of tags.
func frame(client netip.Addr, to netip.AddrPort, tags int) []byte {
	b := make([]byte, 12, 60)
	for range tags {
		b = binary.BigEndian.AppendUint32(b, typeVLAN<<16|5)
	}
	b = append(binary.BigEndian.AppendUint16(b, typeIPv4), 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0)
	b = append(b, client.AsSlice()...)
	b = append(append(b, to.Addr().AsSlice()...), 0x10, 0)
	return append(binary.BigEndian.AppendUint16(b, to.Port()), 0, 8, 0, 0)
}

func (f *fixture) want(step string, want Statistics) {
	f.Helper()
	synctest.Wait()
	if got := f.Statistics(); got != want {
		f.Errorf("%s: got %+v, want %+v", step, got, want)
	}
	if got := len(f.bridge.Injections()); got != int(want.Sent) { //nolint:gosec // small
		f.Errorf("%s: got %d injected packets, want %d", step, got, want.Sent)
	}
}

func (f *fixture) wantEvents(step string, want ...string) {
	f.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.events, want) {
		f.Errorf("%s: got Events %q, want %q", step, f.events, want)
	}
	f.events = nil
}

// The first packet of a client to each service is held and sent once, through the port of its entry; other services do not matter.
func TestHolder_sendsFirstPacket(t *testing.T) {
	inBubble(t, func(f *fixture) {
		key, other := f.idle("ns", "svc"), f.idle("ns", "other")
		f.send(key, "10.128.0.5", nil)
		f.send(key, "10.128.0.5", func(p *ovs.PacketIn) { p.InPort = 9 }) // repeated
		f.send(other, "10.128.0.5", nil)
		f.send(other, "10.128.0.6", nil)
		f.want("held", Statistics{Held: 3})
		f.Release(key, true)
		f.want("released", Statistics{Held: 2, Sent: 1})
		client := netip.MustParseAddr("10.128.0.5")
		if got := f.bridge.Injections()[0]; got.InPort != portOf(client) || !slices.Equal(got.Packet, frame(client, f.address(key), 0)) {
			t.Errorf("got %+v, want the first packet by its port", got)
		}
		f.send(key, "10.128.0.7", nil) // by a megaflow from before
		f.want("late", Statistics{Held: 2, Sent: 2})
		time.Sleep(afterRelease) //nolint:forbidigo // of the bubble
		synctest.Wait()
		f.send(key, "10.128.0.7", nil)
		f.want("after the release", Statistics{Held: 2, Sent: 2, Dropped: 1})
	})
}

// A service that is idled again holds packets again.
func TestHolder_idledAgain(t *testing.T) {
	inBubble(t, func(f *fixture) {
		key := f.idle("ns", "svc")
		f.Release(key, true)
		f.idle("ns", "svc")
		time.Sleep(afterRelease) //nolint:forbidigo // of the bubble
		f.send(key, "10.128.0.5", nil)
		f.want("held again", Statistics{Held: 1})
		f.Release(key, true)
		f.want("sent", Statistics{Sent: 1})
	})
}

func TestHolder_drops(t *testing.T) {
	inBubble(t, func(f *fixture) {
		key := f.idle("ns", "svc")
		f.send(key, "10.128.0.5", nil)
		time.Sleep(holdTime - time.Second) //nolint:forbidigo // of the bubble
		f.send(key, "10.128.0.6", nil)
		f.want("before the end", Statistics{Held: 2})
		time.Sleep(time.Second) //nolint:forbidigo // of the bubble
		f.want("expired", Statistics{Held: 1, Expired: 1})
		f.Release(key, false)
		f.want("not idled", Statistics{Expired: 1, Dropped: 1})
		f.send(key, "10.128.0.6", nil)
		f.want("unknown service", Statistics{Expired: 1, Dropped: 2})
		f.idle("ns", "svc")
		for _, change := range []func(*ovs.PacketIn){
			func(p *ovs.PacketIn) { p.Packet = append(p.Packet, make([]byte, 1450)...) },
			func(p *ovs.PacketIn) { p.Packet = p.Packet[:20] },
			func(p *ovs.PacketIn) { p.InPort = 0 },
			func(p *ovs.PacketIn) { p.Packet[14+9] = 1 },     // ICMP
			func(p *ovs.PacketIn) { p.Packet[14+7] = 1 },     // a later fragment
			func(p *ovs.PacketIn) { p.Packet[14] = 0x4f },    // options beyond its end
			func(p *ovs.PacketIn) { p.Packet[14+23] = 0x36 }, // another port
		} {
			f.send(key, "10.128.0.7", change)
		}
		f.want("invalid", Statistics{Expired: 1, Dropped: 9})
		f.send(key, "10.128.0.7", func(p *ovs.PacketIn) { p.Table = 29 })
		f.want("of another feature", Statistics{Expired: 1, Dropped: 9})
		f.send(key, "10.128.0.7", func(p *ovs.PacketIn) { p.Packet = frame(netip.MustParseAddr("10.128.0.7"), f.address(key), 2) })
		f.want("tagged", Statistics{Held: 1, Expired: 1, Dropped: 9})
	})
}

func TestHolder_switchFails(t *testing.T) {
	inBubble(t, func(f *fixture) {
		key := f.idle("ns", "svc")
		f.send(key, "10.128.0.5", nil)
		f.mu.Lock()
		f.awaited = errors.New("no answer")
		f.mu.Unlock()
		f.Release(key, true)
		f.want("no revalidation", Statistics{Dropped: 1})
	})
}

// The destination identifies the service of a packet, and its flow's cookie, a hash of names that tenants choose, does not.
func TestHolder_identifiesServiceByDestination(t *testing.T) {
	inBubble(t, func(f *fixture) {
		node := pipeline.Frontend{Kind: pipeline.NodePort, Port: 30053}
		external := pipeline.Frontend{Kind: pipeline.ExternalIP, Addr: netip.MustParseAddr("192.0.2.1"), Port: 30053}
		f.hold("ns", "victim", node)
		victim, hostile := "ns/victim", f.idle("hostile", "svc")
		ofVictim := func(p *ovs.PacketIn) {
			p.Cookie, p.Registers[4] = pipeline.Owner{Kind: pipeline.KindService, Key: victim}.Cookie(), toNode
		}
		f.send(hostile, "10.128.0.5", ofVictim)
		f.wantEvents("with the cookie of another service", "hostile/svc uid "+eventreason.NeedPods)
		f.Release(hostile, true)
		f.want("hostile", Statistics{Sent: 1})
		f.send(victim, "10.128.0.6", ofVictim)
		f.want("to a node port", Statistics{Held: 1, Sent: 1})
		f.wantEvents("to a node port", "ns/victim uid "+eventreason.NeedPods)
		f.send(victim, "10.128.0.7", nil)
		f.want("the port at another host", Statistics{Held: 1, Sent: 1, Dropped: 1})

		f.hold("hostile", "other", external)
		time.Sleep(reportInterval) //nolint:forbidigo // of the bubble
		f.send(victim, "10.128.0.8", ofVictim)
		f.want("of two services", Statistics{Held: 1, Sent: 1, Dropped: 2})
		f.wantEvents("of two services")
		f.hold("hostile", "other", pipeline.Frontend{Addr: netip.MustParseAddr("172.30.0.200"), Port: 53}) // no longer the address
		f.send(victim, "10.128.0.8", ofVictim)
		f.want("of one again", Statistics{Held: 2, Sent: 1, Dropped: 2})
	})
}

// An Event is written at once, and again only after a while.
func TestHolder_events(t *testing.T) {
	inBubble(t, func(f *fixture) {
		const event = "ns/svc uid " + eventreason.NeedPods
		key := f.idle("ns", "svc")
		f.send(key, "10.128.0.5", nil)
		f.wantEvents("first", event)
		time.Sleep(reportInterval - time.Second) //nolint:forbidigo // of the bubble
		f.send(key, "10.128.0.5", nil)
		f.wantEvents("repeated")
		time.Sleep(time.Second) //nolint:forbidigo // of the bubble
		f.send(key, "10.128.0.5", nil)
		f.wantEvents("after the interval", event)
	})
}

// A namespace with many idled services does not delay the Event of another, and all get theirs at the rate of the node.
func TestHolder_eventBudget(t *testing.T) {
	inBubble(t, func(f *fixture) {
		const hostile = 50
		for i := range hostile {
			f.send(f.idle("hostile", fmt.Sprint(i)), "10.128.0.5", nil)
		}
		f.send(f.idle("ns", "svc"), "10.128.0.6", nil)
		f.mu.Lock()
		if len(f.events) != reportRate {
			t.Errorf("got %d Events at once, want %d", len(f.events), reportRate)
		}
		f.mu.Unlock()
		time.Sleep(2 * time.Second / reportRate) //nolint:forbidigo // of the bubble
		synctest.Wait()
		f.mu.Lock()
		if !slices.ContainsFunc(f.events, func(e string) bool { return strings.HasPrefix(e, "ns/svc ") }) {
			t.Errorf("got Events %q, want one of ns/svc", f.events)
		}
		f.mu.Unlock()
		f.Release("hostile/49", false)                 // has an Event to come
		time.Sleep(hostile * time.Second / reportRate) //nolint:forbidigo // of the bubble
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		slices.Sort(f.events)
		if got := len(slices.Compact(f.events)); got != hostile {
			t.Errorf("got Events about %d services, want %d", got, hostile)
		}
	})
}

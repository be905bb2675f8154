package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// Every packet of these tests carries the marker and a name of its own, by which captures know it again. Marker and name are text, so
// that they show in whatever the packet gets wrapped in.
const marker = "ovsdn-e2e-spoof:"

func token(name string) []byte { return []byte(marker + name + ";") }

// Flows that count what pods must not send.
const (
	spoofDrop = "priority=0 actions=drop"
	vxlanDrop = "priority=200,udp,tp_dst=4789 actions=drop"
)

// watch is a capture and where it is.
type watch struct {
	place   string
	capture *wire.Capture
}

// watchers record on pods' interfaces and on the machines' interfaces to the underlay.
func watchers(t *testing.T, pods []pod, machines []machine) (all []watch) {
	t.Helper()
	add := func(place string, n wire.NetNS) {
		capture, err := n.Capture("eth0", []byte(marker))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, watch{place, capture})
	}
	for _, p := range pods {
		add("pod "+p.Name, p.NetNS)
	}
	for _, m := range machines {
		add(m.Name, m.NetNS)
	}
	return all
}

// noneSaw fails for each of the names that any capture has. All captures end.
func noneSaw(t *testing.T, all []watch, names []string) {
	t.Helper()
	for _, w := range all {
		if err := w.capture.Close(); err != nil {
			t.Errorf("capture at %s: %v", w.place, err)
		}
		for _, name := range names {
			if frames := w.capture.Frames(token(name)); len(frames) > 0 {
				fixture.Arrived(t, "%q got to %s, for example as %x", name, w.place, frames[0])
			}
		}
	}
}

// saw waits for a packet at a place.
func saw(t *testing.T, all []watch, place, name string, again func() error) {
	t.Helper()
	fixture.Eventually(t, fixture.PacketTime, fmt.Sprintf("%q gets to %s", name, place), func(context.Context) error {
		if err := again(); err != nil {
			t.Fatal(err)
		}
		for _, w := range all {
			if w.place == place && len(w.capture.Frames(token(name))) > 0 {
				return nil
			}
		}
		return errors.New("it has not")
	})
}

// attack is a frame that a pod sends and must not get through.
type attack struct {
	name  string
	frame []byte
}

// roundTime is how long a round of forged frames may take to be counted before they are sent again.
const roundTime = 5 * time.Second

// attack sends frames out of pod a and proves, by packets that are allowed and come after, that the path was open.
func (x *trio) attack(t *testing.T, drop string, attacks []attack) {
	t.Helper()
	all := watchers(t, []pod{x.b, x.c}, []machine{x.node1, x.node2, x.outside})
	inject, err := x.a.NetNS.Inject("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer inject.Close()
	var names []string
	for _, a := range attacks {
		names = append(names, a.name)
	}
	// The machine may lose a lone frame: there is another round then, of which all must be counted.
	fixture.Eventually(t, 3*fixture.SyncTime, "the drops are counted", func(ctx context.Context) error {
		before := fixture.Packets(t, x.Flows(t, fixture.Node1), "20", drop)
		for _, a := range attacks {
			if err := inject.Resend(a.frame); err != nil {
				t.Fatalf("%s: %v", a.name, err)
			}
		}
		var missing error
		for deadline := time.Now().Add(roundTime); time.Now().Before(deadline); pause(t, fixture.PollInterval) {
			got := fixture.Packets(t, x.Flows(t, fixture.Node1), "20", drop) - before
			if got >= uint64(len(attacks)) {
				return nil
			}
			missing = fmt.Errorf("%q in table 20 counted %d of %d", drop, got, len(attacks))
		}
		return missing
	})
	for _, to := range []pod{x.b, x.c} {
		legitimate := wire.Ethernet(to.MAC, x.a.MAC, wire.TypeIPv4,
			wire.UDPPacket(netip.AddrPortFrom(x.a.Addr, 7), netip.AddrPortFrom(to.Addr, 7), token("legitimate")))
		saw(t, all, "pod "+to.Name, "legitimate", func() error { return inject.Resend(legitimate) })
	}
	noneSaw(t, all, names)
}

// Packets of a pod with forged addresses do not arrive.
func TestSpoofedSource(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities sends forged sources")
	}
	testSpoofedSource(t, newTrio(t))
}

func testSpoofedSource(t *testing.T, x *trio) {
	stranger := net.HardwareAddr{0x0a, 0x58, 10, 99, 99, 99}
	var attacks []attack
	for _, to := range []pod{x.b, x.c} {
		udp := func(source netip.Addr, name string) []byte {
			return wire.UDPPacket(netip.AddrPortFrom(source, 7), netip.AddrPortFrom(to.Addr, 7), token(name))
		}
		for _, s := range []struct {
			what string
			mac  net.HardwareAddr
			ip   netip.Addr
		}{
			{"the IP of the pod beside it", x.a.MAC, x.b.Addr},
			{"the IP of a pod on another node", x.a.MAC, x.c.Addr},
			{"an unused IP", x.a.MAC, lastOf(x.a.Addr)},
			{"the gateway's IP", x.a.MAC, x.a.Gateway()},
			{"its node's IP", x.a.MAC, x.Addr(t, fixture.Node1)},
			{"an IP of the world", x.a.MAC, netip.MustParseAddr("192.0.2.99")},
			{"an unused MAC", stranger, x.a.Addr},
			{"the MAC of the pod beside it", x.b.MAC, x.a.Addr},
			{"the gateway's MAC", fixture.MACOf(x.a.Gateway()), x.a.Addr},
			{"MAC and IP of the pod beside it", x.b.MAC, x.b.Addr},
			{"MAC and IP of the gateway", fixture.MACOf(x.a.Gateway()), x.a.Gateway()},
		} {
			name := s.what + " to " + to.Name
			attacks = append(attacks,
				attack{name, wire.Ethernet(to.MAC, s.mac, wire.TypeIPv4, udp(s.ip, name))},
				attack{name + ", tagged", wire.Ethernet(to.MAC, s.mac, wire.TypeVLAN, wire.VLAN(7, wire.TypeIPv4, udp(s.ip, name+", tagged")))})
		}
	}
	toWorld := "the IP of the pod beside it to the world"
	attacks = append(attacks, attack{toWorld, wire.Ethernet(fixture.MACOf(x.a.Gateway()), x.a.MAC, wire.TypeIPv4,
		wire.UDPPacket(netip.AddrPortFrom(x.b.Addr, 7), netip.MustParseAddrPort("192.0.2.1:7"), token(toWorld)))})
	x.attack(t, spoofDrop, attacks)
}

// lastOf is the last address of a pod's subnet, which is allocated last.
func lastOf(pod netip.Addr) netip.Addr {
	bytes := netip.PrefixFrom(pod, 23).Masked().Addr().As4()
	return netip.AddrFrom4([4]byte{bytes[0], bytes[1], bytes[2] + 1, 254})
}

// Forged ARP of a pod does not redirect other pods' packets.
func TestSpoofedARP(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities sends forged ARP")
	}
	testSpoofedARP(t, newTrio(t))
}

func testSpoofedARP(t *testing.T, x *trio) {
	gateway := x.a.Gateway()
	var attacks []attack
	add := func(name string, dst, src net.HardwareAddr, p wire.ARP) {
		attacks = append(attacks, attack{name, wire.Ethernet(dst, src, wire.TypeARP, p.Packet(token(name)))})
	}
	for _, to := range []pod{x.b, x.c} {
		for _, claim := range []struct {
			name string
			ip   netip.Addr
		}{{"the gateway", gateway}, {"the pod beside it", x.b.Addr}, {"a pod on another node", x.c.Addr}, {"its node", x.Addr(t, fixture.Node1)}} {
			add(fmt.Sprintf("answers %s for %s", to.Name, claim.name), to.MAC, x.a.MAC, wire.ARP{
				Operation: wire.ARPReply, SenderMAC: x.a.MAC, SenderIP: claim.ip, TargetMAC: to.MAC, TargetIP: to.Addr,
			})
			add(fmt.Sprintf("asks %s as %s", to.Name, claim.name), wire.Broadcast(), x.a.MAC, wire.ARP{
				Operation: wire.ARPRequest, SenderMAC: x.a.MAC, SenderIP: claim.ip, TargetIP: to.Addr,
			})
		}
		add("asks "+to.Name+" with another's MAC inside", wire.Broadcast(), x.a.MAC, wire.ARP{
			Operation: wire.ARPRequest, SenderMAC: x.b.MAC, SenderIP: x.a.Addr, TargetIP: to.Addr,
		})
		add("asks "+to.Name+" with another's MAC outside", wire.Broadcast(), x.b.MAC, wire.ARP{
			Operation: wire.ARPRequest, SenderMAC: x.a.MAC, SenderIP: x.a.Addr, TargetIP: to.Addr,
		})
	}
	for _, operation := range []uint16{wire.ARPRequest, wire.ARPReply} {
		add(fmt.Sprintf("announces itself as the gateway, operation %d", operation), wire.Broadcast(), x.a.MAC, wire.ARP{
			Operation: operation, SenderMAC: x.a.MAC, SenderIP: gateway, TargetMAC: wire.Broadcast(), TargetIP: gateway,
		})
		add(fmt.Sprintf("announces itself as a pod on another node, operation %d", operation), wire.Broadcast(), x.a.MAC, wire.ARP{
			Operation: operation, SenderMAC: x.a.MAC, SenderIP: x.c.Addr, TargetMAC: wire.Broadcast(), TargetIP: x.c.Addr,
		})
	}
	x.attack(t, spoofDrop, attacks)
}

// VXLAN packets that a pod creates do not count as its node's, whose address they get by masquerading.
func TestVXLANFromPod(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities sends VXLAN from a pod")
	}
	testVXLANFromPod(t, newTrio(t))
}

func testVXLANFromPod(t *testing.T, x *trio) {
	t.Run("to nodes", func(t *testing.T) {
		var attacks []attack
		for _, vtep := range []netip.Addr{x.Addr(t, fixture.Node2), x.Addr(t, fixture.Node1), x.c.Gateway(), x.a.Gateway()} {
			name := "VXLAN to " + vtep.String()
			attacks = append(attacks, attack{name, x.toGateway(wire.UDPPacket(x.vxlanPorts(vtep, 4789, name)))})
		}
		x.attack(t, vxlanDrop, attacks)
	})
	t.Run("in fragments", func(t *testing.T) { testVXLANInFragments(t, x) })
	t.Run("through a service", func(t *testing.T) { testVXLANThroughService(t, x) })
}

// vxlanPorts is a datagram with an inner frame from a pod of another namespace to pod c.
func (x *trio) vxlanPorts(vtep netip.Addr, port uint16, name string) (src, dst netip.AddrPort, payload []byte) {
	inner := wire.Ethernet(x.c.MAC, x.b.MAC, wire.TypeIPv4,
		wire.UDPPacket(netip.AddrPortFrom(x.b.Addr, 7), netip.AddrPortFrom(x.c.Addr, 7), token(name)))
	return netip.AddrPortFrom(x.a.Addr, 50000), netip.AddrPortFrom(vtep, port), wire.VXLAN(0, inner)
}

// toGateway is a frame from pod a to where its default route leads.
func (x *trio) toGateway(packet []byte) []byte {
	return wire.Ethernet(fixture.MACOf(x.a.Gateway()), x.a.MAC, wire.TypeIPv4, packet)
}

// testVXLANInFragments sends fragmented datagrams to a node's VXLAN port, and to another port, where they must arrive.
func testVXLANInFragments(t *testing.T, x *trio) {
	listener, err := x.node2.NetNS.ListenPacket("udp4", netip.AddrPortFrom(x.Addr(t, fixture.Node2), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	allowed := uint16(listener.LocalAddr().(*net.UDPAddr).Port)
	all := watchers(t, []pod{x.b, x.c}, []machine{x.node2})
	inject, err := x.a.NetNS.Inject("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer inject.Close()
	id := uint16(0)
	send := func(port uint16, size int, reverse bool, name string) []byte {
		id++
		src, dst, payload := x.vxlanPorts(x.Addr(t, fixture.Node2), port, name)
		header := wire.IPv4{Src: src.Addr(), Dst: dst.Addr(), Protocol: wire.ProtocolUDP, ID: id}
		fragments := header.Fragments(wire.UDP(src, dst, payload), size)
		if reverse {
			slices.Reverse(fragments)
		}
		for _, f := range fragments {
			if err := inject.Send(x.toGateway(f)); err != nil {
				t.Fatal(err)
			}
		}
		return payload
	}
	var names []string
	for _, size := range []int{8, 16, 48, 104} {
		for _, reverse := range []bool{false, true} {
			name := fmt.Sprintf("VXLAN in fragments of %d, from the end: %v", size, reverse)
			names = append(names, name)
			send(4789, size, reverse, name)
			var want []byte
			fixture.Within(t, fixture.PacketTime, fmt.Sprintf("an allowed datagram in fragments of %d, from the end: %v", size, reverse), func(ctx context.Context) error {
				return fixture.Resending(ctx, listener, func() error {
					want = send(allowed, size, reverse, "allowed")
					return nil
				}, func() error {
					got := make([]byte, 1<<10)
					length, _, err := listener.ReadFrom(got)
					if err == nil && !bytes.Equal(got[:length], want) {
						return fmt.Errorf("it arrives as %x, want %x", got[:length], want)
					}
					return err
				})
			})
		}
	}
	noneSaw(t, all, names)
}

// testVXLANThroughService sends to services whose endpoints are nodes' VXLAN ports: the host's proxy would translate them to the node's
// own VXLAN. A service with an endpoint on another port of the same node shows that other packets pass.
func testVXLANThroughService(t *testing.T, x *trio) {
	const port = 5000
	listener, err := x.node2.NetNS.ListenPacket("udp4", netip.AddrPortFrom(x.Addr(t, fixture.Node2), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	allowed := int32(listener.LocalAddr().(*net.UDPAddr).Port)
	services := map[string]netip.Addr{}
	for _, node := range []string{fixture.Node1, fixture.Node2} {
		services[node] = x.ExposeAddr(t, x.namespace, "vtep-of-"+node, servicePort{Protocol: "UDP", Port: port, Target: 4789}, x.Addr(t, node))
	}
	// The last, so that kube-proxy has the others when it has this.
	open := x.ExposeAddr(t, x.namespace, "open", servicePort{Protocol: "UDP", Port: port, Target: allowed}, x.Addr(t, fixture.Node2))

	all := watchers(t, []pod{x.b, x.c}, []machine{x.node2})
	inject, err := x.a.NetNS.Inject("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer inject.Close()
	send := func(service netip.Addr, id uint16, name string) (err error) {
		src, dst, payload := x.vxlanPorts(service, port, name)
		header := wire.IPv4{Src: src.Addr(), Dst: dst.Addr(), Protocol: wire.ProtocolUDP, ID: id}
		for _, p := range append(header.Fragments(wire.UDP(src, dst, payload), 48), wire.UDPPacket(src, dst, payload)) {
			err = errors.Join(err, inject.Send(x.toGateway(p)))
		}
		return err
	}
	saw(t, all, fixture.Node2, "open", func() error { return send(open, 1, "open") })
	var names []string
	for node, service := range services {
		for round := range 10 {
			name := fmt.Sprintf("VXLAN through a service to %s, %d", node, round)
			names = append(names, name)
			if err := send(service, uint16(10+round), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	saw(t, all, fixture.Node2, "afterwards", func() error { return send(open, 2, "afterwards") })
	noneSaw(t, all, names)
}

package attacks

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// natZone returns the zone of a pod's translations as a client of services.
func natZone(p fixture.Pod) int {
	b := p.Addr.As4()
	return 0x4000 | (int(b[2])<<8|int(b[3]))&0x1fff
}

// testNATZone has a pod open connections to a service without end. They fill its own zone of translations, whose further packets are dropped, and not that of another
// pod of the node.
func testNATZone(t *testing.T, w *world) {
	const tracker, share, port = 20000, 16, 20000 // docs/decisions/0001-conntrack.md; the port of spray
	udp := fixture.ServicePort{Protocol: corev1.ProtocolUDP, Port: port, Target: controlPort}
	service := w.external(t, w.attackers, "flooded", udp, w.a2.Addr)
	w.reaches(t, w.a2, "by "+service.String(), sendsUDP(w.a1.NetNS, netip.AddrPortFrom(service, port)))
	others, _ := w.victimService(t, "beside-the-flood")
	w.shrinkTracker(t, fixture.Node1, tracker)
	beyond := []counter{w.drops(fixture.Node1, "68", "reg4=0x100000/0x100000")}
	before := w.read(t, beyond)
	var zones map[int]zone
	var moved []string
	fixture.Eventually(t, fixture.SyncTime, "the zone of the pod is full, and further packets are dropped", func(ctx context.Context) (err error) {
		if err := w.spray(ctx, fixture.Node1, w.a1, service, tracker/2); err != nil {
			return err
		}
		if zones, err = w.zones(ctx, fixture.Node1); err != nil {
			return err
		}
		if moved, _ = difference(before, w.read(t, beyond)); len(moved) == 0 {
			return fmt.Errorf("nothing is dropped; the zone has %v", zones[natZone(w.a1)])
		}
		return nil
	})
	const most = tracker / share
	full, other := zones[natZone(w.a1)], zones[natZone(w.v1)]
	report(t, attack{position: aPod, sent: fmt.Sprintf("UDP of %d connections to a service", tracker/2)}, max(full.connections-most, 0), moved)
	if full.connections == 0 || full.connections > most {
		t.Errorf("the pod's zone of translations has %v, want 1 to %d connections", full, most)
	}
	if other.connections*2 > most {
		t.Errorf("the zone of another pod has %v, want a few connections", other)
	}
	w.reaches(t, w.v2, "by a service, beside the flood", sendsUDP(w.v1.NetNS, others))
}

// learnedLimit is how many clients with session affinity a node learns for an endpoint.
const learnedLimit = 1024

// testForgedAffinity has a host outside send to a node port with session affinity from many forged addresses. The switch learns as many as it may; other clients
// reach the service.
func testForgedAffinity(t *testing.T, w *world) {
	udp := fixture.ServicePort{Protocol: corev1.ProtocolUDP, Port: controlPort, Target: controlPort}
	addr, port := w.nodePort(t, w.victims, "affinity", udp, w.v2.Addr)
	patch := []byte(`{"spec":{"sessionAffinity":"ClientIP"}}`)
	if _, err := w.Kube.CoreV1().Services(w.victims).Patch(t.Context(), "affinity", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	node1, clients := w.Addr(t, fixture.Node1), sized(1500, 20000)
	dst := netip.AddrPortFrom(node1, port)
	w.reaches(t, w.v2, "by "+dst.String(), sendsUDP(w.outside.NetNS, dst))
	forged := netip.MustParsePrefix("198.18.0.0/15")
	learned := w.flows(fixture.Node1, "64", "nw_src=198.1", "nw_dst="+addr.String())
	var count int
	fixture.Eventually(t, fixture.SyncTime, fmt.Sprintf("node1 has learned %d forged clients", learnedLimit), func(ctx context.Context) error {
		if err := w.forgeClients(ctx, dst, forged, clients); err != nil {
			return err
		}
		all, err := learned(ctx)
		if err != nil {
			return err
		}
		if count = len(all); count < learnedLimit/2 {
			return fmt.Errorf("it has learned %d", count)
		}
		return nil
	})
	report(t, attack{position: underlay, sent: fmt.Sprintf("UDP from %d forged addresses to a node port with session affinity", clients)}, max(count-learnedLimit, 0),
		[]string{fmt.Sprintf("%d flows of table 64", count)})
	if count > learnedLimit {
		t.Errorf("node1 has learned %d forged clients, want at most %d", count, learnedLimit)
	}
	w.reaches(t, w.v2, "by a service with many clients", sendsUDP(w.v1.NetNS, to(addr)))
	w.reaches(t, w.v2, "by a node port with many clients", sendsUDP(w.outside.NetNS, dst))
}

// forgeClients sends a datagram from each of so many addresses. After some it waits for a command on the node, as spray.
func (w *world) forgeClients(ctx context.Context, dst netip.AddrPort, sources netip.Prefix, count int) error {
	i, err := w.outside.NetNS.Inject("eth0")
	if err != nil {
		return err
	}
	defer i.Close()
	const atOnce = 256
	for n := range count {
		if n%atOnce == 0 {
			if _, err := w.number(ctx, fixture.Node1, "conntrack -C"); err != nil {
				return err
			}
		}
		packet := wire.UDPPacket(to(nth(sources, n+1)), dst, []byte("forged"))
		if err := i.Resend(wire.Ethernet(nodeMAC(dst.Addr()), nodeMAC(outsideAddr()), wire.TypeIPv4, packet)); err != nil {
			return err
		}
	}
	return nil
}

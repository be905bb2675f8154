package attacks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// serviceName returns the name of the i-th service of an attack.
func serviceName(of string, i int) string { return fmt.Sprintf("%s-%d", of, i) }

// external makes a service with external IPs, whose endpoint is any address, until the test ends.
func (w *world) external(t *testing.T, namespace, name string, p fixture.ServicePort, endpoint netip.Addr, ips ...netip.Addr) netip.Addr {
	t.Helper()
	addr := w.ExposeAddr(t, namespace, name, p, endpoint)
	services := w.Kube.CoreV1().Services(namespace)
	t.Cleanup(func() {
		if err := services.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"externalIPs": ips}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := services.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	return addr
}

// usualIP and sharedIP are external IPs that no host has.
func usualIP() netip.Addr  { return netip.MustParseAddr("198.51.100.20") }
func sharedIP() netip.Addr { return netip.MustParseAddr("198.51.100.21") }

// admittedOf counts the packets of a pod that the switch admits: an attack is sent, though no flow drops it.
func (w *world) admittedOf(p fixture.Pod) counter {
	return w.flows(p.Node, "20", "dl_src="+p.MAC.String(), "nw_src=")
}

// testExternalIPs has a tenant take packets of others by external IPs: addresses of a pod, of a service, of a node, and another tenant's external IP. The service
// has an address of its own, too, by which the attackers' pod reaches its endpoint: so it is active.
func testExternalIPs(t *testing.T, w *world) {
	udp := fixture.ServicePort{Protocol: corev1.ProtocolUDP, Port: controlPort, Target: controlPort}
	ofVictims := w.external(t, w.victims, "first", udp, w.v2.Addr, sharedIP())
	w.waitOlder(t, w.victims, "first")
	node2 := w.Addr(t, fixture.Node2)
	w.external(t, w.attackers, "second", udp, w.a2.Addr, w.v2.Addr, ofVictims, node2, sharedIP(), usualIP())
	w.reaches(t, w.a2, "by its external IP", sendsUDP(w.a1.NetNS, to(usualIP())))
	w.reaches(t, w.a2, "by its external IP from outside", w.outsideUDP(t, to(usualIP())))
	w.reaches(t, w.v2, "by its external IP", sendsUDP(w.v1.NetNS, to(sharedIP())))
	for _, a := range []struct {
		name string
		dst  netip.Addr
	}{
		{"a pod's address", w.v2.Addr},
		{"a service's address", ofVictims},
		{"a node's address", node2},
		{"another's external IP", sharedIP()},
	} {
		t.Run(a.name, func(t *testing.T) {
			w.try(t, attack{
				position: aTenant, sent: "UDP of another tenant to its destination, which is an external IP of the attackers' service",
				send: fromPod(w.v1, func(token []byte) [][]byte { return [][]byte{datagram(w.v1, to(a.dst), token)} }),
				at:   []receiver{podFrom(w.a2, w.a1)}, counters: []counter{w.admittedOf(w.v1)},
			})
		})
	}
	t.Run("to a pod's address", func(t *testing.T) {
		w.try(t, attack{
			position: aTenant, sent: "UDP to another tenant's pod, whose address is an external IP of an own service",
			send: fromPod(w.a1, func(token []byte) [][]byte { return [][]byte{datagram(w.a1, to(w.v2.Addr), token)} }),
			at:   []receiver{podFrom(w.v2, w.v1), podFrom(w.a2, w.a1)}, counters: []counter{w.drops(fixture.Node2, "80")},
		})
	})
	t.Run("of a node's program", func(t *testing.T) {
		w.try(t, attack{
			position: aTenant, sent: "UDP of node1 to node2, whose address is an external IP of the attackers' service",
			send: sendsUDP(w.node1.NetNS, to(node2)), at: []receiver{podFrom(w.a2, w.a1)},
		})
	})
	t.Run("of a host outside", func(t *testing.T) {
		w.try(t, attack{
			position: aTenant, sent: "UDP of a host outside to node2, whose address is an external IP of the attackers' service",
			send: w.outsideUDP(t, to(node2)), at: []receiver{podFrom(w.a2, w.a1)},
		})
	})
}

// viaNode2 returns a function that sends packets from the host outside, with node2 as its router.
func (w *world) viaNode2(t *testing.T, packet func(token []byte) []byte) func([]byte) error {
	t.Helper()
	node2 := w.Addr(t, fixture.Node2)
	return inject(w.outside.NetNS, "eth0", func(token []byte) [][]byte {
		return [][]byte{wire.Ethernet(nodeMAC(node2), nodeMAC(outsideAddr()), wire.TypeIPv4, packet(token))}
	})
}

// outsideUDP returns a function that sends a datagram from the host outside, with node2 as its router.
func (w *world) outsideUDP(t *testing.T, dst netip.AddrPort) func([]byte) error {
	t.Helper()
	return w.viaNode2(t, func(token []byte) []byte { return wire.UDPPacket(to(outsideAddr()), dst, token) })
}

// outsideSYN returns a function that sends a SYN with data from the host outside, with node2 as its router.
func (w *world) outsideSYN(t *testing.T, dst netip.AddrPort) func([]byte) error {
	t.Helper()
	return w.viaNode2(t, func(token []byte) []byte {
		src := netip.AddrPortFrom(outsideAddr(), 41000+w.id()%1000)
		return wire.IPv4{Src: src.Addr(), Dst: dst.Addr(), Protocol: wire.ProtocolTCP}.Packet(wire.TCPSegment(src, dst, wire.TCPSYN, token))
	})
}

// testExternalPorts has a tenant take connections to the API server, to kubelet, and to the health checks of a node, by external IPs with their ports.
func testExternalPorts(t *testing.T, w *world) {
	const kubelet, health = 10250, 10256
	api, node2 := w.apiServer(t), w.Addr(t, fixture.Node2)
	for i, a := range []struct {
		name    string
		dst     netip.AddrPort
		outside bool // a host outside sends, too: kube-apiserver and load balancers do
	}{
		{"API server", api, false},
		{"kubelet", netip.AddrPortFrom(node2, kubelet), true},
		{"health checks", netip.AddrPortFrom(node2, health), true},
	} {
		p := fixture.ServicePort{Protocol: corev1.ProtocolTCP, Port: int32(a.dst.Port()), Target: fixture.HTTPPort}
		w.external(t, w.attackers, serviceName("port", i), p, w.a2.Addr, a.dst.Addr(), usualIP())
		usual := netip.AddrPortFrom(usualIP(), a.dst.Port())
		w.reaches(t, w.a2, "by "+usual.String(), w.syn(w.a1, usual))
		w.reaches(t, w.a2, "by "+usual.String()+" from outside", w.outsideSYN(t, usual))
		t.Run(a.name, func(t *testing.T) {
			w.try(t, attack{
				position: aTenant, sent: "a SYN of another tenant to " + a.dst.String() + ", an external IP and port of the attackers' service",
				send: w.syn(w.v1, a.dst), at: []receiver{podFrom(w.a2, w.a1)}, counters: []counter{w.admittedOf(w.v1)},
			})
			if !a.outside {
				w.try(t, attack{
					position: aTenant, sent: "a SYN of the own tenant to " + a.dst.String() + ", which a service may not take",
					send: w.syn(w.a1, a.dst), at: []receiver{podFrom(w.a2, w.a3)}, counters: []counter{w.admittedOf(w.a1)},
				})
				return
			}
			w.try(t, attack{
				position: aTenant, sent: "a SYN of a host outside to " + a.dst.String() + ", an external IP and port of the attackers' service",
				send: w.outsideSYN(t, a.dst), at: []receiver{podFrom(w.a2, w.a1)},
			})
		})
	}
}

// waitOlder returns when a service is older than a second, the resolution of creation times: so the next one is younger.
func (w *world) waitOlder(t *testing.T, namespace, name string) {
	t.Helper()
	s, err := w.Kube.CoreV1().Services(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, fixture.SyncTime, "service "+name+" is older than a second", func(context.Context) error {
		if age := time.Since(s.CreationTimestamp.Time); age < time.Second {
			return fmt.Errorf("its age is %v", age)
		}
		return nil
	})
}

package attacks

import (
	"errors"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// balanced reports whether the switch implements services.
func (w *world) balanced() bool { return w.Shape().ServiceProxy == lab.OVS }

// testBalanced attacks what only services in the switch have (docs/decisions/0011-services.md).
func testBalanced(t *testing.T, w *world) {
	t.Run("addresses of the switch", func(t *testing.T) { testNextHops(t, w) })
	t.Run("DSCP", func(t *testing.T) { testServiceDSCP(t, w) })
	t.Run("external IPs", func(t *testing.T) { testExternalIPs(t, w) })
	t.Run("external IPs with ports of nodes", func(t *testing.T) { testExternalPorts(t, w) })
	t.Run("endpoints that the API refuses", func(t *testing.T) { testRefusedEndpoints(t, w) })
	t.Run("endpoints that a policy denies", func(t *testing.T) { testDeniedEndpoints(t, w) })
	t.Run("replies", func(t *testing.T) { testForgedReplies(t, w) })
	t.Run("zone of translations", func(t *testing.T) { testNATZone(t, w) })
	t.Run("session affinity", func(t *testing.T) { testForgedAffinity(t, w) })
}

// nextHops are the addresses that the switch gives to clients whose replies must return to it: pods that reach themselves, the node, and hosts outside.
func nextHops() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("169.254.0.10"), netip.MustParseAddr("169.254.0.11"), netip.MustParseAddr("169.254.0.12")}
}

// victimService is a service of the victims with the pod on node2 as its endpoint, and its node port on node1, which the victim on node1 reaches.
func (w *world) victimService(t *testing.T, name string) (service, nodePort netip.AddrPort) {
	t.Helper()
	addr, port := w.nodePort(t, w.victims, name, fixture.ServicePort{Protocol: corev1.ProtocolUDP, Port: controlPort, Target: controlPort}, w.v2.Addr)
	service, nodePort = to(addr), netip.AddrPortFrom(w.Addr(t, fixture.Node1), port)
	for _, dst := range []netip.AddrPort{service, nodePort} {
		w.reaches(t, w.v2, "by "+dst.String(), sendsUDP(w.v1.NetNS, dst))
	}
	return service, nodePort
}

// testNextHops has a pod send to these addresses, and with them and others as its source to services.
func testNextHops(t *testing.T, w *world) {
	service, nodePort := w.victimService(t, "of-v2-for-sources")
	t.Run("as destinations", func(t *testing.T) {
		host := receiver{name: "tun0 of node1", listen: captures(w.node1.NetNS, "tun0"), control: sendsUDP(w.v1.NetNS, to(lab.OutsideAddr()))}
		w.try(t, attack{
			position: aPod, sent: "UDP to the addresses that the switch gives to clients of services", packets: len(nextHops()),
			send: fromPod(w.a1, func(token []byte) (frames [][]byte) {
				for _, dst := range nextHops() {
					frames = append(frames, datagram(w.a1, to(dst), token))
				}
				return frames
			}),
			at: append(w.victimReceivers(), host), counters: []counter{w.drops(fixture.Node1, "30", "169.254.0.1"), w.drops(fixture.Node1, "70")},
		})
	})
	t.Run("as sources", func(t *testing.T) {
		sources := append(nextHops(), w.a1.Gateway(), w.Addr(t, fixture.Node1), w.v1.Addr, service.Addr())
		dsts := []netip.AddrPort{service, nodePort, netip.AddrPortFrom(w.a1.Gateway(), nodePort.Port())}
		w.try(t, attack{
			position: aPod, sent: "UDP to a service and its node port from these addresses, the gateway, the node, a pod and the service", packets: len(sources) * len(dsts),
			send: fromPod(w.a1, func(token []byte) (frames [][]byte) {
				for _, source := range sources {
					for _, dst := range dsts {
						frames = append(frames, wire.Ethernet(gatewayMAC(w.a1), w.a1.MAC, wire.TypeIPv4, wire.UDPPacket(to(source), dst, token)))
					}
				}
				return frames
			}),
			at: []receiver{podFrom(w.v2, w.v1)}, counters: []counter{w.drops(fixture.Node1, "20")},
		})
	})
}

// marks are the DSCPs by which the switch distinguishes packets of the host (pipeline.HairpinDSCP, ForwardedDSCP, RoutedDSCP).
func marks() []byte { return []byte{0x3d, 0x3e, 0x3f} }

// marked are UDP packets from an address with each of the marks.
func marked(source netip.Addr, token []byte, dsts ...netip.AddrPort) (packets [][]byte) {
	for _, dst := range dsts {
		for _, dscp := range marks() {
			header := wire.IPv4{Src: source, Dst: dst.Addr(), Protocol: wire.ProtocolUDP, DSCP: dscp}
			packets = append(packets, header.Packet(wire.UDP(to(source), dst, token)))
		}
	}
	return packets
}

// testServiceDSCP has a tenant, and a host outside, send to another tenant's service what looks like a packet that the host has translated.
func testServiceDSCP(t *testing.T, w *world) {
	service, nodePort := w.victimService(t, "of-v2-for-marks")
	t.Run("of a pod", func(t *testing.T) {
		dsts := []netip.AddrPort{service, nodePort, netip.AddrPortFrom(w.a1.Gateway(), nodePort.Port())}
		w.try(t, attack{
			position: aTenant, sent: "UDP to another tenant's service and its node port with the DSCPs of the host's firewall", packets: len(marks()),
			send: fromPod(w.a1, func(token []byte) (frames [][]byte) {
				for _, packet := range marked(w.a1.Addr, token, dsts...) {
					frames = append(frames, wire.Ethernet(gatewayMAC(w.a1), w.a1.MAC, wire.TypeIPv4, packet))
				}
				return frames
			}),
			at: []receiver{podFrom(w.v2, w.v1)}, counters: []counter{w.drops(fixture.Node1, "60")}, // packets to node ports are delivered to the host
		})
	})
	t.Run("of a host outside", func(t *testing.T) {
		node1 := w.Addr(t, fixture.Node1)
		w.try(t, attack{
			position: underlay, sent: "UDP to a service's cluster IP, which node1 is to route, with the DSCPs of its firewall", packets: len(marks()),
			send: inject(w.outside.NetNS, "eth0", func(token []byte) (frames [][]byte) {
				for _, packet := range marked(outsideAddr(), token, service) {
					frames = append(frames, wire.Ethernet(nodeMAC(node1), nodeMAC(outsideAddr()), wire.TypeIPv4, packet))
				}
				return frames
			}),
			at: []receiver{podFrom(w.v2, w.v1)}, counters: []counter{w.drops(fixture.Node1, "30"), w.drops(fixture.Node1, "60"), w.rules(fixture.Node1)},
		})
	})
}

// testRefusedEndpoints has a tenant write EndpointSlices with addresses of the node's loopback and of the metadata service. The control is one with a pod's address.
func testRefusedEndpoints(t *testing.T, w *world) {
	protocol, port, portName := corev1.ProtocolTCP, int32(80), ""
	create := func(addr string) error {
		_, err := w.Kube.DiscoveryV1().EndpointSlices(w.attackers).Create(t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{GenerateName: "refused-"},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{addr}}},
			Ports:       []discoveryv1.EndpointPort{{Name: &portName, Protocol: &protocol, Port: &port}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for _, addr := range []string{"127.0.0.1", "169.254.169.254", "169.254.0.11", "169.254.0.12"} {
		if err := create(addr); !apierrors.IsInvalid(err) {
			fixture.Arrived(t, "create an EndpointSlice with %s: got %v, want an error of validation", addr, err)
		}
	}
	if err := create(w.a2.Addr.String()); err != nil {
		t.Errorf("create an EndpointSlice with a pod's address: %v", err)
	}
}

// apiServer returns the address of the API server that service kubernetes leads to.
func (w *world) apiServer(t *testing.T) netip.AddrPort {
	t.Helper()
	slice, err := w.Kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(slice.Endpoints) == 0 || len(slice.Endpoints[0].Addresses) == 0 || len(slice.Ports) == 0 || slice.Ports[0].Port == nil {
		t.Fatalf("EndpointSlice kubernetes has no address: %v", slice)
	}
	addr, err := netip.ParseAddr(slice.Endpoints[0].Addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(addr, uint16(*slice.Ports[0].Port)) //nolint:gosec // a port
}

// segment is a SYN with data from pod a1 or another one, as the pod itself sends it.
func (w *world) segment(from fixture.Pod, dst netip.AddrPort, token []byte) []byte {
	src := netip.AddrPortFrom(from.Addr, 41000+w.id()%1000)
	header := wire.IPv4{Src: src.Addr(), Dst: dst.Addr(), Protocol: wire.ProtocolTCP}
	return wire.Ethernet(nextHop(from, dst.Addr()), from.MAC, wire.TypeIPv4, header.Packet(wire.TCPSegment(src, dst, wire.TCPSYN, token)))
}

// syn returns a function that sends a SYN with data from a pod.
func (w *world) syn(from fixture.Pod, dst netip.AddrPort) func([]byte) error {
	return fromPod(from, func(token []byte) [][]byte { return [][]byte{w.segment(from, dst, token)} })
}

// testDeniedEndpoints has a pod reach daemons of nodes and the API server, which an administrator denies it, by services. Before that they are reached.
func testDeniedEndpoints(t *testing.T, w *world) {
	const port, kubelet, agent = 443, 10250, 9447
	node1, node2, api := w.Addr(t, fixture.Node1), w.Addr(t, fixture.Node2), w.apiServer(t)
	control := w.Machine(t, lab.ControlPlane)
	host := receiver{name: "tun0 of node1", listen: captures(w.node1.NetNS, "tun0"), control: sendsUDP(w.v1.NetNS, to(node1))}
	second := receiver{name: fixture.Node2, listen: captures(w.node2.NetNS, "eth0"), control: sendsUDP(w.v1.NetNS, to(node2))}
	plane := receiver{name: lab.ControlPlane, listen: captures(control.NetNS, controlPlaneInterface), control: sendsUDP(w.v1.NetNS, to(api.Addr()))}
	rows := []struct {
		name     string
		endpoint netip.AddrPort
		at       receiver
		send     func([]byte) error
	}{
		{name: "kubelet of the own node", endpoint: netip.AddrPortFrom(node1, kubelet), at: host},
		{name: "agent of the own node", endpoint: netip.AddrPortFrom(node1, agent), at: host},
		{name: "kubelet of another node", endpoint: netip.AddrPortFrom(node2, kubelet), at: second},
		{name: "API server", endpoint: api, at: plane},
	}
	for i := range rows {
		r := &rows[i]
		p := fixture.ServicePort{Protocol: corev1.ProtocolTCP, Port: port, Target: int32(r.endpoint.Port())}
		addr := w.external(t, w.attackers, serviceName("daemon", i), p, r.endpoint.Addr())
		r.send = w.syn(w.a1, netip.AddrPortFrom(addr, port))
		w.heard(t, receiver{name: r.name + " by a service", listen: r.at.listen, control: r.send})
	}
	for _, addr := range []netip.Addr{node1, node2, api.Addr()} {
		w.denyEgress(t, w.attackers, w.a1, addr)
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			w.try(t, attack{
				position: aPod, sent: "a SYN to an own service with endpoint " + r.endpoint.String() + ", which an Admin policy denies", send: r.send,
				at: []receiver{r.at}, counters: []counter{w.drops(fixture.Node1, "29")},
			})
		})
	}
}

// controlPlaneInterface is that of the control plane on the fabric.
const controlPlaneInterface = "ul0"

// testForgedReplies has a pod send to a client of a service from the endpoint's port: the packets arrive as its own, not as the service's.
func testForgedReplies(t *testing.T, w *world) {
	const port = 5020
	udp := fixture.ServicePort{Protocol: corev1.ProtocolUDP, Port: port, Target: controlPort}
	service := w.external(t, w.attackers, "replies", udp, w.a2.Addr)
	client, dst := netip.AddrPortFrom(w.a1.Addr, 40100), netip.AddrPortFrom(service, port)
	w.reaches(t, w.a2, "by "+dst.String(), sendsUDP(w.a1.NetNS, dst))
	open := fromPod(w.a1, func([]byte) [][]byte {
		return [][]byte{wire.Ethernet(gatewayMAC(w.a1), w.a1.MAC, wire.TypeIPv4, wire.UDPPacket(client, dst, []byte("open")))}
	})
	replies := func(from fixture.Pod, sources ...netip.AddrPort) func([]byte) error {
		return func(token []byte) error {
			return errors.Join(open(nil), fromPod(from, func(token []byte) (frames [][]byte) {
				for _, source := range sources {
					frames = append(frames, wire.Ethernet(w.a1.MAC, from.MAC, wire.TypeIPv4, wire.UDPPacket(source, client, token)))
				}
				return frames
			})(token))
		}
	}
	w.try(t, attack{
		position: aPod, sent: "UDP to a client of a service from the endpoint's port: of the sender, of the endpoint and of the service",
		send: replies(w.a3, to(w.a3.Addr), to(w.a2.Addr), dst),
		at: []receiver{{
			name: "pod a1, with the service as the source",
			listen: func() (listener, error) {
				l, err := captures(w.a1.NetNS, "eth0")()
				return sourced{l, service}, err
			},
			control: replies(w.a2, to(w.a2.Addr)),
		}},
		counters: []counter{w.flows(fixture.Node1, "70", "nw_dst="+w.a1.Addr.String())},
	})
}

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// The host ports of the tests, and ports of the node that pods can't have.
const (
	sharedPort  = 8080
	kubeletPort = 10250
	tunnelPort  = 4789
)

// TestHostPorts sees host ports, also after an agent was killed and all rules of the host were flushed.
func TestHostPorts(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities sees host ports")
	}
	x := newTrio(t)
	h := x.shareHostPort(t)
	h.answer(t)
	t.Run("agent killed", func(t *testing.T) {
		x.killAgent(t, fixture.Node1)
		h.answer(t)
		x.Output(t, fixture.Node1, "nft", "delete", "table", "ip", "cni_hostport")
		h.answer(t)
	})
	t.Run("firewall flushed", func(t *testing.T) {
		x.Output(t, fixture.Node1, "sh", "-ec", "nft flush table ip cni_hostport; iptables -t nat -F; iptables -t mangle -F; iptables -F")
		h.answer(t)
	})
	t.Run("agent killed while a pod ends", func(t *testing.T) {
		x.killAgent(t, fixture.Node1)
		h.end(t, "loopback")
		x.hasHostPorts(t, "node", "udp")
	})
	h.replaceUDP(t)
	x.refusesHostPorts(t)
	h.end(t, "node", "udp")
	x.hasHostPorts(t)
}

// testHostPorts is a part of TestCapabilities.
func testHostPorts(t *testing.T, x *trio) {
	h := x.shareHostPort(t)
	h.answer(t)
	x.Output(t, fixture.Node1, "nft", "delete", "table", "ip", "cni_hostport")
	h.answer(t)
	h.replaceUDP(t)
	x.refusesHostPorts(t)
	h.end(t, "node", "loopback", "udp")
	x.hasHostPorts(t)
}

// withHostPort is a pod of the first node with a host port for one of netexec's ports.
func withHostPort(name string, p corev1.ContainerPort) *corev1.Pod {
	object := fixture.Netexec(name, fixture.Node1)
	p.ContainerPort = fixture.HTTPPort
	if p.Protocol == corev1.ProtocolUDP {
		p.ContainerPort = fixture.UDPPort
	}
	object.Spec.Containers[0].Ports = []corev1.ContainerPort{p}
	return object
}

// sharedHostPort is three pods of a node that share the number of a host port, as Kubernetes' conformance tests have them: by address and by protocol.
type sharedHostPort struct {
	*trio
	node pod        // TCP, the node's IP
	addr netip.Addr // the node's IP
}

func (x *trio) shareHostPort(t *testing.T) *sharedHostPort {
	t.Helper()
	h := &sharedHostPort{trio: x, addr: x.Addr(t, fixture.Node1)}
	pods := x.Run(t, x.namespace,
		withHostPort("node", corev1.ContainerPort{HostPort: sharedPort, Protocol: corev1.ProtocolTCP, HostIP: h.addr.String()}),
		withHostPort("loopback", corev1.ContainerPort{HostPort: sharedPort, Protocol: corev1.ProtocolTCP, HostIP: "127.0.0.1"}),
		withHostPort("udp", corev1.ContainerPort{HostPort: sharedPort, Protocol: corev1.ProtocolUDP}))
	h.node = pods[0]
	return h
}

// answer asks from all places: another pod of the node, one of another node, the pod itself, the nodes and another host.
func (h *sharedHostPort) answer(t *testing.T) {
	t.Helper()
	for _, from := range []end{h.a.End(), h.c.End(), h.node.End(), h.nodeEnd(t, h.node1), h.nodeEnd(t, h.node2), {Name: "outside", NetNS: h.outside.NetNS}} {
		h.answers(t, "tcp from "+from.Name, "node", fixture.HostnameHTTP, from.NetNS, h.addr)
		h.answers(t, "udp from "+from.Name, "udp", fixture.HostnameUDP, from.NetNS, h.addr)
	}
	h.answers(t, "tcp to the loopback", "loopback", fixture.HostnameHTTP, h.node1.NetNS, netip.MustParseAddr("127.0.0.1"))
}

// answers waits until the pod answers at the host port.
func (h *sharedHostPort) answers(t *testing.T, what, want string, ask func(context.Context, wire.NetNS, netip.Addr, uint16) (string, error), from wire.NetNS, to netip.Addr) {
	t.Helper()
	fixture.Eventually(t, fixture.SyncTime, what, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		got, err := ask(ctx, from, to, sharedPort)
		if err == nil && got != want {
			err = fmt.Errorf("got an answer of %q, want %q", got, want)
		}
		return err
	})
}

// replaceUDP replaces the pod of UDP while a client sends to it from one port: the new pod gets the client's packets.
func (h *sharedHostPort) replaceUDP(t *testing.T) {
	t.Helper()
	conn, err := h.outside.NetNS.DialContext(t.Context(), "udp4", netip.AddrPortFrom(h.addr, sharedPort).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func(ctx context.Context) error {
		buffer := make([]byte, 1<<10)
		return fixture.Resending(ctx, conn, func() error {
			_, err := conn.Write([]byte("hostname"))
			return err
		}, func() error {
			_, err := conn.Read(buffer)
			return err
		})
	}
	fixture.Eventually(t, fixture.SyncTime, "the pod answers the client", ask)
	h.end(t, "udp")
	if _, err := conn.Write([]byte("hostname")); err != nil { // creates an entry of conntrack without translation
		t.Log(err) // of an earlier packet, which no pod received
	}
	h.Run(t, h.namespace, withHostPort("udp", corev1.ContainerPort{HostPort: sharedPort, Protocol: corev1.ProtocolUDP}))
	fixture.Eventually(t, fixture.SyncTime, "the new pod answers the same client", ask)
}

func (h *sharedHostPort) end(t *testing.T, names ...string) {
	t.Helper()
	if err := h.DeletePod(t.Context(), h.namespace, names...); err != nil {
		t.Fatal(err)
	}
}

// refusesHostPorts: pods with ports of Services and of the node's programs do not start, and Events name the reason. Kubelet itself refuses a port of another pod.
func (x *trio) refusesHostPorts(t *testing.T) {
	t.Helper()
	service, err := x.Kube.CoreV1().Services(x.namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "exposed"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": x.a.Name}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	since, nodePort := time.Now(), service.Spec.Ports[0].NodePort
	x.Create(t, x.namespace, withHostPort("services", corev1.ContainerPort{HostPort: nodePort, Protocol: corev1.ProtocolTCP}))
	x.Create(t, x.namespace, withHostPort("kubelets", corev1.ContainerPort{HostPort: kubeletPort, Protocol: corev1.ProtocolTCP}))
	x.Create(t, x.namespace, withHostPort("tunnels", corev1.ContainerPort{HostPort: tunnelPort, Protocol: corev1.ProtocolUDP}))
	x.Warned(t, since, "Pod", "services", fmt.Sprintf("host port %d/TCP is taken by Service %s/exposed", nodePort, x.namespace))
	x.Warned(t, since, "Pod", "kubelets", fmt.Sprintf("host port %d/TCP is taken by the node", kubeletPort))
	x.Warned(t, since, "Pod", "tunnels", fmt.Sprintf("host port %d/UDP is the port of the tunnels between nodes", tunnelPort))
	if err := x.DeletePod(t.Context(), x.namespace, "services", "kubelets", "tunnels"); err != nil {
		t.Fatal(err)
	}
	if err := x.Kube.CoreV1().Services(x.namespace).Delete(t.Context(), "exposed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// hasHostPorts waits until the first node has rules for as many host ports as the pods have.
func (x *trio) hasHostPorts(t *testing.T, pods ...string) {
	t.Helper()
	fixture.Eventually(t, fixture.SyncTime, fmt.Sprintf("rules of the host ports of %q", pods), func(ctx context.Context) error {
		rules, err := x.TryOutput(ctx, fixture.Node1, "nft", "list", "table", "ip", "cni_hostport")
		if err == nil && strings.Count(rules, "dnat to") != len(pods) {
			err = fmt.Errorf("got rules\n%s", rules)
		}
		return err
	})
}

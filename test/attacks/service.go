package attacks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// nodePort makes a service of type NodePort whose endpoint is any address, and returns its address and node port.
func (w *world) nodePort(t *testing.T, namespace, name string, p fixture.ServicePort, endpoint netip.Addr) (netip.Addr, uint16) {
	t.Helper()
	addr := w.ExposeAddr(t, namespace, name, p, endpoint)
	patch := []byte(`{"spec":{"type":"NodePort"}}`)
	s, err := w.Kube.CoreV1().Services(namespace).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return addr, uint16(s.Spec.Ports[0].NodePort)
}

// settle returns when the services that were made before are in use on node1 and node2: a service that is made now is.
func (w *world) settle(t *testing.T, namespace string, from, endpoint fixture.Pod) {
	t.Helper()
	name := fmt.Sprintf("settled-%d", w.id())
	addr, port := w.nodePort(t, namespace, name, fixture.ServicePort{Protocol: "UDP", Port: controlPort, Target: controlPort}, endpoint.Addr)
	for _, dst := range []netip.AddrPort{
		netip.AddrPortFrom(addr, controlPort), netip.AddrPortFrom(w.Addr(t, fixture.Node1), port), netip.AddrPortFrom(w.Addr(t, fixture.Node2), port),
	} {
		w.reaches(t, endpoint, "by "+dst.String(), sendsUDP(from.NetNS, dst))
	}
}

// reaches returns when what the function sends arrives at a pod.
func (w *world) reaches(t *testing.T, p fixture.Pod, how string, send func(token []byte) error) {
	t.Helper()
	w.heard(t, receiver{name: p.Name + " " + how, listen: captures(p.NetNS, "eth0"), control: send})
}

// heard returns when the control of a receiver arrives.
func (w *world) heard(t *testing.T, at receiver) {
	t.Helper()
	l, err := at.listen()
	if err != nil {
		t.Fatal(err)
	}
	arrives(t, at, l, w.token("settled"))
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// sendsUDP returns a function that sends a datagram by a socket.
func sendsUDP(from wire.NetNS, dst netip.AddrPort) func([]byte) error {
	return func(token []byte) error {
		ctx, cancel := context.WithTimeout(context.Background(), fixture.PacketTime)
		defer cancel()
		conn, err := from.DialContext(ctx, "udp4", dst.String())
		if err != nil {
			return err
		}
		_, err = conn.Write(token)
		return errors.Join(err, conn.Close())
	}
}

// hearing is a listener on a UDP socket, which receives datagrams that arrive in fragments.
type hearing struct {
	conn net.PacketConn
	done chan struct{}

	mu    sync.Mutex
	heard [][]byte
}

// hears returns a function that listens on a pod's port.
func hears(p fixture.Pod, port uint16) func() (listener, error) {
	return func() (listener, error) {
		conn, err := p.NetNS.ListenPacket("udp4", netip.AddrPortFrom(p.Addr, port).String())
		if err != nil {
			return nil, err
		}
		h := &hearing{conn: conn, done: make(chan struct{})}
		go h.listen()
		return h, nil
	}
}

func (h *hearing) listen() {
	defer close(h.done)
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := h.conn.ReadFrom(buffer)
		if err != nil {
			return // closed
		}
		h.mu.Lock()
		h.heard = append(h.heard, append([]byte{}, buffer[:n]...))
		h.mu.Unlock()
	}
}

// Frames returns the datagrams with the text.
func (h *hearing) Frames(text []byte) [][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found [][]byte
	for _, d := range h.heard {
		if containsText(d, text) {
			found = append(found, d)
		}
	}
	return found
}

// Close ends the listening.
func (h *hearing) Close() error {
	err := h.conn.Close()
	<-h.done
	return err
}

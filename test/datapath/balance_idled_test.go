package datapath_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/idling"
	compiled "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// idledKey is the service of idled tests.
const idledKey = "ns/svc"

// needs counts the Events of a Holder.
type needs struct{ atomic.Int64 }

func (n *needs) EventService(string, string, types.UID, string, string) { n.Add(1) }

// holder is the agent's part on the first node.
type holder struct {
	*idling.Holder
	*balanced
	needs needs
}

// newHolder runs a Holder until the test ends.
func newHolder(t *testing.T, b *balanced) *holder {
	t.Helper()
	h := &holder{balanced: b}
	bridge := native.New(ovstest.Bridge, b.Nodes[0].Switch.RunDir)
	h.Holder = idling.New(idling.Options{Bridge: bridge, Events: &h.needs, MTU: 1500})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { h.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait(); bridge.Close() })
	return h
}

// idle removes the endpoints of the service.
func (h *holder) idle(t *testing.T) {
	t.Helper()
	h.endpoints, h.idled = nil, true
	h.install(t)
	h.Hold(idledKey, endpoints.NewService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc"}}), h.service().Frontends)
}

// serve gives the service an endpoint: the datapath may still have megaflows from before.
func (h *holder) serve(t *testing.T, endpoint netip.AddrPort) {
	t.Helper()
	h.endpoints = []netip.AddrPort{endpoint}
	for _, node := range h.Nodes {
		write(t, node, h.compile(t, node))
	}
	h.Release(idledKey, true)
}

// wantHeld waits until a number of packets is held.
func (h *holder) wantHeld(t *testing.T, held int) {
	t.Helper()
	await.OK(t, time.Minute, func(context.Context) error {
		if got := h.Statistics(); got.Held != held {
			return fmt.Errorf("got %+v, want %d held packets", got, held)
		}
		return nil
	})
}

// connect waits until the switch sends packets to the Holder: those before are lost.
func (h *holder) connect(t *testing.T, client *datapath.Host) {
	t.Helper()
	asking := client.UDP(t, 0)
	h.idle(t)
	await.OK(t, time.Minute, func(context.Context) error {
		asking.Send(t, vip(53), asking.Message())
		if got := h.Statistics(); got.Held == 0 {
			return fmt.Errorf("got %+v, want a held packet", got)
		}
		return nil
	})
	h.Release(idledKey, false)
}

// testBalancedIdled: the first packet of a client to a service without endpoints reaches the endpoint that appears later, without being repeated, and policies evaluate
// it.
func testBalancedIdled(t *testing.T, b *balanced) {
	b.open(t)
	h := newHolder(t, b)
	h.connect(t, &b.pod(0, 1).Host)
	server, node := b.pod(1, 0), b.Nodes[0]
	for name, c := range map[string]struct {
		client   *datapath.Host
		udp, tcp netip.AddrPort
	}{
		"pod":     {&b.pod(0, 0).Host, vip(53), vip(80)},
		"node":    {&node.Host, vip(53), vip(80)},
		"outside": {b.Outside, netip.AddrPortFrom(node.VTEP, ownNodePortUDP), netip.AddrPortFrom(node.VTEP, ownNodePort)},
	} {
		t.Run(name, func(t *testing.T) {
			h.idle(t)
			asking := c.client.UDP(t, 0)
			m := asking.Message()
			asking.Send(t, c.udp, m)
			h.wantHeld(t, 1)
			serving := server.UDP(t, 8080)
			defer serving.Close()
			h.serve(t, netip.AddrPortFrom(server.Addr, 8080))
			from, ok := serving.Receive(t, m, time.Minute)
			if !ok {
				t.Fatalf("the endpoint did not receive the packet: %+v", h.Statistics())
			}
			if from := serving.MustReach(t, from, asking); from != c.udp {
				t.Errorf("source of the reply: got %s, want %s", from, c.udp)
			}
			h.testTCP(t, c.client, c.tcp, server)
		})
	}
	if h.needs.Load() == 0 {
		t.Error("got no Event about the service, want one")
	}
	if b.mode == config.ModeNetworkPolicy {
		t.Run("isolated", func(t *testing.T) { h.testIsolated(t, b.pod(0, 0), server) })
	}
}

// testTCP: a connection that was opened before the service has an endpoint is established.
func (h *holder) testTCP(t *testing.T, client *datapath.Host, to netip.AddrPort, server *datapath.Pod) {
	t.Helper()
	h.idle(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var conn net.Conn
	dialed := make(chan error, 1)
	go func() {
		dialed <- client.NS.Do(func(ns.NetNS) (err error) {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: client.Addr.AsSlice()}, KeepAlive: -1}
			conn, err = d.DialContext(ctx, "tcp4", to.String())
			return err
		})
	}()
	h.wantHeld(t, 1)
	l := server.ListenTCP(t, 8080)
	defer l.Close()
	h.serve(t, netip.AddrPortFrom(server.Addr, 8080))
	if err := <-dialed; err != nil {
		t.Fatalf("connection that was opened before the endpoint: %v; %+v", err, h.Statistics())
	}
	defer conn.Close()
	datapath.Stream{Client: conn, Server: datapath.Accept(t, l)}.MustPass(t)
}

// testIsolated: a packet that was held does not reach an endpoint whose policies deny it.
func (h *holder) testIsolated(t *testing.T, client, server *datapath.Pod) {
	t.Helper()
	h.policies[server] = compiled.PodPolicies{Evaluated: true, Ingress: true}
	h.idle(t)
	asking, serving := client.UDP(t, 0), server.UDP(t, 8080)
	m, sent := asking.Message(), h.Statistics().Sent
	asking.Send(t, vip(53), m)
	h.wantHeld(t, 1)
	h.serve(t, netip.AddrPortFrom(server.Addr, 8080))
	h.wantHeld(t, 0)
	if _, ok := serving.Receive(t, m, time.Second); ok {
		t.Error("an isolated endpoint received the packet")
	}
	if got := h.Statistics().Sent; got <= sent {
		t.Errorf("got %d sent packets, want more than %d", got, sent)
	}
}

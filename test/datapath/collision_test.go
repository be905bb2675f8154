package datapath_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	compiled "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// install installs the flows that the agent compiles on all nodes. Policies select the pods of the list, and allow everything.
func (c *cluster) install(t *testing.T, mode config.Mode, evaluated ...*datapath.Pod) {
	t.Helper()
	const vnid = 10
	isEvaluated := map[*datapath.Pod]bool{}
	for _, p := range evaluated {
		isEvaluated[p] = true
	}
	for _, node := range c.Nodes {
		n := compiled.Node{
			Mode:            mode,
			ClusterNetworks: []netip.Prefix{netip.MustParsePrefix(datapath.ClusterNetwork)},
			ServiceNetwork:  netip.MustParsePrefix(datapath.ServiceNetwork),
			Subnets:         []netip.Prefix{node.Subnet},
			VXLANPort:       4789,
			Userspace:       c.Type == ovstest.DatapathNetdev,
		}
		static, err := n.Static()
		if err != nil {
			t.Fatal(err)
		}
		states := []compiled.State{static, n.Service(compiled.Service{
			ClusterIPs: []netip.Addr{vip(0).Addr()}, VNID: vnid,
			Ports: []compiled.ServicePort{{Protocol: goovs.ProtocolTCPv4, Port: 80}, {Protocol: goovs.ProtocolUDPv4, Port: 53}},
		})}
		for _, p := range node.Pods {
			states = append(states, n.Pod(compiled.Pod{
				OFPort: p.OFPort, MAC: p.MAC, Addrs: []netip.Addr{p.Addr}, VNID: vnid, Policies: compiled.PodPolicies{Evaluated: isEvaluated[p]},
			}))
		}
		for _, peer := range c.Nodes {
			if peer != node {
				states = append(states, n.Peer(compiled.Peer{VTEP: peer.VTEP, Subnets: []netip.Prefix{peer.Subnet}, IsNode: true}))
			}
		}
		var want ovs.State
		for _, s := range states {
			want.Flows = append(want.Flows, unshared(want.Flows, s.Flows)...)
			want.Meters = append(want.Meters, s.Meters...)
		}
		bridge := native.New(ovstest.Bridge, node.Switch.RunDir)
		if _, err := bridge.Replace(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		bridge.Close()
		node.Revalidate(t)
	}
}

// unshared returns the flows that the others lack: all pods of a VNID have one flow in common.
func unshared(have, more []*ovs.Flow) []*ovs.Flow {
	return slices.DeleteFunc(slices.Clone(more), func(f *ovs.Flow) bool {
		return compiled.IsShared(f) && slices.ContainsFunc(have, func(h *ovs.Flow) bool { return reflect.DeepEqual(h, f) })
	})
}

// A pod asks a service through the host's proxy, and the service's endpoint directly, from one source port: in the pod's zone both are one
// connection. The first continues, the packets of the second are dropped, and neither receives a reply of the other.
func testTupleCollision(t *testing.T, c *cluster) {
	const port = 8080
	for _, test := range []struct {
		name              string
		mode              config.Mode
		server, evaluated *datapath.Pod
	}{
		{"policies about the client, same node", config.ModeNetworkPolicy, c.pod(0, 1), c.pod(0, 0)},
		{"policies about the client, other node", config.ModeNetworkPolicy, c.pod(1, 0), c.pod(0, 0)},
		{"policies about the server, same node", config.ModeNetworkPolicy, c.pod(0, 1), c.pod(0, 1)},
		{"multitenant, policies about the client, other node", config.ModeMultitenant, c.pod(1, 0), c.pod(0, 0)},
	} {
		t.Run(test.name, func(t *testing.T) {
			if testing.Short() && test.mode != config.ModeMultitenant {
				t.Skip("complete tier: another mode or place")
			}
			c.reset(t)
			client, endpoint := c.pod(0, 0), netip.AddrPortFrom(test.server.Addr, port)
			c.install(t, test.mode, test.evaluated)
			proxy(t, c.Nodes[0], endpoint)
			t.Run("UDP, service first", func(t *testing.T) { collideUDP(t, client, test.server, vip(53), endpoint) })
			t.Run("UDP, direct first", func(t *testing.T) { collideUDP(t, client, test.server, endpoint, vip(53)) })
			t.Run("TCP, service first", func(t *testing.T) { collideTCP(t, client, test.server, vip(80), endpoint) })
			t.Run("TCP, direct first", func(t *testing.T) { collideTCP(t, client, test.server, endpoint, vip(80)) })
		})
	}
}

func collideUDP(t *testing.T, client, server *datapath.Pod, first, second netip.AddrPort) {
	t.Helper()
	asking, serving := client.UDP(t, 0), server.UDP(t, 8080)
	goesOn := func() {
		t.Helper()
		asking.MustReach(t, first, serving)
		if from := serving.MustReach(t, asking.Addr(), asking); from != first {
			t.Errorf("what was sent to %s is answered by %s", first, from)
		}
	}
	asking.Send(t, first, asking.Message()) // no answer yet: to the tracker it is still new
	asking.MustReach(t, first, serving)
	asking.MustNotReach(t, second, serving)
	goesOn()
	asking.MustNotReach(t, second, serving)
	goesOn()

	other := client.UDP(t, 0)
	other.MustReach(t, second, serving)
	if from := serving.MustReach(t, other.Addr(), other); from != second {
		t.Errorf("from another port, what was sent to %s is answered by %s", second, from)
	}
}

func collideTCP(t *testing.T, client, server *datapath.Pod, first, second netip.AddrPort) {
	t.Helper()
	l := server.ListenTCP(t, 8080)
	one := dialFrom(t, client, 0, first, 30*time.Second)
	if one == nil {
		t.Fatalf("no connection to %s", first)
	}
	stream := datapath.Stream{Client: one, Server: datapath.Accept(t, l)}
	stream.MustPass(t)
	source, ok := one.LocalAddr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("the connection is from %v", one.LocalAddr())
	}
	const quiet = 1500 * time.Millisecond // TCP sends again after a second
	if dialFrom(t, client, source.Port, second, quiet) != nil {
		t.Errorf("from one port there is a connection to %s beside that to %s", second, first)
	}
	stream.MustPass(t)
	if two := dialFrom(t, client, 0, second, 30*time.Second); two == nil {
		t.Errorf("from another port, no connection to %s", second)
	}
}

// dialFrom connects from the port, which may have other connections; 0 is any. It returns nil if nothing answers in time.
func dialFrom(t *testing.T, from *datapath.Pod, port int, to netip.AddrPort, wait time.Duration) net.Conn {
	t.Helper()
	reuse := func(_, _ string, raw syscall.RawConn) error {
		var set error
		err := raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		return errors.Join(err, set)
	}
	var conn net.Conn
	err := from.NS.Do(func(ns.NetNS) (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.Addr.AsSlice(), Port: port}, Control: reuse, KeepAlive: -1}
		conn, err = d.DialContext(ctx, "tcp4", to.String())
		return err
	})
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

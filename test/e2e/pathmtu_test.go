package e2e

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// A sender of packets through a node that are too large for pods gets ICMP errors, and connections discover the size.
func TestPathMTUFromOutside(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: needs the shared lab, and changes the MTU of all nodes")
	}
	x := newTrio(t)
	x.restoreMTU(t)
	outside := end{Name: "outside", NetNS: x.outside.NetNS, Addr: routedFrom(t, x.outside.NetNS, x.Addr(t, fixture.Node1))}
	// It has a route to the pods themselves, without the masquerade.
	subnet := x.Subnet(t, fixture.Node1).String()
	x.Output(t, x.outside.Name, "ip", "route", "add", subnet, "via", x.Addr(t, fixture.Node1).String())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.SyncTime)
		defer cancel()
		if _, err := x.TryOutput(ctx, x.outside.Name, "ip", "route", "del", subnet); err != nil {
			t.Error(err)
		}
	})
	fixture.Meet(t, outside.NetNS, x.a.Addr)
	for _, step := range []struct {
		mtu  mtu
		path int
	}{
		{mtu{}, podMTU},
		{mtu{podMTU, lowMTU}, lowMTU},
		{mtu{1300, 0}, 1300},
	} {
		t.Run(strconv.Itoa(step.path), func(t *testing.T) {
			x.haveMTU(t, step.mtu, x.a, x.b, x.c)
			x.Output(t, x.outside.Name, "ip", "route", "flush", "cache")
			wantPathMTU(t, outside.NetNS, x.a.Addr, 1500, step.path)
			fixture.Echoed(t, outside.NetNS, x.a.Addr, wire.Echo{Bytes: step.path, DontFragment: true})
			testTCP(t, outside, x.a.End(), outside.Addr)
			testUDP(t, outside, x.a.End(), outside.Addr)
			testNodePort(t, x, outside, fmt.Sprintf("port-%d", step.path))
		})
	}
}

// wantPathMTU sends packets that are too large until the answer is that they are, and looks at what the kernel has learned of it.
func wantPathMTU(t *testing.T, from wire.NetNS, to netip.Addr, size, want int) {
	t.Helper()
	fixture.Eventually(t, fixture.PacketTime, "the path MTU to "+to.String()+" is known", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := from.Ping(ctx, to, wire.Echo{Bytes: size, DontFragment: true}); !errors.Is(err, unix.EMSGSIZE) {
			return fmt.Errorf("a packet of %d bytes: %w, want %w", size, err, unix.EMSGSIZE)
		}
		return nil
	})
	err := from.Do(func() error {
		routes, err := netlink.RouteGet(net.IP(to.AsSlice()))
		if err != nil {
			return err
		}
		if len(routes) != 1 || routes[0].MTU != want {
			return fmt.Errorf("it has learned %+v, want MTU %d", routes, want)
		}
		return nil
	})
	if err != nil {
		t.Errorf("the way to %s: %v", to, err)
	}
}

// routedFrom returns the address that a packet to another one has.
func routedFrom(t *testing.T, from wire.NetNS, to netip.Addr) (source netip.Addr) {
	t.Helper()
	if err := from.Do(func() error {
		routes, err := netlink.RouteGet(net.IP(to.AsSlice()))
		if err != nil {
			return err
		}
		addr, ok := netip.AddrFromSlice(routes[0].Src)
		if !ok {
			return fmt.Errorf("no source on the way to %s", to)
		}
		source = addr.Unmap()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return source
}

// testNodePort exchanges large data with pod a through a port of the other node, in each direction.
func testNodePort(t *testing.T, x *trio, from end, name string) {
	l, err := x.a.NetNS.Listen("tcp4", netip.AddrPortFrom(x.a.Addr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go echoAll(l)
	service, err := x.Kube.CoreV1().Services(x.namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": x.a.Name},
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(int32(l.Addr().(*net.TCPAddr).Port))}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(x.Addr(t, fixture.Node2), uint16(service.Spec.Ports[0].NodePort)).String()
	var conn net.Conn
	fixture.Eventually(t, fixture.SyncTime, "the port of the node answers", func(ctx context.Context) (err error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		conn, err = from.NetNS.DialContext(ctx, "tcp4", to)
		return err
	})
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.SyncTime)
	defer cancel()
	data := make([]byte, bulkBytes)
	rand.Read(data) // never fails (crypto/rand)
	sum, err := exchange(ctx, conn, data)
	if err != nil {
		t.Fatalf("through %s: %v", to, err)
	}
	if want := sha256.Sum256(data); sum != want {
		t.Errorf("through %s: %x came back, want %x", to, sum, want)
	}
}

// echoAll sends every connection's bytes back until the listener closes.
func echoAll(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn) // the other side reports errors
		}()
	}
}

// A pod discovers the smaller MTU of a remote link.
func TestPathMTUFromPod(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: needs the shared lab, and a narrow link")
	}
	x := newTrio(t)
	const narrow = 1280
	beyond := x.beyond(t, narrow)
	fixture.Meet(t, x.a.NetNS, beyond.Addr)
	wantPathMTU(t, x.a.NetNS, beyond.Addr, podMTU, narrow)
	// A client that starts with a TCP connection has no path MTU yet.
	for _, p := range []pod{x.b, x.c} {
		t.Run("from "+p.Name, func(t *testing.T) {
			testTCP(t, p.End(), beyond, x.Addr(t, p.Node))
			testUDP(t, p.End(), beyond, x.Addr(t, p.Node))
			wantPathMTU(t, p.NetNS, beyond.Addr, podMTU, narrow)
		})
	}
}

// beyond creates a host behind outside, with a limit of the packet size on the way. The host has no information about it, and offers
// larger sizes to its clients.
func (x *trio) beyond(t *testing.T, narrow int) end {
	t.Helper()
	netns, err := ns.TempNetNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netns.Close() }) // and its interfaces with it
	x.Output(t, x.outside.Name, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.SyncTime)
		defer cancel()
		if _, err := x.TryOutput(ctx, x.outside.Name, "sysctl", "-qw", "net.ipv4.ip_forward=0"); err != nil {
			t.Error(err)
		}
	})
	e := end{
		Name:  "beyond",
		NetNS: wire.NetNS(fmt.Sprintf("/proc/self/fd/%d", netns.Fd())),
		Addr:  netip.MustParseAddr("192.0.2.77"), // the nodes know that outside leads there
	}
	on := func(link netlink.Link, dst netip.Addr) *netlink.Route {
		return &netlink.Route{LinkIndex: link.Attrs().Index, Dst: hostNet(dst), Scope: netlink.SCOPE_LINK}
	}
	err = x.outside.NetNS.Do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "beyond"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(netns.Fd())}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		route := on(veth, e.Addr)
		route.MTU = narrow
		return errors.Join(netlink.LinkSetUp(veth), netlink.RouteAdd(route))
	})
	if err != nil {
		t.Fatal(err)
	}
	err = e.NetNS.Do(func() error {
		link, err := netlinksafe.LinkByName("eth0")
		if err != nil {
			return err
		}
		return errors.Join(
			netlink.AddrAdd(link, &netlink.Addr{IPNet: hostNet(e.Addr)}),
			netlink.LinkSetUp(link),
			netlink.RouteAdd(on(link, lab.OutsideAddr())),
			netlink.RouteAdd(&netlink.Route{Gw: lab.OutsideAddr().AsSlice()}),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func hostNet(addr netip.Addr) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
}

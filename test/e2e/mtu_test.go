package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// mtu is what interfaces take and what is sent, in bytes; 0: nobody says.
type mtu struct{ link, routable int }

// lowMTU is what the tests go down to.
const lowMTU = 1400

// setMTU edits the ClusterNetwork as docs/mtu.md tells.
func (c *cluster) setMTU(ctx context.Context, m mtu) error {
	routable := any(nil)
	if m.routable != 0 {
		routable = strconv.Itoa(m.routable)
	}
	return c.patchMTU(ctx, m.link, routable)
}

func (c *cluster) patchMTU(ctx context.Context, link int, routable any) error {
	spec := map[string]any{"mtu": nil, "metadata": map[string]any{"annotations": map[string]any{"ovsdn.io/routable-mtu": routable}}}
	if link != 0 {
		spec["mtu"] = link
	}
	patch, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	_, err = c.network.NetworkV1().ClusterNetworks().Patch(ctx, "default", apitypes.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// restoreMTU undoes at the test's end what it has done to the MTU, and waits until the nodes follow.
func (x *trio) restoreMTU(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), syncTime)
		defer cancel()
		err := x.setMTU(ctx, mtu{})
		ticker := time.NewTicker(pollInterval)
		defer ticker.Stop()
		for err == nil {
			if err = errors.Join(hasMTU(node1, x.node1.netns, "tun0", mtu{podMTU, 0}), hasMTU(node2, x.node2.netns, "tun0", mtu{podMTU, 0})); err == nil {
				return
			}
			select {
			case <-ctx.Done():
				err = errors.Join(err, ctx.Err())
			case <-ticker.C:
				err = nil
			}
		}
		t.Errorf("restore the MTU: %v", err)
	})
}

// haveMTU edits the ClusterNetwork and returns when nodes and pods follow it.
func (x *trio) haveMTU(t *testing.T, m mtu, pods ...pod) {
	t.Helper()
	if err := x.setMTU(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	want := m
	if want.link == 0 {
		want.link = podMTU
	}
	eventually(t, syncTime, fmt.Sprintf("nodes and pods have MTU %+v", m), func(context.Context) error {
		var errs []error
		for _, machine := range []machine{x.node1, x.node2} {
			errs = append(errs, hasMTU(machine.name, machine.netns, "tun0", want))
		}
		for _, p := range pods {
			errs = append(errs, hasMTU("pod "+p.name, p.netns, "eth0", want))
		}
		return errors.Join(errs...)
	})
	// Pods' ends follow last, except upwards.
	for _, machine := range []machine{x.node1, x.node2} {
		eventually(t, syncTime, "the veths of "+machine.name, func(context.Context) error { return haveVethMTU(machine.netns, want.link) })
	}
}

func hasMTU(name string, netns wire.NetNS, iface string, want mtu) error {
	return netns.Do(func() error {
		link, err := netlinksafe.LinkByName(iface)
		if err != nil {
			return err
		}
		routes, err := netlinksafe.RouteList(link, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		if got := link.Attrs().MTU; got != want.link {
			return fmt.Errorf("%s of %s has %d, want %d", iface, name, got, want.link)
		}
		for _, r := range routes {
			if r.MTU != want.routable {
				return fmt.Errorf("route %s of %s has MTU %d, want %d", r.Dst, name, r.MTU, want.routable)
			}
		}
		return nil
	})
}

func haveVethMTU(netns wire.NetNS, want int) error {
	return netns.Do(func() error {
		links, err := netlinksafe.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if a := l.Attrs(); strings.HasPrefix(a.Name, "veth") && a.MTU != want {
				return fmt.Errorf("%s has %d, want %d", a.Name, a.MTU, want)
			}
		}
		return nil
	})
}

// wantSize pings with the largest packet that may be sent, and with one that is too large.
func wantSize(t *testing.T, from, to pod, most int) {
	t.Helper()
	within(t, packetTime, fmt.Sprintf("%d bytes from %s to %s", most, from.name, to.name), func(ctx context.Context) error {
		return from.netns.Ping(ctx, to.addr, wire.Echo{Bytes: most, DontFragment: true})
	})
	within(t, packetTime, fmt.Sprintf("%d bytes from %s to %s", most+1, from.name, to.name), func(ctx context.Context) error {
		if err := from.netns.Ping(ctx, to.addr, wire.Echo{Bytes: most + 1, DontFragment: true}); !errors.Is(err, unix.EMSGSIZE) {
			return fmt.Errorf("%w, want %w", err, unix.EMSGSIZE)
		}
		return nil
	})
}

// The MTU of a cluster in use goes down and up again by the steps of docs/mtu.md. No packet is lost, and connections go on.
func TestMTUChangesUnderTraffic(t *testing.T) {
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, node1, node2)
	x.restoreMTU(t)
	meet(t, x.c.netns, x.a.addr)
	there, back := talk(t, x.a.end(), x.c.end()), talk(t, x.c.end(), x.b.end())
	x.losesNothing(t, func() {
		for _, step := range []struct {
			mtu  mtu
			sent int
		}{
			{mtu{}, podMTU},
			{mtu{podMTU, lowMTU}, lowMTU},
			{mtu{lowMTU, 0}, lowMTU},
			{mtu{podMTU, lowMTU}, lowMTU},
			{mtu{podMTU, 0}, podMTU},
		} {
			x.haveMTU(t, step.mtu, x.a, x.b, x.c)
			for _, path := range [][2]pod{{x.a, x.b}, {x.a, x.c}, {x.c, x.a}} {
				wantSize(t, path[0], path[1], step.sent)
			}
			there.goesOn(t)
			back.goesOn(t)
		}
	}, streamOf(x.a, x.c), streamOf(x.b, x.a))
	there.ends(t)
	back.ends(t)
	x.haveMTU(t, mtu{}, x.a, x.b, x.c)
	x.returnsTo(t, before)
}

// Pods that come while the MTU is another have it, and keep pace with the old ones when it changes again, also when their node's agent
// was away meanwhile.
func TestMTUOfNewPods(t *testing.T) {
	x := newTrio(t)
	x.restoreMTU(t)
	x.haveMTU(t, mtu{podMTU, lowMTU}, x.a, x.b, x.c)
	d := x.run(t, x.namespace, netexec("d", node2))[0]
	meet(t, d.netns, x.a.addr)
	x.haveMTU(t, mtu{podMTU, lowMTU}, d)
	wantSize(t, d, x.a, lowMTU)

	x.haveMTU(t, mtu{lowMTU, 0}, x.a, x.b, x.c, d)
	e := x.run(t, x.namespace, netexec("e", node1))[0]
	meet(t, e.netns, d.addr)
	x.killAgent(t, node1)
	x.haveMTU(t, mtu{1300, 0}, x.a, x.b, x.c, d, e)
	wantSize(t, d, e, 1300)
	wantSize(t, e, d, 1300)
}

// conversation is a connection on which something is said all the time, and said back.
type conversation struct {
	name   string
	conn   net.Conn
	words  words
	spoken chan int // bytes that came back so far, when somebody listens
	stop   chan struct{}
	ended  chan error
}

// words are what is said: so many bytes, so often.
type words struct {
	bytes int
	every time.Duration
}

// talk begins a conversation that ends with the test. A word takes several packets. There are few of them, so that pings find the
// processor free.
func talk(t *testing.T, from, to end) *conversation {
	t.Helper()
	return words{16 << 10, 20 * time.Millisecond}.talk(t, from, to)
}

func (w words) talk(t *testing.T, from, to end) *conversation {
	t.Helper()
	l, err := to.netns.Listen("tcp4", netip.AddrPortFrom(to.addr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), packetTime)
	defer cancel()
	conn, err := from.netns.DialContext(ctx, "tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer peer.Close()
		_, _ = io.Copy(peer, peer) // the other side tells of errors
	}()
	c := &conversation{name: from.name + " to " + to.name, conn: conn, words: w, spoken: make(chan int), stop: make(chan struct{}), ended: make(chan error, 1)}
	go func() { c.ended <- c.run() }()
	t.Cleanup(func() { conn.Close() })
	return c
}

func (c *conversation) run() error {
	defer c.conn.Close()
	word, back := make([]byte, c.words.bytes), make([]byte, c.words.bytes)
	ticker := time.NewTicker(c.words.every)
	defer ticker.Stop()
	for sum := 0; ; {
		rand.Read(word) // never fails (crypto/rand)
		if err := c.conn.SetDeadline(time.Now().Add(syncTime)); err != nil {
			return err
		}
		if _, err := c.conn.Write(word); err != nil {
			return err
		}
		if _, err := io.ReadFull(c.conn, back); err != nil {
			return err
		}
		if !bytes.Equal(word, back) {
			return errors.New("other bytes came back")
		}
		sum += c.words.bytes
		select {
		case c.spoken <- sum:
		default:
		}
		select {
		case <-c.stop:
			return nil
		case <-ticker.C:
		}
	}
}

// goesOn returns when something has been said and said back that was not begun yet.
func (c *conversation) goesOn(t *testing.T) {
	t.Helper()
	if err := c.hear(); err != nil {
		t.Fatal(err)
	}
}

func (c *conversation) hear() error {
	for range 2 {
		select {
		case <-c.spoken:
		case err := <-c.ended:
			return fmt.Errorf("the connection from %s: %w", c.name, err)
		case <-time.After(syncTime):
			return fmt.Errorf("the connection from %s: nothing for %v", c.name, syncTime)
		}
	}
	return nil
}

func (c *conversation) ends(t *testing.T) {
	t.Helper()
	close(c.stop)
	if err := <-c.ended; err != nil {
		t.Errorf("the connection from %s: %v", c.name, err)
	}
}

// An MTU that is none is told on the ClusterNetwork, one that a node's underlay can't carry on the Node. All stays as it is, and the
// node goes on setting pods up.
func TestMTURefused(t *testing.T) {
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, node1, node2)
	x.restoreMTU(t)
	for i, tc := range []struct {
		link     int
		routable any
		about    string
		says     []string
	}{
		{1500, nil, "Node", []string{"MTU 1500 is too large", "VXLAN takes 50", "at most 1450"}},
		{0, "1451", "Node", []string{"routable MTU 1451 is too large", "take 1450"}},
		{podMTU, "1451", "ClusterNetwork", []string{"ovsdn.io/routable-mtu", "1451 bytes is more than the mtu, 1450"}},
		{podMTU, "small", "ClusterNetwork", []string{"ovsdn.io/routable-mtu", `"small" is no number of bytes`}},
	} {
		t.Run(fmt.Sprintf("%d and %v", tc.link, tc.routable), func(t *testing.T) {
			began := time.Now()
			if err := x.patchMTU(t.Context(), tc.link, tc.routable); err != nil {
				t.Fatal(err)
			}
			names := []string{node1, node2}
			if tc.about == "ClusterNetwork" {
				names = []string{"default"}
				x.accepted(t, metav1.ConditionFalse, tc.says...)
			}
			for _, name := range names {
				x.warned(t, began, tc.about, name, tc.says...)
			}
			if diff := cmp.Diff(before, x.footprints(t, node1, node2)); diff != "" {
				t.Errorf("the nodes changed (-before +now):\n%s", diff)
			}
			for _, p := range []pod{x.a, x.c} {
				if err := hasMTU("pod "+p.name, p.netns, "eth0", mtu{podMTU, 0}); err != nil {
					t.Error(err)
				}
			}
			name := fmt.Sprintf("later-%d", i)
			later := x.run(t, x.namespace, netexec(name, node1))[0]
			meet(t, later.netns, x.c.addr)
			if err := x.deletePod(t.Context(), x.namespace, name); err != nil {
				t.Fatal(err)
			}
			x.returnsTo(t, before)
		})
	}
}

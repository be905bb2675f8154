package podcapture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/pcapng"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

const (
	hostVeth  = "veth0123456789a"
	otherVeth = "veth0123456789b" // of another pod
	podAddr   = "198.18.7.5"
	hostAddr  = "198.18.7.1"
	port      = 53
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// newPod returns the namespaces of a pod and of its host, which a veth pair joins.
func newPod(t *testing.T) (pod, host ns.NetNS) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, n := range []*ns.NetNS{&pod, &host} {
		created, err := ns.TempNetNS()
		must(t, err)
		t.Cleanup(func() { created.Close() })
		*n = created
	}
	must(t, host.Do(func(ns.NetNS) error {
		add := func(name, peer string) error {
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer, PeerNamespace: netlink.NsFd(int(pod.Fd()))})
		}
		return errors.Join(add(hostVeth, "eth0"), add(otherVeth, "eth1"))
	}))
	setUp(t, host, hostVeth, hostAddr+"/24")
	setUp(t, pod, "eth0", podAddr+"/24")
	setUp(t, host, otherVeth, "198.19.7.1/24")
	setUp(t, pod, "eth1", "198.19.7.5/24")
	return pod, host
}

func setUp(t *testing.T, n ns.NetNS, name, addr string) {
	t.Helper()
	must(t, n.Do(func(ns.NetNS) error {
		link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name}}
		a, err := netlink.ParseAddr(addr)
		return errors.Join(err, netlink.AddrAdd(link, a), netlink.LinkSetUp(link))
	}))
}

// addNeighbour adds the pod's MAC to the neighbour table of the host.
func addNeighbour(t *testing.T, host, pod ns.NetNS) {
	t.Helper()
	neighbour := netlink.Neigh{IP: net.ParseIP(podAddr), State: netlink.NUD_PERMANENT}
	must(t, pod.Do(func(ns.NetNS) error {
		link, err := netlinksafe.LinkByName("eth0")
		if err == nil {
			neighbour.HardwareAddr = link.Attrs().HardwareAddr
		}
		return err
	}))
	must(t, host.Do(func(ns.NetNS) error {
		link, err := netlinksafe.LinkByName(hostVeth)
		if err != nil {
			return err
		}
		neighbour.LinkIndex = link.Attrs().Index
		return netlink.NeighAdd(&neighbour)
	}))
}

// send sends datagrams of the namespace to an address.
func send(t *testing.T, from ns.NetNS, to string, port int, data ...string) {
	t.Helper()
	must(t, from.Do(func(ns.NetNS) error {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "udp4", fmt.Sprintf("%s:%d", to, port))
		if err != nil {
			return err
		}
		defer conn.Close()
		for _, d := range data {
			if _, err := conn.Write([]byte(d)); err != nil && !errors.Is(err, unix.ECONNREFUSED) { // instead of sending, it reports the ICMP error for another datagram
				return err
			}
		}
		return nil
	}))
}

// output is an Output whose writes can be blocked.
type output struct {
	mu      sync.Mutex
	content bytes.Buffer
	flushed chan struct{} // has an element after a flush
	block   chan struct{} // if it is not nil, writes beyond the first flush wait until it is closed
	isBegun bool
}

func newOutput() *output { return &output{flushed: make(chan struct{}, 1)} }

func (o *output) Write(b []byte) (int, error) {
	if o.block != nil && o.isBegun {
		<-o.block
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.content.Write(b)
}

func (o *output) Flush() error {
	o.isBegun = true
	select {
	case o.flushed <- struct{}{}:
	default:
	}
	return nil
}

// running is a capture that runs.
type running struct {
	*output
	ended chan error
	stop  context.CancelFunc
}

// start starts a capture, and returns after the begin of its file was flushed.
func start(t *testing.T, host ns.NetNS, spec diagnostics.CaptureSpec, out *output) *running {
	t.Helper()
	must(t, spec.Complete().ToAggregate())
	var session *Session
	must(t, host.Do(func(ns.NetNS) (err error) {
		session, err = Open(Capture{HostVeth: hostVeth, Name: "pod/a/web", Spec: spec})
		return err
	}))
	ctx, stop := context.WithCancel(t.Context())
	r := &running{out, make(chan error, 1), stop}
	go func() {
		defer session.Close()
		r.ended <- session.Run(ctx, out)
	}()
	select {
	case <-out.flushed:
	case <-time.After(time.Minute):
		t.Fatal("the file has no begin after a minute")
	}
	return r
}

// content are the blocks of a file.
type content struct {
	packets    []pcapng.Packet
	statistics []pcapng.Statistics
}

// read returns what the file has until now.
func (o *output) read(t *testing.T) (c content) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for r := pcapng.NewReader(bytes.NewReader(o.content.Bytes())); ; {
		b, err := r.Next()
		if errors.Is(err, io.EOF) {
			return c
		}
		must(t, err)
		if b.Packet != nil {
			p := *b.Packet
			p.Data = bytes.Clone(p.Data)
			c.packets = append(c.packets, p)
		}
		if b.Statistics != nil {
			c.statistics = append(c.statistics, *b.Statistics)
		}
	}
}

// end returns the content and the end of a capture.
func (r *running) end(t *testing.T) (content, diagnostics.CaptureEnd) {
	t.Helper()
	select {
	case err := <-r.ended:
		must(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the capture has not ended in a minute")
	}
	c := r.read(t)
	if len(c.statistics) == 0 {
		t.Fatal("the file has no statistics")
	}
	end, _, _ := diagnostics.ParseCaptureEnd(c.statistics[len(c.statistics)-1].Comment)
	return c, end
}

// A capture with a filter has exactly the packets of the filter, in both directions, and arrives while it runs.
func TestCapture(t *testing.T) {
	pod, host := newPod(t)
	began := time.Now()
	r := start(t, host, diagnostics.CaptureSpec{Protocol: "UDP", Port: port, Host: hostAddr, MaxPackets: 3}, newOutput())
	send(t, pod, hostAddr, port+1, "another port")
	send(t, pod, "198.19.7.1", port, "another interface")
	send(t, pod, hostAddr, port, "first")
	await.OK(t, await.SyncTime, func(context.Context) error {
		if got := len(r.read(t).packets); got != 1 {
			return fmt.Errorf("got %d packets, want 1 while the capture runs", got)
		}
		return nil
	})
	send(t, host, podAddr, port, "second")
	send(t, pod, hostAddr, port, strings.Repeat("3", 300))
	got, end := r.end(t)
	if end != diagnostics.CaptureEndPackets || len(got.packets) != 3 {
		t.Fatalf("got %d packets, end %s, want 3 by their number", len(got.packets), end)
	}
	last := got.statistics[len(got.statistics)-1]
	if last.Received < 3 || last.Dropped != 0 || last.Delivered != 3 {
		t.Errorf("got statistics %+v", last)
	}
	const headers = 14 + 20 + 8
	for i, want := range []struct {
		data      string
		length    uint32
		direction pcapng.Direction
	}{{"first", headers + 5, pcapng.Outbound}, {"second", headers + 6, pcapng.Inbound}, {strings.Repeat("3", 256-headers), headers + 300, pcapng.Outbound}} {
		p := got.packets[i]
		if string(p.Data[headers:]) != want.data || p.Length != want.length || p.Direction != want.direction || p.Time.Before(began.Add(-time.Second)) || p.Time.After(time.Now()) {
			t.Errorf("packet %d: got %q of %d bytes, direction %d at %v, want %+v", i, p.Data[headers:], p.Length, p.Direction, p.Time, want)
		}
	}
}

// What the kernel removed from a frame is in the file: its VLAN tag.
func TestCapture_vlan(t *testing.T) {
	pod, host := newPod(t)
	r := start(t, host, diagnostics.CaptureSpec{Protocol: "ARP", MaxPackets: 1}, newOutput())
	frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 0x81, 0x00, 0x20, 0x07}, arpFrame(podAddr, hostAddr)[12:]...)
	must(t, pod.Do(func(ns.NetNS) error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return errors.Join(unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Index, Halen: 6}), unix.Close(fd))
	}))
	got, _ := r.end(t)
	if len(got.packets) != 1 || !bytes.Equal(got.packets[0].Data, frame) || got.packets[0].Length != uint32(len(frame)) {
		t.Errorf("got %+v, want % x", got.packets, frame)
	}
}

// The file is never larger than its limit, and its end is that limit.
func TestCapture_bytes(t *testing.T) {
	pod, host := newPod(t)
	r := start(t, host, diagnostics.CaptureSpec{MaxBytes: diagnostics.MinCaptureBytes, Port: port}, newOutput())
	for range 100 {
		send(t, pod, hostAddr, port, strings.Repeat("x", 200))
	}
	got, end := r.end(t)
	if size := r.content.Len(); end != diagnostics.CaptureEndBytes || size > diagnostics.MinCaptureBytes || len(got.packets) < 5 {
		t.Errorf("got %d bytes with %d packets, end %s", size, len(got.packets), end)
	}
}

func TestCapture_duration(t *testing.T) {
	_, host := newPod(t)
	began := time.Now()
	r := start(t, host, diagnostics.CaptureSpec{DurationSeconds: 1, Protocol: "SCTP"}, newOutput())
	got, end := r.end(t)
	if took := time.Since(began); end != diagnostics.CaptureEndDuration || took < time.Second || len(got.packets) != 0 || len(got.statistics) != 1 {
		t.Errorf("got %+v, end %s after %v", got, end, took)
	}
}

// A pod that is deleted ends its captures, whose files have its last packets.
func TestCapture_interfaceRemoved(t *testing.T) {
	pod, host := newPod(t)
	addNeighbour(t, host, pod) // otherwise the packets may still wait for the pod's MAC when the interface is removed
	out := newOutput()
	out.block = make(chan struct{})
	r := start(t, host, diagnostics.CaptureSpec{Port: port}, out)
	for _, data := range []string{"blocks the output", "waits", "waits, too"} {
		send(t, host, podAddr, port, data)
	}
	must(t, host.Do(func(ns.NetNS) error {
		return netlink.LinkDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: hostVeth}})
	}))
	close(out.block)
	if got, end := r.end(t); end != diagnostics.CaptureEndInterface || len(got.packets) != 3 {
		t.Errorf("got end %s, packets %+v, want three", end, got.packets)
	}
}

// A client that disconnects ends its capture, whose file has no end.
func TestCapture_disconnects(t *testing.T) {
	_, host := newPod(t)
	r := start(t, host, diagnostics.CaptureSpec{Protocol: "SCTP"}, newOutput())
	r.stop()
	select {
	case err := <-r.ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got error %v, want Canceled", err)
		}
	case <-time.After(5 * time.Second): // less than the next statistics
		t.Fatal("the capture runs on")
	}
	if got := r.read(t); len(got.statistics) != 0 {
		t.Errorf("got statistics %+v of a capture without an end", got.statistics)
	}
}

// While the client reads nothing, the kernel drops packets, and the file has their number.
func TestCapture_slowClient(t *testing.T) {
	_, host := newPod(t)
	out := newOutput()
	out.block = make(chan struct{})
	r := start(t, host, diagnostics.CaptureSpec{DurationSeconds: 600, SnapLength: 65535, Port: port, MaxPackets: 1 << 20}, out)
	var data []string
	for range 6000 { // each takes at least 768 bytes of the buffer, which has 2 MiB
		data = append(data, strings.Repeat("x", 1000))
	}
	send(t, host, podAddr, port, data...)
	must(t, host.Do(func(ns.NetNS) error {
		return netlink.LinkSetDown(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: hostVeth}})
	}))
	close(out.block)
	got, end := r.end(t)
	last := got.statistics[len(got.statistics)-1]
	if end != diagnostics.CaptureEndInterface || last.Dropped == 0 || last.Received <= uint64(len(got.packets)) {
		t.Errorf("got %d packets, statistics %+v, want dropped ones", len(got.packets), last)
	}
}

// The agent captures at interfaces of pods only.
func TestOpen_refuses(t *testing.T) {
	_, host := newPod(t)
	spec := diagnostics.CaptureSpec{}
	must(t, spec.Complete().ToAggregate())
	must(t, host.Do(func(ns.NetNS) error {
		for _, name := range []string{"lo", "", "eth0", "veth0123456789f", "tun0"} {
			if s, err := Open(Capture{HostVeth: name, Spec: spec}); err == nil {
				t.Errorf("%q: got %v, want an error", name, s)
			}
		}
		return nil
	}))
}

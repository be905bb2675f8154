package wire

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/await"
)

// newNetNS is a namespace of the test's own, with its loopback up.
func newNetNS(t *testing.T) NetNS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	path := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	made := make(chan error)
	go func() {
		// The thread ends with this goroutine, since it is in the wrong namespace.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- err
			return
		}
		made <- unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	n := NetNS(path)
	if err := n.Do(func() error {
		lo, err := netlinksafe.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPing(t *testing.T) {
	n := newNetNS(t)
	self := netip.MustParseAddr("127.0.0.1")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, e := range []Echo{{}, {Bytes: 1400, DontFragment: true}, {Bytes: 40000}} {
		if err := n.Ping(ctx, self, e); err != nil {
			t.Errorf("%+v: %v", e, err)
		}
	}
	if err := n.Ping(ctx, netip.MustParseAddr("192.0.2.1"), Echo{}); err == nil {
		t.Error("a ping to where no route leads was answered")
	}
}

func TestPingEvery(t *testing.T) {
	n := newNetNS(t)
	pings, err := n.PingEvery(t.Context(), time.Millisecond, netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	for pings.answers() < 20 {
		<-pings.progress
	}
	sent, lost, err := pings.Stop()
	if err != nil || len(lost) > 0 || sent < 20 {
		t.Errorf("sent %d, lost %v, error %v", sent, lost, err)
	}
}

// A ping that is answered again is a duplicate, and is found in frames.
func TestPingDuplicates(t *testing.T) {
	n := newNetNS(t)
	capture, err := n.Capture("lo", []byte{icmpEchoReply, 0})
	if err != nil {
		t.Fatal(err)
	}
	pings, err := n.PingEvery(t.Context(), time.Hour, netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	<-pings.progress
	var replies [][]byte
	await.OK(t, 30*time.Second, func(context.Context) error {
		replies = slices.DeleteFunc(capture.Frames(pings.socket.nonce[:]), func(f []byte) bool { return f[34] != icmpEchoReply })
		if len(replies) == 0 {
			return errors.New("no reply was captured")
		}
		return nil
	})
	if err := pings.socket.send(0, defaultEchoBytes); err != nil {
		t.Fatal(err)
	}
	<-pings.progress
	sent := slices.Clone(pings.sent)
	if _, _, err := pings.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := capture.Close(); err != nil {
		t.Fatal(err)
	}
	if got := pings.Duplicates(); !slices.Equal(got, sent) {
		t.Errorf("got duplicates of the requests sent at %v, want %v", got, sent)
	}
	if got := pings.In([][]byte{[]byte("another"), replies[0], replies[0][:len(replies[0])-60]}); !slices.Equal(got, sent) {
		t.Errorf("got requests sent at %v in the frames, want %v", got, sent)
	}
}

func TestCapture(t *testing.T) {
	n := newNetNS(t)
	capture, err := n.Capture("lo", []byte("marked"))
	if err != nil {
		t.Fatal(err)
	}
	inject, err := n.Inject("lo")
	if err != nil {
		t.Fatal(err)
	}
	defer inject.Close()
	from, to := netip.MustParseAddrPort("127.0.0.1:5"), netip.MustParseAddrPort("127.0.0.1:6")
	for _, payload := range []string{"unseen", "marked one", "marked two"} {
		if err := inject.Send(Ethernet(make([]byte, 6), make([]byte, 6), TypeIPv4, UDPPacket(from, to, []byte(payload)))); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.After(30 * time.Second); len(capture.Frames([]byte("marked two"))) == 0; {
		select {
		case <-deadline:
			t.Fatal("the frame does not arrive")
		case <-time.After(time.Millisecond):
		}
	}
	if err := capture.Close(); err != nil {
		t.Error(err)
	}
	if len(capture.Frames([]byte("marked one"))) == 0 || len(capture.Frames([]byte("unseen"))) != 0 {
		t.Errorf("captured %q", capture.Frames(nil))
	}
}

// A function sees the frames with the marker, in their order, and no capture holds them.
func TestWatch(t *testing.T) {
	n := newNetNS(t)
	from, to := netip.MustParseAddrPort("127.0.0.1:5"), netip.MustParseAddrPort("127.0.0.1:6")
	seen := make(chan string, 100)
	watch, err := n.Watch("lo", []byte("marked"), func(frame []byte) {
		_, text, _ := bytes.Cut(frame, []byte("marked "))
		seen <- string(text)
	})
	if err != nil {
		t.Fatal(err)
	}
	inject, err := n.Inject("lo")
	if err != nil {
		t.Fatal(err)
	}
	defer inject.Close()
	for _, payload := range []string{"marked one", "unseen", "marked two"} {
		if err := inject.Send(Ethernet(make([]byte, 6), make([]byte, 6), TypeIPv4, UDPPacket(from, to, []byte(payload)))); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for deadline := time.After(30 * time.Second); !slices.Contains(got, "two"); {
		select {
		case text := <-seen:
			got = append(got, text)
		case <-deadline:
			t.Fatalf("got %q, want one and two", got)
		}
	}
	if err := watch.Close(); err != nil {
		t.Error(err)
	}
	if slices.Contains(got, "") || got[0] != "one" {
		t.Errorf("got %q, want one before two, and no frame without the marker", got)
	}
	if frames := watch.Frames([]byte("marked")); len(frames) > 0 {
		t.Errorf("the capture holds %d frames, want 0", len(frames))
	}
}

// A full queue drops frames: Send reports it, Resend does not.
func TestInjector_full(t *testing.T) {
	n := newNetNS(t)
	err := n.Do(func() error {
		lo, err := netlinksafe.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.QdiscAdd(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Parent: netlink.HANDLE_ROOT}, Rate: 1, Limit: 1, Buffer: 1 << 30,
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	inject, err := n.Inject("lo")
	if err != nil {
		t.Fatal(err)
	}
	defer inject.Close()
	if err := inject.Send(make([]byte, 100)); !errors.Is(err, unix.ENOBUFS) {
		t.Errorf("Send: got error %v, want %v", err, unix.ENOBUFS)
	}
	if err := inject.Resend(make([]byte, 100)); err != nil {
		t.Errorf("Resend: got error %v, want none", err)
	}
}

package native_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

func newNative(t testing.TB, s *ovstest.Switch) *native.Native {
	n := patient(native.New(ovstest.Bridge, s.RunDir))
	t.Cleanup(n.Close)
	return n
}

// patient sets long timeouts, because other tests may share the machine.
func patient(n *native.Native) *native.Native {
	n.SetDialTimeout(time.Minute)
	n.SetUndoTimeout(time.Minute)
	native.SetTimeout(n, time.Minute)
	return n
}

func startNative(t testing.TB) (*ovstest.Switch, *native.Native) {
	s := ovstest.Start(t)
	n := newNative(t, s)
	must(t, n.EnsureBridge(t.Context(), bridge()))
	return s, n
}

func addVeths(t testing.TB, s *ovstest.Switch, names ...string) {
	t.Helper()
	must(t, s.NS.Do(func(ns.NetNS) error {
		for _, name := range names {
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "p" + name}); err != nil {
				return err
			}
		}
		return nil
	}))
}

func deleteLink(t testing.TB, s *ovstest.Switch, name string) {
	t.Helper()
	must(t, s.NS.Do(func(ns.NetNS) error {
		link, err := netlinksafe.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}))
}

// watch runs Watch until the test ends and returns its events.
func watch(t *testing.T, n *native.Native) <-chan native.Event {
	t.Helper()
	events := make(chan native.Event, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Watch(ctx, func(e native.Event) { events <- e })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return events
}

// watchFlows runs watch, and returns after Watch has reported a foreign change: it misses no event from now on.
func watchFlows(t *testing.T, s *ovstest.Switch, n *native.Native) <-chan native.Event {
	t.Helper()
	events := watch(t, n)
	poll(t, "the event of a foreign change", func() bool {
		s.OFCtl(t, "add-flow", ovstest.Bridge, "table=99,actions=drop")
		s.OFCtl(t, "del-flows", ovstest.Bridge, "table=99")
		return len(events) > 0
	})
	return events
}

// expect waits for an event that matches and ignores others.
func expect(t *testing.T, events <-chan native.Event, what string, match func(native.Event) bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e := <-events:
			if match(e) {
				return
			}
		case <-deadline:
			t.Fatalf("got no event in %v, want: %s", patience, what)
		}
	}
}

func kind(k native.EventKind) func(native.Event) bool {
	return func(e native.Event) bool { return e.Kind == k }
}

func portNumber(name string, number func(int) bool) func(native.Event) bool {
	return func(e native.Event) bool {
		return e.Kind == native.PortChanged && e.Port.Name == name && number(e.Port.OFPort)
	}
}

func TestNativeSeesItsOwnWrites(t *testing.T) {
	tier.Parallel(t)
	_, n := startNative(t)
	for i := range 50 {
		p := tun()
		p.ExternalIDs = map[string]string{"n": fmt.Sprint(i)}
		must1(t)(n.AddPort(t.Context(), p))
		wantPorts(t, backend{Interface: n}, p)
		must(t, n.DeletePort(t.Context(), p.Name))
		wantPorts(t, backend{Interface: n})
	}
}

func TestNativeSeesOthersWrites(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	must1(t)(n.AddPort(t.Context(), tun()))
	want := tun()
	want.MTURequest, want.MAC = 0, ""
	want.Options = map[string]string{"a": "1"}
	s.VSCtl(t, "clear", "interface", "tun0", "mtu_request", "mac", "--", "set", "interface", "tun0", "options:a=1")
	b := backend{Interface: n}
	poll(t, "the copy has the change", func() bool { return cmp.Equal([]ovs.Port{want}, listPorts(t, b)) })
	want.Options = nil
	s.VSCtl(t, "clear", "interface", "tun0", "options")
	poll(t, "the copy has the empty map", func() bool { return cmp.Equal([]ovs.Port{want}, listPorts(t, b)) })
	s.VSCtl(t, "del-port", "tun0")
	poll(t, "the port is deleted", func() bool { return len(listPorts(t, b)) == 0 })
}

func TestNativeWritesNothingWhenNothingDiffers(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	must1(t)(n.AddPort(t.Context(), tun()))
	next := func() string { return s.VSCtl(t, "get", "open_vswitch", ".", "next_cfg") }
	before := next()
	must(t, n.EnsureBridge(t.Context(), bridge()))
	must1(t)(n.AddPort(t.Context(), tun()))
	must(t, n.DeletePort(t.Context(), "no-such-port"))
	if after := next(); after != before {
		t.Errorf("got next_cfg %s, want %s (no write to OVSDB)", after, before)
	}
}

// Concurrent transactions reach the database while vswitchd is busy, so that one reconfiguration processes all of them.
func TestNativeAddsPortsTogether(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	const many = 16
	resume := s.PauseVSwitchd(t)
	var adds sync.WaitGroup
	for i := range many {
		adds.Go(func() {
			if _, err := n.AddPort(t.Context(), ovs.Port{Name: fmt.Sprint("int", i), Type: "internal"}); err != nil {
				t.Error(err)
			}
		})
	}
	poll(t, "all ports are in the database", func() bool { return len(listPorts(t, backend{Interface: n})) == many })
	resume()
	adds.Wait()
}

// Two clients may both add a port before each receives the update about the other's.
func TestNativeAddPort_twoClients(t *testing.T) {
	tier.Parallel(t)
	s, one := startNative(t)
	two := newNative(t, s)
	for i := range 20 {
		p := tun()
		p.OFPort = 0
		var both sync.WaitGroup
		for _, n := range []*native.Native{one, two} {
			both.Go(func() {
				if _, err := n.AddPort(t.Context(), p); err != nil {
					t.Errorf("round %d: got error %v, want none", i, err)
				}
			})
		}
		both.Wait()
		if got := strings.Fields(s.VSCtl(t, "list-ports", ovstest.Bridge)); len(got) != 1 {
			t.Errorf("round %d: got ports %v, want one", i, got)
		}
		must(t, one.DeletePort(t.Context(), p.Name))
	}
}

func TestNativeLeavesOtherBridgesAlone(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	s.VSCtl(t, "add-br", "other", "--", "set", "bridge", "other", "datapath_type=netdev", "--", "add-port", "other", "tun0", "--", "set", "interface", "tun0", "type=internal")
	poll(t, "the copy has the port", func() bool { _, err := n.AddPort(t.Context(), tun()); return err != nil })
	if err := n.DeletePort(t.Context(), "tun0"); err == nil {
		t.Error("DeletePort: got no error, want one")
	}
	if _, err := n.AddPort(t.Context(), ovs.Port{Name: "tun0"}); err == nil { // AddPort re-creates the port of a system device
		t.Error("AddPort: got no error, want one")
	}
	if got := strings.TrimSpace(s.VSCtl(t, "list-ports", "other")); got != "tun0" {
		t.Errorf("got ports %q of the other bridge, want tun0", got)
	}
}

// A restarted vswitchd assigns every port the number in the database, requested or not. A port whose device was
// missing at that time loses its number, and gets another one when the device returns.
func TestNativeReportsPortNumbers(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	events := watch(t, n)
	must1(t)(n.AddPort(t.Context(), vxlan()))
	must1(t)(n.AddPort(t.Context(), tun()))
	addVeths(t, s, "other", "first", "lost")
	other := must1(t)(n.AddPort(t.Context(), ovs.Port{Name: "other"}))
	must1(t)(n.AddPort(t.Context(), ovs.Port{Name: "first"}))
	lost := must1(t)(n.AddPort(t.Context(), ovs.Port{Name: "lost"}))
	internal := must1(t)(n.AddPort(t.Context(), ovs.Port{Name: "internal", Type: "internal"}))
	must(t, n.DeletePort(t.Context(), "first"))

	s.StopVSwitchd(t)
	deleteLink(t, s, "lost")
	s.StartVSwitchd(t)
	expect(t, events, "lost has no number", portNumber("lost", func(n int) bool { return n == -1 }))
	missing := lost
	missing.OFPort, missing.Error = -1, "could not open network device lost (No such device)"
	wantPorts(t, backend{Interface: n}, internal, missing, other, tun(), vxlan())

	addVeths(t, s, "lost")
	expect(t, events, "lost has another number", portNumber("lost", func(n int) bool { return n > 0 && n != lost.OFPort }))

	s.VSCtl(t, "set", "interface", "other", "ofport_request=77")
	expect(t, events, "other has the requested number", portNumber("other", func(n int) bool { return n == 77 }))

	s.VSCtl(t, "del-port", "other")
	expect(t, events, "other was deleted", portNumber("other", func(n int) bool { return n == 0 }))
	s.VSCtl(t, "del-br", ovstest.Bridge)
	expect(t, events, "tun0 was deleted with the bridge", portNumber("tun0", func(n int) bool { return n == 0 }))
}

func TestNativeReportsPortNumbers_changedWhileDisconnected(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	must1(t)(n.AddPort(t.Context(), tun()))
	must1(t)(n.AddPort(t.Context(), vxlan()))
	events := watch(t, n)
	s.StopVSwitchd(t)
	deleted := strings.TrimSpace(s.VSCtl(t, "get", "port", "vxlan0", "_uuid"))
	s.StopDB(t)
	out, err := s.Command(t.Context(), "ovsdb-tool", "transact", filepath.Join(s.RunDir, "conf.db"),
		`["Open_vSwitch",{"op":"update","table":"Interface","where":[["name","==","tun0"]],"row":{"ofport":77}},
			{"op":"mutate","table":"Bridge","where":[],"mutations":[["ports","delete",["uuid","`+deleted+`"]]]}]`).CombinedOutput()
	if err != nil {
		t.Fatalf("ovsdb-tool transact: %v\n%s", err, out)
	}
	s.StartDB(t)
	expect(t, events, "tun0 has another number", portNumber("tun0", func(n int) bool { return n == 77 }))
	expect(t, events, "vxlan0 was deleted", portNumber("vxlan0", func(n int) bool { return n == 0 }))
}

func TestNativeReconnectsToDatabase(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	must1(t)(n.AddPort(t.Context(), tun()))
	s.StopDB(t)
	poll(t, "calls fail", func() bool { _, err := n.ListPorts(t.Context()); return ovs.IsUnavailable(err) })
	if _, err := n.AddPort(t.Context(), vxlan()); !ovs.IsUnavailable(err) {
		t.Errorf("AddPort: got %v, want an unavailable error", err)
	}
	s.StartDB(t)
	wantPorts(t, backend{Interface: n}, tun()) // without Watch the call connects
	must1(t)(n.AddPort(t.Context(), vxlan()))

	events := watch(t, n)
	s.StopDB(t)
	s.StartDB(t)
	expect(t, events, "DatabaseConnected after the restart", kind(native.DatabaseConnected))
	wantPorts(t, backend{Interface: n}, tun(), vxlan())
}

func TestNativeHungDatabase(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	native.SetTimeout(n, 300*time.Millisecond)
	n.SetUndoTimeout(300 * time.Millisecond)
	resume := s.PauseDB(t)
	defer resume()
	if _, err := n.AddPort(t.Context(), tun()); !ovs.IsUnavailable(err) {
		t.Errorf("AddPort: got %v, want an unavailable error", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := n.AddPort(ctx, tun()); !errors.Is(err, context.DeadlineExceeded) || ovs.IsUnavailable(err) {
		t.Errorf("AddPort with the caller's deadline: got %v, want context.DeadlineExceeded", err)
	}
	// The kernel accepts a new connection, but the server does not answer.
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := newNative(t, s).ListPorts(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("first call: got %v, want context.DeadlineExceeded", err)
	}
}

func TestNativeCloseEndsCalls(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	resume := s.PauseDB(t)
	defer resume()
	result := make(chan error)
	go func() { result <- n.DeletePort(t.Context(), ovstest.Bridge+"x") }()
	must(t, <-result) // the copy has no such port
	go func() {
		_, err := n.AddPort(t.Context(), tun())
		result <- err
	}()
	events := make(chan struct{})
	go func() { n.Watch(t.Context(), func(native.Event) {}); close(events) }()
	n.Close()
	if err := <-result; err == nil || ovs.IsPortError(err) {
		t.Errorf("AddPort: got %v, want an error of the closed connection", err)
	}
	if _, err := n.ListPorts(t.Context()); err == nil {
		t.Error("ListPorts after Close: got no error, want one")
	}
	<-events
	n.Close()
}

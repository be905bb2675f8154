package ovs_test

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
	"github.com/ovsdn/ovsdn/test/ovstest"
)

func newNative(t testing.TB, s *ovstest.Switch) *ovs.Native {
	n := patient(ovs.NewNative(ovstest.Bridge, s.RunDir))
	t.Cleanup(n.Close)
	return n
}

// patient lets the backend wait as long as a slow machine, shared with other tests, may need.
func patient(n *ovs.Native) *ovs.Native {
	n.SetDialTimeout(time.Minute)
	n.SetUndoTimeout(time.Minute)
	ovs.SetTimeout(n, time.Minute)
	return n
}

func startNative(t testing.TB) (*ovstest.Switch, *ovs.Native) {
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

// watch returns the events to come. It returns once the connections are there.
func watch(t *testing.T, n *ovs.Native) <-chan ovs.Event {
	t.Helper()
	events := make(chan ovs.Event, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Watch(ctx, func(e ovs.Event) { events <- e })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return events
}

// expect waits for the event; others in between do not matter.
func expect(t *testing.T, events <-chan ovs.Event, what string, match func(ovs.Event) bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e := <-events:
			if match(e) {
				return
			}
		case <-deadline:
			t.Fatalf("no event: %s", what)
		}
	}
}

func kind(k ovs.EventKind) func(ovs.Event) bool {
	return func(e ovs.Event) bool { return e.Kind == k }
}

func portGot(name string, number func(int) bool) func(ovs.Event) bool {
	return func(e ovs.Event) bool {
		return e.Kind == ovs.PortChanged && e.Port.Name == name && number(e.Port.OFPort)
	}
}

func TestNativeSeesItsOwnWrites(t *testing.T) {
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
	s, n := startNative(t)
	must1(t)(n.AddPort(t.Context(), tun()))
	want := tun()
	want.MTURequest, want.MAC = 0, ""
	want.Options = map[string]string{"a": "1"}
	s.VSCtl(t, "clear", "interface", "tun0", "mtu_request", "mac", "--", "set", "interface", "tun0", "options:a=1")
	b := backend{Interface: n}
	poll(t, "the change is seen", func() bool { return cmp.Equal([]ovs.Port{want}, listPorts(t, b)) })
	want.Options = nil
	s.VSCtl(t, "clear", "interface", "tun0", "options")
	poll(t, "the empty map is seen", func() bool { return cmp.Equal([]ovs.Port{want}, listPorts(t, b)) })
	s.VSCtl(t, "del-port", "tun0")
	poll(t, "the port is gone", func() bool { return len(listPorts(t, b)) == 0 })
}

func TestNativeWritesNothingWhenNothingDiffers(t *testing.T) {
	s, n := startNative(t)
	must1(t)(n.AddPort(t.Context(), tun()))
	next := func() string { return s.VSCtl(t, "get", "open_vswitch", ".", "next_cfg") }
	before := next()
	must(t, n.EnsureBridge(t.Context(), bridge()))
	must1(t)(n.AddPort(t.Context(), tun()))
	must(t, n.DeletePort(t.Context(), "no-such-port"))
	if after := next(); after != before {
		t.Errorf("next_cfg %s → %s", before, after)
	}
}

// Transactions of many callers reach the database while vswitchd is at work, so that one reconfiguration serves them all.
func TestNativeAddsPortsTogether(t *testing.T) {
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
	poll(t, "all are in the database", func() bool { return len(listPorts(t, backend{Interface: n})) == many })
	resume()
	adds.Wait()
}

// Two agents do not know of each other's port until the database says so.
func TestNativeCorrectsADuplicate(t *testing.T) {
	s, one := startNative(t)
	two := newNative(t, s)
	for i := range 20 {
		p := tun()
		p.OFPort = 0
		var both sync.WaitGroup
		for _, n := range []*ovs.Native{one, two} {
			both.Go(func() {
				if _, err := n.AddPort(t.Context(), p); err != nil {
					t.Errorf("round %d: %v", i, err)
				}
			})
		}
		both.Wait()
		if got := strings.Fields(s.VSCtl(t, "list-ports", ovstest.Bridge)); len(got) != 1 {
			t.Errorf("round %d: ports %v", i, got)
		}
		must(t, one.DeletePort(t.Context(), p.Name))
	}
}

func TestNativeLeavesOtherBridgesAlone(t *testing.T) {
	s, n := startNative(t)
	s.VSCtl(t, "add-br", "other", "--", "set", "bridge", "other", "datapath_type=netdev", "--", "add-port", "other", "tun0", "--", "set", "interface", "tun0", "type=internal")
	poll(t, "the port is seen", func() bool { _, err := n.AddPort(t.Context(), tun()); return err != nil })
	if err := n.DeletePort(t.Context(), "tun0"); err == nil {
		t.Error("DeletePort: no error")
	}
	if _, err := n.AddPort(t.Context(), ovs.Port{Name: "tun0"}); err == nil { // a system device is made anew
		t.Error("AddPort: no error")
	}
	if got := strings.TrimSpace(s.VSCtl(t, "list-ports", "other")); got != "tun0" {
		t.Errorf("ports of the other bridge: %q", got)
	}
}

// A restarted vswitchd gives every port the number that the database has for it, asked for or not. A port whose device was
// missing at that time has lost its number, and gets another when the device comes.
func TestNativeTellsOfNumbers(t *testing.T) {
	s, n := startNative(t)
	events := watch(t, n)
	must1(t)(n.AddPort(t.Context(), vxlan()))
	must1(t)(n.AddPort(t.Context(), tun()))
	addVeths(t, s, "kept", "first", "lost")
	kept := must1(t)(n.AddPort(t.Context(), ovs.Port{Name: "kept"}))
	must1(t)(n.AddPort(t.Context(), ovs.Port{Name: "first"}))
	lost := must1(t)(n.AddPort(t.Context(), ovs.Port{Name: "lost"}))
	internal := must1(t)(n.AddPort(t.Context(), ovs.Port{Name: "internal", Type: "internal"}))
	must(t, n.DeletePort(t.Context(), "first"))

	s.StopVSwitchd(t)
	deleteLink(t, s, "lost")
	s.StartVSwitchd(t)
	expect(t, events, "lost has no number", portGot("lost", func(n int) bool { return n == -1 }))
	missing := lost
	missing.OFPort, missing.Error = -1, "could not open network device lost (No such device)"
	wantPorts(t, backend{Interface: n}, internal, kept, missing, tun(), vxlan())

	addVeths(t, s, "lost")
	expect(t, events, "lost has another number", portGot("lost", func(n int) bool { return n > 0 && n != lost.OFPort }))

	s.VSCtl(t, "set", "interface", "kept", "ofport_request=77")
	expect(t, events, "kept got the number that somebody asked for", portGot("kept", func(n int) bool { return n == 77 }))

	s.VSCtl(t, "del-port", "kept")
	expect(t, events, "kept went", portGot("kept", func(n int) bool { return n == 0 }))
	s.VSCtl(t, "del-br", ovstest.Bridge)
	expect(t, events, "tun0 went with the bridge", portGot("tun0", func(n int) bool { return n == 0 }))
}

func TestNativeTellsOfNumbersThatChangedUnseen(t *testing.T) {
	s, n := startNative(t)
	must1(t)(n.AddPort(t.Context(), tun()))
	must1(t)(n.AddPort(t.Context(), vxlan()))
	events := watch(t, n)
	s.StopVSwitchd(t)
	gone := strings.TrimSpace(s.VSCtl(t, "get", "port", "vxlan0", "_uuid"))
	s.StopDB(t)
	out, err := s.Command(t.Context(), "ovsdb-tool", "transact", filepath.Join(s.RunDir, "conf.db"),
		`["Open_vSwitch",{"op":"update","table":"Interface","where":[["name","==","tun0"]],"row":{"ofport":77}},
			{"op":"mutate","table":"Bridge","where":[],"mutations":[["ports","delete",["uuid","`+gone+`"]]]}]`).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.StartDB(t)
	expect(t, events, "tun0 has another number", portGot("tun0", func(n int) bool { return n == 77 }))
	expect(t, events, "vxlan0 is gone", portGot("vxlan0", func(n int) bool { return n == 0 }))
}

func TestNativeOutlivesTheDatabase(t *testing.T) {
	s, n := startNative(t)
	must1(t)(n.AddPort(t.Context(), tun()))
	s.StopDB(t)
	poll(t, "the loss is noticed", func() bool { _, err := n.ListPorts(t.Context()); return ovs.IsUnavailable(err) })
	if _, err := n.AddPort(t.Context(), vxlan()); !ovs.IsUnavailable(err) {
		t.Errorf("AddPort: got %v", err)
	}
	s.StartDB(t)
	wantPorts(t, backend{Interface: n}, tun()) // nobody watches: the call connects
	must1(t)(n.AddPort(t.Context(), vxlan()))

	events := watch(t, n)
	s.StopDB(t)
	s.StartDB(t)
	expect(t, events, "the database is back", kind(ovs.DatabaseConnected))
	wantPorts(t, backend{Interface: n}, tun(), vxlan())
}

func TestNativeWithAHungDatabase(t *testing.T) {
	s, n := startNative(t)
	ovs.SetTimeout(n, 300*time.Millisecond)
	n.SetUndoTimeout(300 * time.Millisecond)
	resume := s.PauseDB(t)
	defer resume()
	if _, err := n.AddPort(t.Context(), tun()); !ovs.IsUnavailable(err) {
		t.Errorf("AddPort: got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := n.AddPort(ctx, tun()); !errors.Is(err, context.DeadlineExceeded) || ovs.IsUnavailable(err) {
		t.Errorf("AddPort until the caller's deadline: got %v", err)
	}
	// A new connection is accepted, and not answered.
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := newNative(t, s).ListPorts(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the first call: got %v", err)
	}
}

func TestNativeCloseEndsCalls(t *testing.T) {
	s, n := startNative(t)
	resume := s.PauseDB(t)
	defer resume()
	result := make(chan error)
	go func() { result <- n.DeletePort(t.Context(), ovstest.Bridge+"x") }()
	must(t, <-result) // it is not there, says the copy
	go func() {
		_, err := n.AddPort(t.Context(), tun())
		result <- err
	}()
	events := make(chan struct{})
	go func() { n.Watch(t.Context(), func(ovs.Event) {}); close(events) }()
	n.Close()
	if err := <-result; err == nil || ovs.IsPortError(err) {
		t.Errorf("AddPort: got %v", err)
	}
	if _, err := n.ListPorts(t.Context()); err == nil {
		t.Error("ListPorts after Close: no error")
	}
	<-events
	n.Close()
}

package native_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// script is the behaviour of a simulated switch, for cases that are rare with Open vSwitch. It is called with each message and
// returns the answers, and whether to continue the connection.
type script func(m openflow.Message) (answers []openflow.Message, goOn bool)

// emptySwitch is the script of a switch without flows.
func emptySwitch(m openflow.Message) ([]openflow.Message, bool) {
	switch m := m.(type) {
	case *openflow.Hello:
		return []openflow.Message{&openflow.Hello{Versions: openflow.Versions(openflow.Version14)}}, true
	case *openflow.DescRequest:
		return []openflow.Message{&openflow.DescReply{Software: "3.1.0"}}, true
	case *openflow.BarrierRequest:
		return []openflow.Message{&openflow.BarrierReply{}}, true
	case *openflow.FlowStatsRequest:
		return []openflow.Message{&openflow.FlowStatsReply{}}, true
	case *openflow.BundleControl:
		return []openflow.Message{&openflow.BundleControl{ID: m.ID, Step: m.Step + 1, Flags: m.Flags}}, true
	}
	return nil, true
}

// playSwitch returns a backend that connects to a switch with the script, which has one connection at a time. When stop returns, the script
// has ended.
func playSwitch(t *testing.T, play script) (n *native.Native, stop func()) {
	t.Helper()
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, ovstest.Bridge+".mgmt"))
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serve(conn, play)
		}
	}()
	n = patient(native.New(ovstest.Bridge, dir))
	stop = func() {
		n.Close()
		listener.Close() // an error means that it is closed
		<-done
	}
	t.Cleanup(stop)
	return n, stop
}

func serve(conn net.Conn, play script) {
	defer conn.Close()
	input := ovstest.NewReader(conn)
	for {
		header, b, err := ovstest.ReadMessage(input)
		if err != nil {
			return
		}
		_, m, err := openflow.Decode(b)
		if err != nil {
			return
		}
		answers, goOn := play(m)
		for _, a := range answers {
			b, err := openflow.Append(nil, header.XID, a)
			if err != nil {
				return
			}
			if _, err := conn.Write(b); err != nil {
				return
			}
		}
		if !goOn {
			return
		}
	}
}

func addOne(n *native.Native) *ovs.Transaction {
	tx := n.NewTransaction()
	tx.Add(flow(0, 1, "10.0.0.1/32", goovs.Drop()))
	return tx
}

func TestNativeReportsTooOldSwitch(t *testing.T) {
	n, _ := playSwitch(t, func(m openflow.Message) ([]openflow.Message, bool) {
		if _, ok := m.(*openflow.DescRequest); ok {
			return []openflow.Message{&openflow.DescReply{Software: "2.17.9"}}, true
		}
		return emptySwitch(m)
	})
	err := n.Run(t.Context(), addOne(n))
	if !ovs.IsTooOld(err) || !strings.Contains(err.Error(), "2.17.9") || !strings.Contains(err.Error(), "3.1") {
		t.Errorf("got %v, want a too old error with 2.17.9 and 3.1", err)
	}
}

func TestNativeReportsDisabledVersion(t *testing.T) {
	for name, answer := range map[string]openflow.Message{
		"older hello": &openflow.Hello{Versions: openflow.Versions(openflow.Version10, openflow.Version13)},
		"error":       &openflow.Error{Type: openflow.ErrorHelloFailed},
	} {
		n, _ := playSwitch(t, func(openflow.Message) ([]openflow.Message, bool) { return []openflow.Message{answer}, true })
		if err := n.Run(t.Context(), addOne(n)); err == nil || !strings.Contains(err.Error(), "OpenFlow 1.4") || !strings.Contains(err.Error(), "protocols") {
			t.Errorf("%s: got %v, want an error with OpenFlow 1.4 and the column protocols", name, err)
		}
	}
}

// bundles records the steps of bundles and counts their changes.
type bundles struct {
	seen  []openflow.BundleStep
	added int
}

// play returns the script of an empty switch with another answer to changes. It is called with the number of changes so far.
func (b *bundles) play(answer func(added int) (openflow.Message, bool)) script {
	return func(m openflow.Message) ([]openflow.Message, bool) {
		switch m := m.(type) {
		case *openflow.BundleControl:
			b.seen = append(b.seen, m.Step)
		case *openflow.BundleAdd:
			b.added++
			if a, goOn := answer(b.added); !goOn {
				return nil, false
			} else if a != nil {
				return []openflow.Message{a}, true
			}
		}
		return emptySwitch(m)
	}
}

func (b *bundles) committed() bool { return slices.Contains(b.seen, openflow.BundleCommit) }

func fiveFlows(n *native.Native) *ovs.Transaction {
	tx := n.NewTransaction()
	for i := range 5 {
		tx.Add(flow(0, 1, fmt.Sprintf("10.0.0.%d/32", i+1), goovs.Drop()))
	}
	return tx
}

// A bundle must not be committed if one of its messages was rejected or not sent.
func TestNativeCommitsCompleteBundlesOnly(t *testing.T) {
	t.Run("rejected", func(t *testing.T) {
		var b bundles
		n, stop := playSwitch(t, b.play(func(added int) (openflow.Message, bool) {
			if added == 3 {
				return &openflow.Error{Type: openflow.ErrorBadAction, Code: 4}, true
			}
			return nil, true
		}))
		wantFlowError(t, "third", n.Run(t.Context(), fiveFlows(n)), flow(0, 1, "10.0.0.3/32", goovs.Drop()))
		must(t, n.Run(t.Context(), n.NewTransaction()))
		stop()
		if b.committed() {
			t.Errorf("got steps %v, want no commit", b.seen)
		}
	})
	t.Run("connection ends", func(t *testing.T) {
		var b bundles
		n, stop := playSwitch(t, b.play(func(added int) (openflow.Message, bool) { return nil, added < 3 }))
		if err := n.Run(t.Context(), fiveFlows(n)); !ovs.IsUnavailable(err) {
			t.Errorf("got %v, want an unavailable error", err)
		}
		stop()
		if b.committed() {
			t.Errorf("got steps %v, want no commit", b.seen)
		}
	})
	t.Run("context ends", func(t *testing.T) {
		var b bundles
		ctx, cancel := context.WithCancel(t.Context())
		n, stop := playSwitch(t, b.play(func(added int) (openflow.Message, bool) {
			if added == 3 {
				cancel()
			}
			return nil, added < 3
		}))
		if err := n.Run(ctx, fiveFlows(n)); !errors.Is(err, context.Canceled) || ovs.IsUnavailable(err) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		stop()
		if b.committed() {
			t.Errorf("got steps %v, want no commit", b.seen)
		}
	})
	t.Run("no difference", func(t *testing.T) {
		var b bundles
		n, stop := playSwitch(t, b.play(func(int) (openflow.Message, bool) { return nil, true }))
		must(t, replace(t, n, nil))
		stop()
		if len(b.seen) > 0 || b.added > 0 {
			t.Errorf("got %d changes and steps %v, want none", b.added, b.seen)
		}
	})
}

// An error of the commit has the XID of the change, and arrives after the barrier reply of the changes.
func TestNativeReportsFlowThatFailsInCommit(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	s.OFCtl(t, "add-flow", ovstest.Bridge, "table=5,priority=1,actions=drop")
	s.VSCtl(t, "--", "--id=@t", "create", "Flow_Table", "flow_limit=2", "overflow_policy=refuse", "name=five", "--", "set", "bridge", ovstest.Bridge, "flow_tables:5=@t")
	tx := n.NewTransaction()
	tx.Add(flow(5, 2, "10.0.0.1/32", goovs.Drop()))
	full := flow(5, 2, "10.0.0.2/32", goovs.Drop())
	tx.Add(full)
	tx.Add(flow(6, 2, "10.0.0.3/32", goovs.Drop()))
	wantFlowError(t, "table full", n.Run(t.Context(), tx), full)
	if got := s.Dump(t); len(got) != 1 {
		t.Errorf("got flows %v, want only the previous one", got)
	}
}

// A switch that stops reading while its output is not read must not cause a deadlock.
func TestNativeReadsWhileItWrites(t *testing.T) {
	n, _ := playSwitch(t, func(m openflow.Message) ([]openflow.Message, bool) {
		if _, ok := m.(*openflow.BundleAdd); ok {
			return []openflow.Message{&openflow.EchoRequest{Data: make([]byte, 1000)}}, true
		}
		return emptySwitch(m)
	})
	must(t, replace(t, n, manyFlows(5000)))
}

// Foreign flows with unsupported matches and actions are dumped and deleted.
func TestNativeReplacesForeignFlows(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	for _, f := range []string{
		"table=3,priority=7,tun_gbp_id=5,actions=drop",
		"table=4,priority=8,actions=multipath(symmetric_l4,1024,modulo_n,4,0,NXM_NX_REG6[])",
		"table=5,priority=9,mpls,mpls_label=5,actions=pop_mpls:0x0800,clone(output:5)",
		"table=6,priority=9,hard_timeout=500,importance=3,send_flow_rem,tcp,actions=output:4",
	} {
		s.OFCtl(t, "add-flow", ovstest.Bridge, f)
	}
	flows, err := n.DumpFlows(t.Context())
	must(t, err)
	if len(flows) != 4 {
		t.Errorf("got flows %v, want 4", flows)
	}
	must(t, replace(t, n, manyFlows(3)))
	if diff := s.Diff(t, manyFlows(3)); diff != "" {
		t.Errorf("flows (-want +got):\n%s", diff)
	}
}

func TestNativeDumpFlows(t *testing.T) {
	tier.Parallel(t)
	_, n := startNative(t)
	want := map[ovs.Key]string{}
	flows := append(manyFlows(7), longFlow(goovs.Drop()))
	flows[0].IdleTimeout = 300
	for _, f := range flows {
		key, err := ovs.FlowKey(f)
		must(t, err)
		want[key], err = ovs.FlowText(f)
		must(t, err)
	}
	must(t, replace(t, n, flows))
	got, err := n.DumpFlows(t.Context())
	must(t, err)
	for _, f := range got {
		if want[f.Key] != f.Text || f.Cookie != flows[0].Cookie && f.Cookie != longFlow().Cookie {
			t.Errorf("%q: got %s, want %s", f.Key, f.Text, want[f.Key])
		}
		delete(want, f.Key)
	}
	for _, text := range want {
		t.Errorf("flow missing from the dump: %s", text)
	}
}

// The result of ReplaceIn belongs to one session: a restarted vswitchd has no flows.
func TestReplaceInReturnsSession(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	watch(t, n) // reconnects
	want := ovs.State{Flows: []*ovs.Flow{flow(0, 1, "10.0.0.1/32", goovs.Drop())}}
	for changes := range 2 { // the second call changes nothing
		if found, session, err := n.ReplaceIn(t.Context(), want); err != nil || session != n.Session() || (found.Changes() == 0) != (changes == 1) {
			t.Errorf("call %d: got difference %+v, session %d, error %v, want session %d", changes, found, session, err, n.Session())
		}
	}
	before := n.Session()
	s.StopVSwitchd(t)
	s.StartVSwitchd(t)
	poll(t, "vswitchd is connected in another session", func() bool { return n.Session() != before })
	if _, session, err := n.ReplaceIn(t.Context(), want); err != nil || session != n.Session() {
		t.Errorf("got session %d, error %v, want session %d", session, err, n.Session())
	}
}

// Each wait for vswitchd takes up to one iteration of its main loop. Meters that are added or deleted need no additional wait, and no meter
// is read.
func TestNativeWaitsTwice_metersAddedAndDeleted(t *testing.T) {
	var sent []string
	n, stop := playSwitch(t, func(m openflow.Message) ([]openflow.Message, bool) {
		switch m := m.(type) {
		case *openflow.BarrierRequest:
			sent = append(sent, "barrier")
		case *openflow.MeterConfigRequest:
			sent = append(sent, fmt.Sprintf("configuration of meter %d", m.Meter))
		case *openflow.MeterMod:
			if m.Command == openflow.MeterAdd {
				sent = nil // ignore the start of the session
			}
			sent = append(sent, fmt.Sprintf("meter %d, command %d", m.Meter.ID, m.Command))
		}
		return emptySwitch(m)
	})
	tx := addOne(n)
	tx.SetMeter(ovs.Meter{ID: 7, Unit: ovs.Packets, Rate: 10})
	tx.DeleteMeter(8)
	must(t, n.Run(t.Context(), tx))
	must(t, n.Run(t.Context(), addOne(n))) // processed after the deletion
	stop()
	want := []string{
		fmt.Sprintf("meter 7, command %d", openflow.MeterAdd), "barrier", // after the steps of the bundle
		"barrier", // after its commit
		fmt.Sprintf("meter 8, command %d", openflow.MeterDelete), "barrier", // not waited for
		"barrier", "barrier", // of the next transaction
	}
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("messages about meters and barriers (-want +got):\n%s", diff)
	}
}

// The meters that are set before a bundle are restored if a message of the bundle cannot be encoded.
func TestNativeRestoresMeters_unsendableFlow(t *testing.T) {
	tier.Parallel(t)
	s := ovstest.Start(t)
	b := newNative(t, s)
	must(t, b.EnsureBridge(t.Context(), bridge()))
	old := ovs.Meter{ID: 5, Unit: ovs.Packets, Rate: 10}
	tx := b.NewTransaction()
	tx.SetMeter(old)
	must(t, b.Run(t.Context(), tx))
	tx = b.NewTransaction()
	tx.SetMeter(ovs.Meter{ID: 5, Unit: ovs.Packets, Rate: 20})
	tx.SetMeter(ovs.Meter{ID: 6, Unit: ovs.Packets, Rate: 20})
	for i := range 2000 { // more than one write
		tx.Add(flow(0, 1, fmt.Sprintf("10.0.%d.%d/32", i/256, i%256), goovs.Drop()))
	}
	long := make([]ovs.Action, 5000)
	for i := range long {
		long[i] = goovs.Output(i + 1)
	}
	tx.Add(flow(0, 2, "10.0.0.1/32", long...))
	if err := b.Run(t.Context(), tx); err == nil {
		t.Fatal("flow longer than a message: got no error, want one")
	}
	text := s.OFCtl(t, "dump-meters", ovstest.Bridge)
	if !strings.Contains(text, "meter=5 ") || !strings.Contains(text, "rate=10") || strings.Contains(text, "meter=6") {
		t.Errorf("got meters %s, want only meter 5 with rate 10", text)
	}
}

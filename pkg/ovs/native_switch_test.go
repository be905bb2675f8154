package ovs_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// script is a switch that answers as a test wants, for what a real one does seldom. It is given each message and
// returns the answers; false ends the connection.
type script func(m openflow.Message) (answers []openflow.Message, goOn bool)

// polite answers as an empty switch.
func polite(m openflow.Message) ([]openflow.Message, bool) {
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

// playSwitch returns a backend that talks to the script, one connection after the other. When stop returns, the script has
// ended.
func playSwitch(t *testing.T, play script) (n *ovs.Native, stop func()) {
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
	n = patient(ovs.NewNative(ovstest.Bridge, dir))
	stop = func() {
		n.Close()
		listener.Close() // fails the second time
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
			b, err := openflow.Append(nil, openflow.Version14, header.XID, a)
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

func addOne(n *ovs.Native) *ovs.Transaction {
	tx := n.NewTransaction()
	tx.Add(flow(0, 1, "10.0.0.1/32", goovs.Drop()))
	return tx
}

func TestNativeSaysThatTheSwitchIsTooOld(t *testing.T) {
	n, _ := playSwitch(t, func(m openflow.Message) ([]openflow.Message, bool) {
		if _, ok := m.(*openflow.DescRequest); ok {
			return []openflow.Message{&openflow.DescReply{Software: "2.17.9"}}, true
		}
		return polite(m)
	})
	err := n.Run(t.Context(), addOne(n))
	if !ovs.IsTooOld(err) || !strings.Contains(err.Error(), "2.17.9") || !strings.Contains(err.Error(), "3.1") {
		t.Errorf("got %v", err)
	}
}

func TestNativeSaysThatTheVersionIsNotEnabled(t *testing.T) {
	for name, answer := range map[string]openflow.Message{
		"older hello": &openflow.Hello{Versions: openflow.Versions(openflow.Version10, openflow.Version13)},
		"error":       &openflow.Error{Type: openflow.ErrorHelloFailed},
	} {
		n, _ := playSwitch(t, func(openflow.Message) ([]openflow.Message, bool) { return []openflow.Message{answer}, true })
		if err := n.Run(t.Context(), addOne(n)); err == nil || !strings.Contains(err.Error(), "OpenFlow 1.4") || !strings.Contains(err.Error(), "protocols") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Nothing may be committed when a part of a bundle was refused or never sent.
func TestNativeCommitsWholeBundlesOnly(t *testing.T) {
	var seen []openflow.BundleStep
	var added int
	play := func(answer func(added int) (openflow.Message, bool)) script {
		seen, added = nil, 0
		return func(m openflow.Message) ([]openflow.Message, bool) {
			switch m := m.(type) {
			case *openflow.BundleControl:
				seen = append(seen, m.Step)
			case *openflow.BundleAdd:
				added++
				if a, goOn := answer(added); !goOn {
					return nil, false
				} else if a != nil {
					return []openflow.Message{a}, true
				}
			}
			return polite(m)
		}
	}
	committed := func() bool {
		for _, s := range seen {
			if s == openflow.BundleCommit {
				return true
			}
		}
		return false
	}
	third := flow(0, 1, "10.0.0.3/32", goovs.Drop())
	five := func(n *ovs.Native) *ovs.Transaction {
		tx := n.NewTransaction()
		for i := range 5 {
			tx.Add(flow(0, 1, fmt.Sprintf("10.0.0.%d/32", i+1), goovs.Drop()))
		}
		return tx
	}
	t.Run("refused", func(t *testing.T) {
		n, stop := playSwitch(t, play(func(added int) (openflow.Message, bool) {
			if added == 3 {
				return &openflow.Error{Type: openflow.ErrorBadAction, Code: 4}, true
			}
			return nil, true
		}))
		wantFlowError(t, "third", n.Run(t.Context(), five(n)), third)
		must(t, n.Run(t.Context(), n.NewTransaction()))
		stop()
		if committed() {
			t.Errorf("steps %v", seen)
		}
	})
	t.Run("the connection ends", func(t *testing.T) {
		n, stop := playSwitch(t, play(func(added int) (openflow.Message, bool) { return nil, added < 3 }))
		if err := n.Run(t.Context(), five(n)); !ovs.IsUnavailable(err) {
			t.Errorf("got %v", err)
		}
		stop()
		if committed() {
			t.Errorf("steps %v", seen)
		}
	})
	t.Run("the context ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n, stop := playSwitch(t, play(func(added int) (openflow.Message, bool) {
			if added == 3 {
				cancel()
			}
			return nil, added < 3
		}))
		if err := n.Run(ctx, five(n)); !errors.Is(err, context.Canceled) || ovs.IsUnavailable(err) {
			t.Errorf("got %v", err)
		}
		stop()
		if committed() {
			t.Errorf("steps %v", seen)
		}
	})
	t.Run("nothing to commit", func(t *testing.T) {
		n, stop := playSwitch(t, play(func(int) (openflow.Message, bool) { return nil, true }))
		must(t, replace(t, n, nil))
		stop()
		if len(seen) > 0 || added > 0 {
			t.Errorf("%d changes, steps %v", added, seen)
		}
	})
}

// A commit's error comes with the XID of the change, behind the barrier of the changes.
func TestNativeNamesTheFlowThatFailsInTheCommit(t *testing.T) {
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
		t.Errorf("flows: %v", got)
	}
}

// A switch that stops reading while its answers wait must not bring both sides to a halt.
func TestNativeReadsWhileItWrites(t *testing.T) {
	n, _ := playSwitch(t, func(m openflow.Message) ([]openflow.Message, bool) {
		if _, ok := m.(*openflow.BundleAdd); ok {
			return []openflow.Message{&openflow.EchoRequest{Data: make([]byte, 1000)}}, true
		}
		return polite(m)
	})
	must(t, replace(t, n, manyFlows(5000)))
}

func TestNativeTellsOfARestartedSwitch(t *testing.T) {
	s, n := startNative(t)
	must(t, replace(t, n, manyFlows(10)))
	events := watch(t, n)
	s.StopVSwitchd(t)
	s.StartVSwitchd(t)
	expect(t, events, "vswitchd is back", kind(ovs.SwitchConnected))
	must(t, replace(t, n, manyFlows(10)))
	if diff := s.Diff(t, manyFlows(10)); diff != "" {
		t.Error(diff)
	}
}

// Flows that this project never makes are dumped and deleted like others.
func TestNativeReplacesForeignFlows(t *testing.T) {
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
		t.Errorf("flows: %v", flows)
	}
	must(t, replace(t, n, manyFlows(3)))
	if diff := s.Diff(t, manyFlows(3)); diff != "" {
		t.Error(diff)
	}
}

func TestNativeDumpFlows(t *testing.T) {
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
			t.Errorf("got  %q %s\nwant %s", f.Key, f.Text, want[f.Key])
		}
		delete(want, f.Key)
	}
	for _, text := range want {
		t.Errorf("missing: %s", text)
	}
}

// A vswitchd that starts anew has no flows, though the one before had them all.
func TestReplaceTellsWhichSessionItWasIn(t *testing.T) {
	s, n := startNative(t)
	watch(t, n) // connects again
	want := ovs.State{Flows: []*ovs.Flow{flow(0, 1, "10.0.0.1/32", goovs.Drop())}}
	for changes := range 2 { // the second finds all there
		if found, session, err := n.ReplaceIn(t.Context(), want); err != nil || session != n.Session() || (found.Changes() == 0) != (changes == 1) {
			t.Errorf("%+v in session %d of %d: %v", found, session, n.Session(), err)
		}
	}
	before := n.Session()
	s.StopVSwitchd(t)
	s.StartVSwitchd(t)
	poll(t, "vswitchd is back in another session", func() bool { return n.Session() != before })
	if _, session, err := n.ReplaceIn(t.Context(), want); err != nil || session != n.Session() {
		t.Errorf("in session %d of %d: %v", session, n.Session(), err)
	}
}

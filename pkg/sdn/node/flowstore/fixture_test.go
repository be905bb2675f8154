package flowstore

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	testawait "github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) {
	testawait.VerifyTestMain(m)
}

func pod(name string) pipeline.Owner {
	return pipeline.Owner{Kind: pipeline.KindPod, Key: name}
}

// flow matches the n-th address.
func flow(n int, actions ...ovs.Action) *ovs.Flow {
	source := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 32)
	return &ovs.Flow{Table: 20, Priority: 100, Protocol: goovs.ProtocolIPv4, Matches: []ovs.Match{ovs.IPSource(source)}, Actions: actions}
}

func flows(fs ...*ovs.Flow) pipeline.State {
	return pipeline.State{Flows: fs}
}

// text returns the flow as the switch prints it.
func text(t testing.TB, cookie uint64, f *ovs.Flow) string {
	t.Helper()
	with := *f
	with.Cookie = cookie
	s, err := ovs.FlowText(&with)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newFake(t testing.TB) *ovs.Fake {
	t.Helper()
	f := ovs.NewFake("br0")
	if err := f.EnsureBridge(context.Background(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	return f
}

// start runs the store's writer until the test ends.
func start(t *testing.T, bridge ovs.Interface) *Store {
	t.Helper()
	s := New(bridge)
	s.backoff = wait.Backoff{Duration: time.Millisecond, Factor: 2, Steps: 5, Cap: 20 * time.Millisecond}
	run(t, s)
	return s
}

// run runs the writer; the returned function ends it.
func run(t *testing.T, s *Store) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	ended := false
	stop = func() {
		cancel()
		if ended {
			return
		}
		ended = true
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func await(t *testing.T, c *Commit) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	err := c.Wait(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	return err
}

func must(t *testing.T, c *Commit) {
	t.Helper()
	if err := await(t, c); err != nil {
		t.Fatal(err)
	}
}

func wantFlows(t *testing.T, f *ovs.Fake, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, f.Flows(), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("flows (-want +got):\n%s", diff)
	}
}

// hold makes bundles wait until release is called. A value in entered means that a bundle waits.
func hold(f *ovs.Fake) (entered <-chan struct{}, release func()) {
	released, waiting := make(chan struct{}), make(chan struct{}, 100)
	f.BeforeBundle = func(ctx context.Context) error {
		waiting <- struct{}{}
		select {
		case <-released:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return waiting, func() { close(released) }
}

// rejectPort makes the switch reject flows that output to the port.
func rejectPort(port int) func(*ovs.Flow) string {
	return func(f *ovs.Flow) string {
		for _, a := range f.Actions {
			if b, err := a.MarshalText(); err == nil && string(b) == fmt.Sprintf("output:%d", port) {
				return "OFPBAC_BAD_OUT_PORT"
			}
		}
		return ""
	}
}

// allFlows returns the flows of a state.
func allFlows(st ovs.State) (flows []*ovs.Flow) {
	for i := range st.NumFlows() {
		flows = append(flows, st.Flow(i))
	}
	return flows
}

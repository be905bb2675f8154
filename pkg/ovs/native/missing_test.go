package native_test

import (
	"context"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// reader is implemented by Fake and Native.
type reader interface {
	ovs.Interface
	Missing(ctx context.Context, flows []*ovs.Flow) ([]*ovs.Flow, error)
}

func TestMissing(t *testing.T) {
	tier.Parallel(t)
	for name, start := range map[string]func(t *testing.T) reader{
		"fake":   func(*testing.T) reader { return ovs.NewFake(ovstest.Bridge) },
		"native": func(t *testing.T) reader { return newNative(t, ovstest.Start(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			if _, err := b.Missing(t.Context(), nil); name == "native" && !ovs.IsUnavailable(err) {
				t.Errorf("without a bridge: got %v, want an unavailable error", err)
			}
			if err := b.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: "netdev"}); err != nil {
				t.Fatal(err)
			}
			flow := func(priority int, cookie uint64, action ovs.Action) *ovs.Flow {
				return &ovs.Flow{Table: 1, Priority: priority, Protocol: goovs.ProtocolIPv4, Cookie: cookie, Actions: []ovs.Action{action}}
			}
			present, other := flow(1, 5, goovs.Load("0x0", "NXM_NX_REG0[]")), flow(2, 5, goovs.Drop())
			tx := b.NewTransaction()
			tx.Add(present)
			tx.Add(other)
			if err := b.Run(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			wanted := []*ovs.Flow{present, flow(2, 5, goovs.Output(1)), flow(2, 6, goovs.Drop()), flow(3, 5, goovs.Drop())}
			for i, want := range []int{0, 1, 1, 1} {
				missing, err := b.Missing(t.Context(), wanted[i:i+1])
				if err != nil || len(missing) != want {
					t.Errorf("flow %d: got %d missing and error %v, want %d", i, len(missing), err, want)
				}
			}
			if missing, err := b.Missing(t.Context(), nil); err != nil || len(missing) > 0 {
				t.Errorf("no flows: got %v, error %v, want none", missing, err)
			}
		})
	}
}

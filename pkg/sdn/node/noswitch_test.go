package node

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

func TestHostWithoutOpenVSwitchIsToldHowToGetOne(t *testing.T) {
	wanted := ovs.Bridge{Name: bridgeName, DatapathType: "netdev", TableNames: pipeline.TableNames()}
	bridge := ovs.NewNative(bridgeName, t.TempDir())
	t.Cleanup(bridge.Close)
	err := noSwitch(bridge.EnsureBridge(t.Context(), wanted))
	if !ovs.IsUnavailable(err) || !strings.Contains(err.Error(), "deploy/overlays/ovs") {
		t.Errorf("it says %v", err)
	}
}

func TestOpenVSwitchThatHasStoppedIsNotTakenForNone(t *testing.T) {
	s := ovstest.Start(t)
	wanted := ovs.Bridge{Name: bridgeName, DatapathType: "netdev", TableNames: pipeline.TableNames()}
	bridge := ovs.NewNative(bridgeName, s.RunDir)
	t.Cleanup(bridge.Close)
	if err := noSwitch(bridge.EnsureBridge(t.Context(), wanted)); err != nil {
		t.Fatal(err)
	}
	s.StopVSwitchd(t)
	s.StopDB(t)
	// That the connection has ended is noticed soon, not at once.
	await.OK(t, time.Minute, func(ctx context.Context) error {
		err := noSwitch(bridge.EnsureBridge(ctx, wanted))
		if !ovs.IsUnavailable(err) || strings.Contains(err.Error(), "deploy/overlays/ovs") {
			return fmt.Errorf("it says %w", err)
		}
		return nil
	})
}

func TestSetUpGoesOnWhenOpenVSwitchComes(t *testing.T) {
	s := ovstest.Start(t)
	s.StopVSwitchd(t)
	s.StopDB(t)
	a := &agent{bridge: ovs.NewNative(bridgeName, s.RunDir)}
	t.Cleanup(a.bridge.Close)
	_, missing := a.bridge.ListPorts(t.Context())
	if !ovs.IsUnavailable(missing) {
		t.Fatalf("it says %v", missing)
	}
	rested := make(chan struct{})
	go func() {
		defer close(rested)
		a.rest(t.Context(), time.Hour, missing)
	}()
	s.StartDB(t)
	select {
	case <-rested:
	case <-time.After(time.Minute):
		t.Error("it still rests")
	}
}

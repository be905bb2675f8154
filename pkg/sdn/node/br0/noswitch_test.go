package br0

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

func TestNoSwitch_notInstalled(t *testing.T) {
	wanted := ovs.Bridge{Name: Name, DatapathType: "netdev", TableNames: pipeline.TableNames()}
	bridge := native.New(Name, t.TempDir())
	t.Cleanup(bridge.Close)
	err := noSwitch(bridge.EnsureBridge(t.Context(), wanted))
	if !ovs.IsUnavailable(err) || !strings.Contains(err.Error(), "deploy/overlays/ovs") {
		t.Errorf("got %v, want an unavailable error with the remedy", err)
	}
}

func TestNoSwitch_stopped(t *testing.T) {
	s := ovstest.Start(t)
	wanted := ovs.Bridge{Name: Name, DatapathType: "netdev", TableNames: pipeline.TableNames()}
	bridge := native.New(Name, s.RunDir)
	t.Cleanup(bridge.Close)
	if err := noSwitch(bridge.EnsureBridge(t.Context(), wanted)); err != nil {
		t.Fatal(err)
	}
	s.StopVSwitchd(t)
	s.StopDB(t)
	// The client detects the end of the connection after a delay.
	await.OK(t, 90*time.Second, func(ctx context.Context) error {
		err := noSwitch(bridge.EnsureBridge(ctx, wanted))
		if !ovs.IsUnavailable(err) || strings.Contains(err.Error(), "deploy/overlays/ovs") {
			return fmt.Errorf("got %w, want an unavailable error without the remedy", err)
		}
		return nil
	})
}

package node

import (
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/br0"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

func TestWaitToRetry_switchStarts(t *testing.T) {
	s := ovstest.Start(t)
	s.StopVSwitchd(t)
	s.StopDB(t)
	a := &agent{bridge: native.New(br0.Name, s.RunDir)}
	t.Cleanup(a.bridge.Close)
	_, missing := a.bridge.ListPorts(t.Context())
	if !ovs.IsUnavailable(missing) {
		t.Fatalf("got %v, want an unavailable error", missing)
	}
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		a.waitToRetry(t.Context(), time.Hour, missing)
	}()
	s.StartDB(t)
	select {
	case <-returned:
	case <-time.After(90 * time.Second):
		t.Error("waitToRetry did not return after the start of Open vSwitch")
	}
}

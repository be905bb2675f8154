package node

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// A vswitchd that starts anew has forgotten the limits of its own datapath, and gets them again.
func TestZonesAreLimitedInEverySession(t *testing.T) {
	sw := ovstest.Start(t)
	bridge := ovs.NewNative(ovstest.Bridge, sw.RunDir)
	t.Cleanup(bridge.Close)
	if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: ovstest.DatapathNetdev}); err != nil {
		t.Fatal(err)
	}
	limits := newZoneLimits(bridge)
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() { limits.Run(ctx); close(stopped) }()
	t.Cleanup(func() { stop(); <-stopped })

	last := fmt.Sprintf("zone=%d", pipeline.Zones().Last)
	limited := func() bool {
		out, err := sw.Command(t.Context(), "ovs-appctl", "--target="+sw.RunDir+"/ovs-vswitchd.ctl", "dpctl/ct-get-limits", last).CombinedOutput()
		return err == nil && strings.Contains(string(out), last+",limit=187500,") // 3,000,000 / 16
	}
	for range 2 {
		deadline := time.After(30 * time.Second)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for !limited() {
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatal("the last zone has no limit")
			}
		}
		sw.StopVSwitchd(t)
		sw.StartVSwitchd(t)
		if limited() {
			t.Fatal("a vswitchd that starts anew knows the limit")
		}
		limits.Poke()
	}
}

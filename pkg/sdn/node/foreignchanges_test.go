package node

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// A program that repeats its changes causes one Event of each reason in ten minutes, and each change is in one.
func TestForeignChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // of got: two goroutines send Events
		got := map[string]int{}
		f := newForeignChanges(func(reason, message string) {
			mu.Lock()
			defer mu.Unlock()
			got[reason+" "+message]++
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); f.run(ctx) }()
		f.firewallRestored([]string{"nat/OVSDN-MASQUERADE"})
		for range 100 {
			f.flowsRestored(ovs.Difference{Missing: 3, Altered: 2, Foreign: 1, Examples: []string{"table=20 actions=drop"}})
			f.firewallRestored([]string{"filter/OVSDN-INPUT", "nat/OVSDN-MASQUERADE"})
		}
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		f.flowsRestored(ovs.Difference{Missing: 1})
		time.Sleep(time.Hour) //nolint:forbidigo // the bubble's clock
		stop()
		<-ended
		flows := func(changes string) string {
			return "FlowsRestored another program changed flows, groups or meters of br0, and the agent repaired them: in total " + changes + " since the last such Event. " +
				"Find the program that writes to br0; lines \"Repaired flows\" in the agent's log have examples of altered and added ones"
		}
		firewall := "FirewallRestored another program changed the agent's chains of the host's firewall, or deleted jumps to them: filter/OVSDN-INPUT, nat/OVSDN-MASQUERADE; the agent restored them. " +
			"Find the program that changes the firewall; lines \"Restored the host's network settings\" in the agent's log have the rules that it wrote and deleted"
		want := map[string]int{flows("300 missing, 200 altered and 100 added"): 1, firewall: 1, flows("1 missing, 0 altered and 0 added"): 1}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Events differ (-want +got):\n%s", diff)
		}
	})
}

package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/test/ovstest"
)

// The bridge, or OVSDB's file, is lost after the agent was killed. The next agent rebuilds the port of every sandbox; CHECK succeeds, and
// DEL leaves nothing.
func TestBridgeLostWhileAway(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, r *rig){
		"del-br":        func(t *testing.T, r *rig) { r.VSCtl(t, "del-br", ovstest.Bridge) },
		"lost database": func(t *testing.T, r *rig) { r.LoseDB(t) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			before := r.state(t)
			list := r.list(t, "1.0.0", nil)
			pods := make([]*pod, 3)
			for i := range pods {
				pods[i] = newPod(t, fmt.Sprintf("pod-%d", i))
				pods[i].id = pods[i].name
				if _, err := r.cni.AddNetworkList(t.Context(), list, pods[i].runtimeConf()); err != nil {
					t.Fatal(err)
				}
			}
			r.agent.kill()
			lose(t, r)
			r.start(t)
			for _, p := range pods {
				if err := r.cni.CheckNetworkList(t.Context(), list, p.runtimeConf()); err != nil {
					t.Errorf("CHECK of %s: %v", p.name, err)
				}
				if err := r.cni.DelNetworkList(t.Context(), list, p.runtimeConf()); err != nil {
					t.Errorf("DEL of %s: %v", p.name, err)
				}
			}
			r.wantState(t, before)
			if events := r.events(t); strings.Count(events, "node: PodPortsRebuilt: ") != 1 || strings.Contains(events, "pod ") {
				t.Errorf("Events:\n%s", events)
			}
		})
	}
}

// events returns the Events of all agents, a line for each.
func (r *rig) events(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Clean(r.config.Events))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

package metricsdoc

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// readMonitoring returns a file of deploy/monitoring, and fails unless docs/metrics.md lists each metric in it.
func readMonitoring(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(filepath.Dir(path(t)), "../deploy/monitoring", name))
	if err != nil {
		t.Fatal(err)
	}
	names := Names(t)
	used := regexp.MustCompile(`\bovsdn_[a-z0-9_]+`).FindAllString(string(content), -1)
	if len(used) == 0 {
		t.Errorf("%s uses no metric", name)
	}
	for _, metric := range used {
		if !slices.Contains(names, metric) {
			t.Errorf("%s uses %s, which docs/metrics.md does not list", name, metric)
		}
	}
	return content
}

func TestRulesUseKnownMetrics(t *testing.T) { readMonitoring(t, "rules.yaml") }

func TestDashboard(t *testing.T) {
	var dashboard struct {
		Title  string
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ RefID, Expr string }
			GridPos struct{ X, Y, W, H int }
		}
	}
	if err := json.Unmarshal(readMonitoring(t, "dashboard.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	type place struct{ x, y int }
	ids, places := map[int]bool{}, map[place]bool{}
	for _, p := range dashboard.Panels {
		at := place{p.GridPos.X, p.GridPos.Y}
		if ids[p.ID] || places[at] || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q: got ID %d at %+v, want an own ID and place", p.Title, p.ID, p.GridPos)
		}
		ids[p.ID], places[at] = true, true
		if p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d has no title or no query", p.ID)
		}
		for _, target := range p.Targets {
			if target.Expr == "" || target.RefID == "" {
				t.Errorf("panel %q: got query %+v, want an expression and an ID", p.Title, target)
			}
		}
	}
	if dashboard.Title == "" || len(ids) == 0 {
		t.Errorf("got title %q and %d panels, want both", dashboard.Title, len(ids))
	}
}

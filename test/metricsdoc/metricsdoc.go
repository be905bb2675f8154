// Package metricsdoc compares metrics with docs/metrics.md, which lists them.
package metricsdoc

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/ovsdn/ovsdn/test/reference"
)

var update = flag.Bool("update-metrics", false, "write the list of metrics in docs/metrics.md") //nolint:gochecknoglobals // a test binary parses its flags before any test runs

// prefix is that of the project's metrics. The others are those of client_golang's collectors.
const prefix = "ovsdn_"

// Check fails unless the section of docs/metrics.md lists the gathered metrics, of which each has a value, and their names follow the conventions of
// Prometheus.
func Check(t *testing.T, section string, from prometheus.Gatherer) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	text := read(t)
	begin, end := "<!-- begin "+section+" -->\n", "<!-- end "+section+" -->\n"
	before, rest, hasBegin := strings.Cut(text, begin)
	is, after, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		t.Fatalf("docs/metrics.md has no section %s", section)
	}
	want := "\n" + table(families) + "\n"
	if *update {
		if err := os.WriteFile(path(t), []byte(before+begin+want+end+after), 0o644); err != nil { //nolint:gosec // documents are public
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(is, "\n"), strings.Split(want, "\n")); diff != "" {
		t.Errorf("docs/metrics.md differs: run the test with -update-metrics, and review the difference (-document +metrics):\n%s", diff)
	}
}

func table(families []*dto.MetricFamily) string {
	t := reference.NewTable("metric", "type", "labels", "meaning")
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), prefix) {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, reference.Code(l.GetName()))
		}
		t.Add(reference.Code(f.GetName()), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp())
	}
	return t.String()
}

// Names returns the names of all metrics in docs/metrics.md, with those of the series of histograms.
func Names(t *testing.T) []string {
	t.Helper()
	var names []string
	for line := range strings.Lines(read(t)) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`"+prefix) {
			continue
		}
		name := strings.Trim(cells[1], " `")
		names = append(names, name)
		if strings.TrimSpace(cells[2]) == "histogram" {
			names = append(names, name+"_bucket", name+"_sum", name+"_count")
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func read(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(path(t))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func path(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "docs/metrics.md")
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod in a directory above")
		}
	}
}

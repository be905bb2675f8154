package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHistory(t *testing.T) {
	flaky := []step{{name: "unit"}, {name: rerunning, events: []event{
		{Action: "fail", Package: "p/e2e", Test: "TestDNS"}, {Action: "pass", Package: "p/e2e", Test: "TestDNS"},
	}}}
	green := []step{{name: rerunning, events: []event{{Action: "pass", Package: "p/e2e", Test: "TestDNS"}}}}
	h := history(filepath.Join(t.TempDir(), "flakes"))
	add := func(date, commit string, steps []step) {
		t.Helper()
		if err := h.add(date, commit, steps); err != nil {
			t.Fatal(err)
		}
	}
	want := func(want string) {
		t.Helper()
		if got, err := h.summary(); got != want || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	add("2026-01-01", "c0", flaky[:1]) // without the step whose tests are run again
	want("")
	add("2026-01-01", "c1", flaky)
	add("2026-01-02", "c2", green)
	add("2026-01-03", "c3", flaky)
	want("flakes of the last 3 runs: 1 tests\n2 times e2e.TestDNS (2026-01-01 c1, 2026-01-03 c3)\n")
	for range historyRuns - 2 {
		add("2026-01-04", "c4", green)
	}
	want("flakes of the last 10 runs: 1 tests\n1 times e2e.TestDNS (2026-01-03 c3)\n")
}

func TestReport_history(t *testing.T) {
	dir := write(t, map[string]string{"steps": "lab 20\n", "lab.json": labEvents})
	file := filepath.Join(t.TempDir(), "flakes")
	var stdout, stderr bytes.Buffer
	if code := run([]string{"-history", file, "-commit", "c1", dir}, &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), "1 times e2e.TestDNS (") {
		t.Errorf("exit code %d, want 0 and the flake: %s%s", code, &stdout, &stderr)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, got, _ := strings.Cut(string(content), " "); got != "c1 e2e.TestDNS\n" {
		t.Errorf("the line after the date is %q, want the commit and the test", got)
	}
}

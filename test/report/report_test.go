package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// write makes a directory as scripts/test.sh leaves it.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const labEvents = `{"Action":"run","Package":"github.com/ovsdn/ovsdn/test/e2e","Test":"TestDNS"}
{"Action":"fail","Package":"github.com/ovsdn/ovsdn/test/e2e","Test":"TestDNS","Elapsed":3}
{"Action":"run","Package":"github.com/ovsdn/ovsdn/test/e2e","Test":"TestMTU"}
{"Action":"fail","Package":"github.com/ovsdn/ovsdn/test/e2e","Test":"TestMTU","Elapsed":1}
{"Action":"fail","Package":"github.com/ovsdn/ovsdn/test/e2e","Elapsed":9}
{"Action":"pass","Package":"github.com/ovsdn/ovsdn/test/e2e","Test":"TestDNS","Elapsed":2}
{"Action":"pass","Package":"github.com/ovsdn/ovsdn/test/e2e","Elapsed":8}
`

func TestReport(t *testing.T) {
	dir := write(t, map[string]string{
		"steps": "prepare 12\nlab 20\n", "lab.json": labEvents,
		"page.md": "# Tests\n" + tableStart + "\nold\n" + tableEnd + "\nend\n",
	})
	page := filepath.Join(dir, "page.md")
	var stdout, stderr bytes.Buffer
	if code := run([]string{"-write", page, dir}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d, want 0: %s", code, &stderr)
	}
	const table = "| step | seconds | longest |\n|---|---|---|\n| prepare | 12 |  |\n| lab | 20 | `TestDNS` 5, `TestMTU` 1 |\n| all | 32 | |\n"
	if got, want := stdout.String(), table+"FLAKE e2e.TestDNS\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(content), "# Tests\n"+tableStart+"\n"+table+tableEnd+"\nend\n"; got != want {
		t.Errorf("the page is\n%s\nwant\n%s", got, want)
	}
}

// gotestsum counts a test with all its subtests as one.
func TestReport_manySubtestsFailed(t *testing.T) {
	for name, tc := range map[string]struct {
		failed []string
		flakes string
		code   int
	}{
		"two":   {[]string{"TestAll/use/a", "TestAll/use/b", "TestAll/use", "TestAll"}, "FLAKE e2e.TestAll/use/a\nFLAKE e2e.TestAll/use/b\n", 0},
		"three": {[]string{"TestAll/a", "TestAll/b", "TestAll/b-2", "TestAll"}, "FLAKE e2e.TestAll/a\nFLAKE e2e.TestAll/b\nFLAKE e2e.TestAll/b-2\n", 1},
	} {
		t.Run(name, func(t *testing.T) {
			var events strings.Builder
			for _, action := range []string{"fail", "pass"} {
				for _, test := range tc.failed {
					fmt.Fprintf(&events, `{"Action":"run","Package":"p/e2e","Test":%q}`+"\n", test)
				}
				for _, test := range tc.failed {
					fmt.Fprintf(&events, `{"Action":%q,"Package":"p/e2e","Test":%q}`+"\n", action, test)
				}
				fmt.Fprintf(&events, `{"Action":%q,"Package":"p/e2e"}`+"\n", action)
			}
			dir := write(t, map[string]string{"steps": "lab 20\n", "lab.json": events.String()})
			var stdout, stderr bytes.Buffer
			if code := run([]string{dir}, &stdout, &stderr); code != tc.code || !strings.HasSuffix(stdout.String(), "\n"+tc.flakes) {
				t.Errorf("exit code %d, want %d; got %q, %q, want flakes %q", code, tc.code, &stdout, &stderr, tc.flakes)
			}
		})
	}
}

func TestReport_packetArrived(t *testing.T) {
	dir := write(t, map[string]string{"steps": "lab 20\n", "lab.json": labEvents, "fatal": "TestDNS: a packet arrived\n"})
	var stdout, stderr bytes.Buffer
	if code := run([]string{dir}, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "TestDNS: a packet arrived") {
		t.Errorf("exit code %d and %q, want 1 and the test's name", code, &stderr)
	}
}

// A rerun of the tests that failed passes although the first run did not run all tests.
func TestReport_notAllTestsRan(t *testing.T) {
	const rerun = `{"Action":"run","Package":"p/e2e","Test":"TestA"}
{"Action":"pass","Package":"p/e2e","Test":"TestA"}
{"Action":"pass","Package":"p/e2e"}
`
	for name, tc := range map[string]struct {
		events string
		code   int
	}{
		"no lab":  {`{"Action":"fail","Package":"p/e2e"}` + "\n" + `{"Action":"pass","Package":"p/e2e"}` + "\n", 1},
		"aborted": {`{"Action":"run","Package":"p/e2e","Test":"TestA"}` + "\n" + `{"Action":"fail","Package":"p/e2e"}` + "\n" + rerun, 1},
		"aborted after a failed test": {`{"Action":"run","Package":"p/e2e","Test":"TestA"}
{"Action":"fail","Package":"p/e2e","Test":"TestA"}
{"Action":"run","Package":"p/e2e","Test":"TestB"}
{"Action":"fail","Package":"p/e2e"}
` + rerun, 1},
		"failed after its tests": {rerun[:strings.LastIndex(rerun, `{"Action"`)] + `{"Action":"fail","Package":"p/e2e"}` + "\n", 1},
		"another package": {`{"Action":"run","Package":"p/e2e","Test":"TestA"}
{"Action":"fail","Package":"p/attacks"}
{"Action":"fail","Package":"p/e2e","Test":"TestA"}
{"Action":"fail","Package":"p/e2e"}
` + rerun, 1},
		"flake": {`{"Action":"run","Package":"p/e2e","Test":"TestA"}
{"Action":"run","Package":"p/e2e","Test":"TestA/skipped"}
{"Action":"skip","Package":"p/e2e","Test":"TestA/skipped"}
{"Action":"fail","Package":"p/e2e","Test":"TestA"}
{"Action":"skip","Package":"p/attacks"}
{"Action":"fail","Package":"p/e2e"}
` + rerun, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := write(t, map[string]string{"steps": "lab 20\n", "lab.json": tc.events})
			var stdout, stderr bytes.Buffer
			code := run([]string{dir}, &stdout, &stderr)
			if got := strings.Contains(stderr.String(), "did not run all its tests"); code != tc.code || got != (tc.code != 0) {
				t.Errorf("exit code %d, want %d; stderr %q", code, tc.code, &stderr)
			}
		})
	}
}

func TestReport_noSteps(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run([]string{t.TempDir()}, &stdout, &stderr); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}

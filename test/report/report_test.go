package main

import (
	"bytes"
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

func TestReport_packetArrived(t *testing.T) {
	dir := write(t, map[string]string{"steps": "lab 20\n", "lab.json": labEvents, "fatal": "TestDNS: a packet arrived\n"})
	var stdout, stderr bytes.Buffer
	if code := run([]string{dir}, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "TestDNS: a packet arrived") {
		t.Errorf("exit code %d and %q, want 1 and the test's name", code, &stderr)
	}
}

func TestReport_noSteps(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run([]string{t.TempDir()}, &stdout, &stderr); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}

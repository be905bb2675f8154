package reference

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

var update = flag.Bool("update", false, "write the generated sections of documents") //nolint:gochecknoglobals // a test binary parses its flags before any test runs

// root is the module's directory.
const root = "../.."

func parse(t *testing.T, dir string) *Package {
	t.Helper()
	p, err := Parse(filepath.Join(root, dir))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// checkDocument compares the generated sections of a document with the sources.
func checkDocument(t *testing.T, name string, sections map[string]string) {
	t.Helper()
	path := filepath.Join(root, "docs", name)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Replace(string(text), sections)
	if err != nil {
		t.Fatalf("docs/%s: %v", name, err)
	}
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil { //nolint:gosec // documents are public
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(want, "\n")); diff != "" {
		t.Errorf("docs/%s differs from the sources: run `go test ./test/reference -update`, review the difference, and commit it (-document +sources):\n%s", name, diff)
	}
}

func TestPipelineDocument(t *testing.T) {
	purposes := map[int]string{}
	for _, table := range pipeline.Tables() {
		purposes[table.Number] = table.Purpose
	}
	checkDocument(t, "pipeline.md", PipelineSections(parse(t, "pkg/sdn/pipeline"), pipeline.TableNames(), purposes))
}

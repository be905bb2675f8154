package pipeline

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/test/reference"
)

// minEmitters guards the test against a parser that no longer recognizes emitters.
const minEmitters = 150

// TestFlowComments checks that each statement that emits a flow, meter or group has an example of it above, which a golden file contains.
func TestFlowComments(t *testing.T) {
	source, err := reference.Parse(".")
	if err != nil {
		t.Fatal(err)
	}
	emitters, stray := source.Emitters()
	if len(emitters) < minEmitters {
		t.Errorf("got %d statements that emit flows, want at least %d: correct Emitters in test/reference", len(emitters), minEmitters)
	}
	for _, e := range stray {
		t.Errorf("%s: the comment shows a flow, meter or group, but no statement that emits it follows: move it directly above that, or delete it", e.Position)
	}
	golden := goldenLines(t)
	for _, e := range emitters {
		if len(e.Examples) == 0 {
			t.Errorf("%s: the comment above has no flow, meter or group: write there one that this statement emits, from testdata/*.flows (`// table=…`, `// meter=…`, `// group=…`); "+
				"if there is none, add a case to goldenStates, and run `go test ./pkg/sdn/pipeline -update`%s", e.Position, candidates(golden, prefix(e)))
		}
		for _, example := range e.Examples {
			want := prefix(e)
			if !strings.HasPrefix(example.Text, want) {
				t.Errorf("%s: the comment's flow begins with %.40s, want %s as in the statement below", example.Position, example.Text, want)
				continue
			}
			if !slices.Contains(golden, example.Text) {
				beginning, _, _ := strings.Cut(example.Text, "actions=")
				if len(find(golden, beginning)) == 0 {
					beginning = want
				}
				t.Errorf("%s: no golden file has this flow:\n\t%s\nwrite one of testdata/*.flows that the statement below emits; if there is none, add a case to "+
					"goldenStates, and run `go test ./pkg/sdn/pipeline -update`%s", example.Position, example.Text, candidates(golden, beginning))
			}
		}
	}
}

// prefix returns how the flows of a statement begin.
func prefix(e reference.Emitter) string {
	switch {
	case e.Meter:
		return "meter="
	case e.Group:
		return "group="
	case e.Table == reference.Unknown:
		return "table="
	case e.Priority == reference.Unknown:
		return fmt.Sprintf("table=%d,", e.Table)
	}
	return fmt.Sprintf("table=%d,priority=%d,", e.Table, e.Priority)
}

// goldenLines returns the flows, meters and groups of all golden files, each once.
func goldenLines(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.flows")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			all = append(all, strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "# "))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func find(golden []string, beginning string) []string {
	return slices.DeleteFunc(slices.Clone(golden), func(line string) bool { return !strings.HasPrefix(line, beginning) })
}

// candidates lists some flows of the golden files for a failure's message.
func candidates(golden []string, beginning string) string {
	const most = 5
	found := find(golden, beginning)
	if len(found) == 0 {
		return ""
	}
	return "; golden files have:\n\t" + strings.Join(found[:min(len(found), most)], "\n\t")
}

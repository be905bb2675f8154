package reference

import (
	"strings"
	"testing"
)

func TestReplace(t *testing.T) {
	const document = "# Title\n<!-- begin a -->\nprevious\n<!-- end a -->\ntext\n"
	for name, step := range map[string]struct {
		document string
		sections map[string]string
		want     string // the document, or a part of the error
	}{
		"a section is replaced":           {document, map[string]string{"a": "new\n"}, "# Title\n<!-- begin a -->\n\nnew\n\n<!-- end a -->\ntext\n"},
		"a section has no lines":          {document, map[string]string{"a": "new", "b": "new"}, "section b is missing; add the lines <!-- begin b --> and <!-- end b -->"},
		"lines have no section":           {document, nil, "section a is not generated; remove its lines"},
		"the last line of one is missing": {strings.ReplaceAll(document, "<!-- end a -->\n", ""), map[string]string{"a": "new"}, "section a is missing"},
	} {
		got, err := Replace(step.document, step.sections)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, step.want) {
			t.Errorf("%s: got %q, want %q", name, got, step.want)
		}
	}
}

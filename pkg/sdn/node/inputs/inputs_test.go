package inputs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Decision 0009 lists each kind of input, with the features that publish and read it.
func TestDecisionListsKinds(t *testing.T) {
	const decision = "../../../../docs/decisions/0009-inputs.md"
	text, err := os.ReadFile(decision)
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "inputs.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	kinds := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Kind") {
			return true
		}
		kind, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		kinds++
		if !strings.Contains(string(text), "\n| "+kind+" ") {
			t.Errorf("%s: got no row of %s, %q, want one", decision, spec.Names[0].Name, kind)
		}
		return true
	})
	if kinds == 0 {
		t.Error("got no kinds of inputs, want those of inputs.go")
	}
}

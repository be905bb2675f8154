package seed

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// A function that calls rapid.Check calls seed.Fix first.
func TestRapidHasFixedSeed(t *testing.T) {
	checks := 0
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "bin") {
			return filepath.SkipDir
		}
		// This package calls Fix without its name.
		if !strings.HasSuffix(path, "_test.go") || filepath.Dir(path) == filepath.Join("..", "..", "test", "seed") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			check, fix := callIn(d, "rapid", "Check"), callIn(d, "seed", "Fix")
			if !check.IsValid() {
				continue
			}
			checks++
			if !fix.IsValid() || fix > check {
				t.Errorf("%s: rapid.Check without seed.Fix(t) before it: the short tier would choose a random seed", fset.Position(check))
			}
		}
		return nil
	})
	if err != nil || checks == 0 {
		t.Errorf("got %d calls of rapid.Check, error %v", checks, err)
	}
}

// callIn returns the position of the first call of the package's function in the declaration.
func callIn(d ast.Decl, pkg, name string) (pos token.Pos) {
	ast.Inspect(d, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && !pos.IsValid() && s.Sel.Name == name {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == pkg {
				pos = s.Pos()
			}
		}
		return true
	})
	return pos
}

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
	eachDecl(t, func(fset *token.FileSet, d ast.Decl) {
		check, fix := callIn(d, "rapid", "Check"), callIn(d, "seed", "Fix")
		if check == nil {
			return
		}
		checks++
		if fix == nil || fix.Pos() > check.Pos() {
			t.Errorf("%s: rapid.Check without seed.Fix(t) before it: the short tier would choose a random seed", fset.Position(check.Pos()))
		}
	})
	if checks == 0 {
		t.Error("found no call of rapid.Check")
	}
}

// Tests have no constant seeds: the complete tier chooses another one in each run.
func TestNoConstantSeed(t *testing.T) {
	generators := 0
	eachDecl(t, func(fset *token.FileSet, d ast.Decl) {
		call := callIn(d, "rand", "NewPCG")
		if call == nil {
			return
		}
		generators++
		if _, constant := call.Args[0].(*ast.BasicLit); constant {
			t.Errorf("%s: the seed is a constant: use seed.Rand(t)", fset.Position(call.Pos()))
		}
	})
	if generators == 0 {
		t.Error("found no call of rand.NewPCG")
	}
}

// eachDecl calls visit with each declaration of the tests of all packages but this one.
func eachDecl(t *testing.T, visit func(*token.FileSet, ast.Decl)) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") || filepath.Dir(path) == filepath.Join("..", "..", "test", "seed") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			visit(fset, d)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// callIn returns the first call of the package's function in the declaration.
func callIn(d ast.Decl, pkg, name string) (first *ast.CallExpr) {
	ast.Inspect(d, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || first != nil {
			return first == nil
		}
		if s, ok := call.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == name {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == pkg {
				first = call
			}
		}
		return true
	})
	return first
}

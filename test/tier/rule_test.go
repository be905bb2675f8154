package tier

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A test is skipped in the short tier, with the reason, or without root. Nothing else is skipped.
func TestReasonsOfSkips(t *testing.T) {
	root := filepath.Join("..", "..")
	skips := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		// test/browser is a module of its own, whose tests only `make test-browser` runs.
		if entry.IsDir() && (entry.Name() == ".git" || path == filepath.Join(root, "bin") || path == filepath.Join(root, "test", "browser")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for call, reason := range skipCalls(file) {
			skips++
			if !strings.HasPrefix(reason, "complete tier: ") && !strings.HasPrefix(reason, "needs root") {
				t.Errorf("%s: the reason %q begins with neither \"complete tier: \" nor \"needs root\"", fset.Position(call.Pos()), reason)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if skips == 0 {
		t.Error("found no call of Skip: is the root wrong?")
	}
}

// skipCalls returns the calls that skip a test, each with the begin of its reason. rapid.T.Skip only discards a step.
func skipCalls(file *ast.File) map[*ast.CallExpr]string {
	calls := map[*ast.CallExpr]string{}
	var functions []*ast.FuncType // those around the node
	var stack []ast.Node
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil {
			if functionOf(stack[len(stack)-1]) != nil {
				functions = functions[:len(functions)-1]
			}
			stack = stack[:len(stack)-1]
			return true
		}
		stack = append(stack, n)
		if f := functionOf(n); f != nil {
			functions = append(functions, f)
		}
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		s, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || s.Sel.Name != "Skip" && s.Sel.Name != "Skipf" && s.Sel.Name != "SkipNow" {
			return true
		}
		if receiver, ok := s.X.(*ast.Ident); ok && isTest(receiver.Name, functions) {
			calls[call] = textOf(call.Args)
		}
		return true
	})
	return calls
}

func functionOf(n ast.Node) *ast.FuncType {
	switch f := n.(type) {
	case *ast.FuncDecl:
		return f.Type
	case *ast.FuncLit:
		return f.Type
	}
	return nil
}

// isTest reports whether the parameter by that name of the innermost function that has one is a type of package testing.
func isTest(name string, functions []*ast.FuncType) bool {
	for i := len(functions) - 1; i >= 0; i-- {
		for _, p := range functions[i].Params.List {
			for _, n := range p.Names {
				if n.Name != name {
					continue
				}
				kind := p.Type
				if pointer, ok := kind.(*ast.StarExpr); ok {
					kind = pointer.X
				}
				s, ok := kind.(*ast.SelectorExpr)
				if !ok {
					return false
				}
				pkg, ok := s.X.(*ast.Ident)
				return ok && pkg.Name == "testing"
			}
		}
	}
	return false
}

// textOf returns the text with which the first argument begins; "" if it is no text.
func textOf(args []ast.Expr) string {
	if len(args) == 0 {
		return ""
	}
	first := args[0]
	for {
		sum, ok := first.(*ast.BinaryExpr)
		if !ok {
			break
		}
		first = sum.X
	}
	if literal, ok := first.(*ast.BasicLit); ok {
		if text, err := strconv.Unquote(literal.Value); err == nil {
			return text
		}
	}
	return ""
}

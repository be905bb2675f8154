package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// logMethods are the methods of logr.Logger that log, with the index of the message. Error takes the error first.
func logMethods() map[string]int { return map[string]int{"Info": 0, "Error": 1} }

// Log messages begin with a capital letter and end without a full stop, and keys are lowerCamelCase, as Kubernetes' logging conventions say
// (https://github.com/kubernetes/community/blob/master/contributors/devel/sig-instrumentation/migration-to-structured-logging.md).
func TestLogMessages(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	for _, dir := range []string{"cmd", "pkg", "images"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if name := contextless(call); name != "" {
					t.Errorf("%s: %s has no context; log with klog.FromContext(ctx)", fset.Position(call.Pos()), name)
				}
				if arguments := logArguments(call); arguments != nil {
					calls++
					for _, problem := range checkLog(arguments) {
						t.Errorf("%s: %s", fset.Position(call.Pos()), problem)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if calls < 100 {
		t.Errorf("got %d log calls, want at least 100: does the test still recognize them?", calls)
	}
}

// logArguments returns the message, keys and values of a call of a logger, or nil for another call.
func logArguments(call *ast.CallExpr) []ast.Expr {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	message, ok := logMethods()[method.Sel.Name]
	if !ok || len(call.Args) <= message || !isLogger(method.X) {
		return nil
	}
	return call.Args[message:]
}

// contextless returns the name of the function of klog by which the call logs without the logger of a context; "" for another call. A program creates the logger of
// its own context by klog.Background.
func contextless(call *ast.CallExpr) string {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	_, logs := logMethods()[method.Sel.Name]
	for x := method.X; ; {
		switch v := x.(type) {
		case *ast.Ident: // the functions that log without a logger, such as klog.Infof, too
			if v.Name == "klog" && (logs || regexp.MustCompile(`^(Info|Warning|Error|Fatal|Exit)`).MatchString(method.Sel.Name)) {
				return "klog." + method.Sel.Name
			}
			return ""
		case *ast.CallExpr:
			s, ok := v.Fun.(*ast.SelectorExpr)
			if !ok {
				return ""
			}
			if klog, ok := s.X.(*ast.Ident); ok && klog.Name == "klog" {
				if s.Sel.Name == "FromContext" || !logs {
					return ""
				}
				return "klog." + s.Sel.Name
			}
			x = s.X
		default:
			return ""
		}
	}
}

// isLogger reports whether the expression is a logger by its name: a variable log or logger, or klog.FromContext(ctx), with .V(n) or not.
func isLogger(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "log" || x.Name == "logger"
	case *ast.SelectorExpr:
		return x.Sel.Name == "log" || x.Sel.Name == "logger"
	case *ast.CallExpr:
		s, ok := x.Fun.(*ast.SelectorExpr)
		return ok && (s.Sel.Name == "FromContext" || s.Sel.Name == "V" && isLogger(s.X) || strings.HasPrefix(s.Sel.Name, "With") && isLogger(s.X))
	}
	return false
}

func checkLog(arguments []ast.Expr) (problems []string) {
	key := regexp.MustCompile(`^[a-z][A-Za-z0-9]*$`)
	if message, ok := text(arguments[0]); ok {
		first := []rune(message + " ")[0]
		if unicode.IsLetter(first) && !unicode.IsUpper(first) {
			problems = append(problems, fmt.Sprintf("log message %q begins with a lower-case letter", message))
		}
		if strings.HasSuffix(message, ".") {
			problems = append(problems, fmt.Sprintf("log message %q ends with a full stop", message))
		}
	}
	for i := 1; i < len(arguments); i += 2 {
		if name, ok := text(arguments[i]); ok && !key.MatchString(name) {
			problems = append(problems, fmt.Sprintf("log key %q is not lowerCamelCase", name))
		}
	}
	return problems
}

func text(x ast.Expr) (string, bool) {
	literal, ok := x.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(literal.Value)
	return s, err == nil
}

func TestContextless(t *testing.T) {
	for source, want := range map[string]string{
		`klog.Background().Info("Started")`:                         "klog.Background",
		`klog.Background().WithName("x").Error(err, "Failed to x")`: "klog.Background",
		`klog.TODO().V(4).Info("Started")`:                          "klog.TODO",
		`klog.InfoS("Started")`:                                     "klog.InfoS",
		`klog.V(2).Info("Started")`:                                 "klog.V",
		`klog.FromContext(ctx).V(4).Info("Started")`:                "",
		`klog.NewContext(ctx, klog.Background())`:                   "",
		`log.Info("Started")`:                                       "",
	} {
		expr, err := parser.ParseExpr(source)
		if err != nil {
			t.Fatal(err)
		}
		if got := contextless(expr.(*ast.CallExpr)); got != want {
			t.Errorf("%s: got %q, want %q", source, got, want)
		}
	}
}

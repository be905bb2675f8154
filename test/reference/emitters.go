// Package reference reads from the sources what docs/pipeline.md and docs/reference.md list, so that the documents can't differ from the code.
package reference

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"strings"
)

// Unknown is the table or the priority of an Emitter that is no constant.
const Unknown = -1

// Emitter is a statement of package pipeline that emits flows, meters or groups.
type Emitter struct {
	Position token.Position
	Func     string // the function that has the statement
	Meter    bool   // it emits meters
	Group    bool   // it emits groups; with neither, flows
	Table    int    // or Unknown
	Priority int    // or Unknown
	Examples []Example
}

// Example is a flow, meter or group in the comment above an emitter, as `ovs-ofctl` prints it.
type Example struct {
	Position token.Position
	Text     string
}

// Package is a parsed package, without its tests. Its imports are not resolved, so only its own constants have values.
type Package struct {
	fset  *token.FileSet
	files []*ast.File
	info  types.Info
}

// Parse parses the package in a directory.
func Parse(dir string) (*Package, error) {
	p := &Package{fset: token.NewFileSet(), info: types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}}}
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(p.fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		p.files = append(p.files, file)
	}
	if len(p.files) == 0 {
		return nil, fmt.Errorf("%s has no Go files: %w", dir, fs.ErrNotExist)
	}
	config := types.Config{Importer: noImports{}, Error: func(error) {}} // imports are missing, so there are errors
	_, _ = config.Check(dir, p.fset, p.files, &p.info)
	return p, nil
}

type noImports struct{}

func (noImports) Import(string) (*types.Package, error) {
	return nil, errors.New("imports are not resolved")
}

// Emitters returns the statements of package pipeline that call State.add or RulePart.add, or append to State.Meters or State.Groups, in the order of the
// sources. stray are the flows in comments that are not above such a statement.
func (p *Package) Emitters() (emitters []Emitter, stray []Example) {
	for _, file := range p.files {
		above := map[int][]Example{} // by the line below the comment
		for _, group := range file.Comments {
			if examples := p.examples(group); len(examples) > 0 {
				above[p.fset.Position(group.End()).Line+1] = examples
			}
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				statement, ok := n.(ast.Stmt)
				if !ok {
					return true
				}
				e, ok := p.emitter(statement)
				if !ok {
					return true
				}
				e.Func, e.Examples = fn.Name.Name, above[e.Position.Line]
				delete(above, e.Position.Line)
				emitters = append(emitters, e)
				return false
			})
		}
		for _, examples := range above {
			stray = append(stray, examples...)
		}
	}
	return emitters, stray
}

func (p *Package) emitter(statement ast.Stmt) (Emitter, bool) {
	e := Emitter{Position: p.fset.Position(statement.Pos()), Table: Unknown, Priority: Unknown}
	switch s := statement.(type) {
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		if !ok || selected(call.Fun) != "add" {
			return e, false
		}
		if len(call.Args) >= len([]string{"table", "priority", "match"}) { // State.add; RulePart.add has two parameters
			e.Table, e.Priority = p.number(call.Args[0]), p.number(call.Args[1])
		}
		return e, true
	case *ast.AssignStmt:
		if len(s.Lhs) == 1 {
			e.Meter, e.Group = selected(s.Lhs[0]) == "Meters", selected(s.Lhs[0]) == "Groups"
		}
		return e, e.Meter || e.Group
	}
	return e, false
}

// selected returns the name after the dot of a selector.
func selected(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		return s.Sel.Name
	}
	return ""
}

// number returns the value of a constant expression.
func (p *Package) number(e ast.Expr) int {
	if v := p.info.Types[e].Value; v != nil && v.Kind() == constant.Int {
		if n, ok := constant.Int64Val(v); ok {
			return int(n)
		}
	}
	return Unknown
}

// The lines of a comment that are a flow, a meter or a group. A longer one continues in lines that are indented.
const (
	flowPrefix      = "// table="
	meterPrefix     = "// meter="
	groupPrefix     = "// group="
	continuedPrefix = "//     "
)

// examples returns the flows, meters and groups in a comment.
func (p *Package) examples(group *ast.CommentGroup) []Example {
	var examples []Example
	inside := false
	for _, c := range group.List {
		switch {
		case strings.HasPrefix(c.Text, flowPrefix), strings.HasPrefix(c.Text, meterPrefix), strings.HasPrefix(c.Text, groupPrefix):
			examples = append(examples, Example{p.fset.Position(c.Pos()), strings.TrimPrefix(c.Text, "// ")})
			inside = true
		case inside && strings.HasPrefix(c.Text, continuedPrefix):
			examples[len(examples)-1].Text += strings.TrimPrefix(c.Text, continuedPrefix)
		default:
			inside = false
		}
	}
	return examples
}

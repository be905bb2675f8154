package reference

import (
	"cmp"
	"go/ast"
	"go/constant"
	"go/doc"
	"go/token"
	"go/types"
	"strings"
)

// Constant is a constant of a package.
type Constant struct {
	Name  string
	Value string // the text of a string, the digits of a number; "" if the value depends on another package
	Block string // the comment above its group
	Doc   string // the first paragraph of its own comment, above or behind it, in one line
}

// Constants returns the package's constants in the order of the sources.
func (p *Package) Constants() []Constant {
	var all []Constant
	for _, file := range p.files {
		for _, decl := range file.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			for _, spec := range group.Specs {
				all = append(all, p.constantsOf(group, spec.(*ast.ValueSpec))...)
			}
		}
	}
	return all
}

func (p *Package) constantsOf(group *ast.GenDecl, spec *ast.ValueSpec) []Constant {
	text := spec.Doc.Text() + spec.Comment.Text()
	if !group.Lparen.IsValid() {
		text += group.Doc.Text()
	}
	var all []Constant
	for _, name := range spec.Names {
		c := Constant{Name: name.Name, Doc: firstParagraph(text)}
		if group.Lparen.IsValid() {
			c.Block = firstParagraph(group.Doc.Text())
		}
		if declared, ok := p.info.Defs[name].(*types.Const); ok {
			switch v := declared.Val(); v.Kind() {
			case constant.String:
				c.Value = constant.StringVal(v)
			case constant.Int:
				c.Value = v.ExactString()
			}
		}
		all = append(all, c)
	}
	return all
}

// meaning returns the comment of a constant, or of its group, without the name.
func meaning(c Constant) string {
	text := strings.TrimPrefix(cmp.Or(c.Doc, c.Block), c.Name+" ")
	return strings.TrimPrefix(text, "is ")
}

// Comment returns the package's comment.
func (p *Package) Comment() string {
	for _, file := range p.files {
		if file.Doc != nil {
			return file.Doc.Text()
		}
	}
	return ""
}

// Function is an exported function or method.
type Function struct {
	Name, File string
	Synopsis   string // the first sentence of its comment, without its name
}

// Functions returns the exported functions and methods by the name of each function that they call, directly or not, their own included.
func (p *Package) Functions() map[string][]Function {
	calls := map[string][]string{}
	var exported []Function
	for _, file := range p.files {
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			name := fn.Name.Name
			calls[name] = append(calls[name], called(fn.Body)...)
			if fn.Name.IsExported() {
				synopsis := strings.TrimPrefix(new(doc.Package).Synopsis(fn.Doc.Text()), name+" ")
				exported = append(exported, Function{name, p.fset.Position(fn.Pos()).Filename, synopsis})
			}
		}
	}
	callers := map[string][]Function{}
	for _, fn := range exported {
		seen := map[string]bool{}
		var visit func(name string)
		visit = func(name string) {
			if _, own := calls[name]; !own || seen[name] {
				return
			}
			seen[name] = true
			callers[name] = append(callers[name], fn)
			for _, next := range calls[name] {
				visit(next)
			}
		}
		visit(fn.Name)
	}
	return callers
}

// called returns the names of the functions and methods that are called in a body.
func called(body ast.Node) []string {
	var names []string
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch fn := call.Fun.(type) {
		case *ast.Ident:
			names = append(names, fn.Name)
		case *ast.SelectorExpr:
			names = append(names, fn.Sel.Name)
		}
		return true
	})
	return names
}

func firstParagraph(text string) string {
	text, _, _ = strings.Cut(text, "\n\n")
	return strings.Join(strings.Fields(text), " ")
}

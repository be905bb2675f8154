package reference

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"path"
	"regexp"
	"slices"
	"strings"
)

// EventTable lists the reasons of package eventreason, whose comments have the form "Warning on Node or Pod: meaning".
func EventTable(p *Package) (string, error) {
	var errs []error
	comment := regexp.MustCompile(`^(Normal|Warning|Normal or Warning) on ([A-Za-z, ]+): (.*)$`)
	t := NewTable("reason", "type", "on", "meaning")
	for _, c := range p.Constants() {
		m := comment.FindStringSubmatch(c.Doc)
		if m == nil || c.Name != c.Value {
			errs = append(errs, fmt.Errorf("reason %s = %q: want the value as the name, and a comment such as `Warning on Node: meaning.`", c.Name, c.Value))
			continue
		}
		t.Add(Code(c.Value), m[1], m[2], m[3])
	}
	return t.String(), errors.Join(errs...)
}

// ConditionTable lists the reasons of a condition: the constants of the groups with a comment that contains the type. Their comments have the form
// "True, by ovsdn-node: meaning".
func ConditionTable(p *Package, conditionType string) (string, error) {
	comment := regexp.MustCompile(`^(True|False), by (ovsdn-node|ovsdn-controller): (.*)$`)
	t := NewTable("status", "reason", "written by", "meaning")
	for _, c := range p.Constants() {
		if !strings.Contains(c.Block, conditionType) {
			continue
		}
		m := comment.FindStringSubmatch(c.Doc)
		if m == nil {
			return "", fmt.Errorf("reason %s: want a comment such as `True, by ovsdn-node: meaning.`", c.Name)
		}
		t.Add(m[1], Code(c.Value), m[2], m[3])
	}
	if len(t.rows) == 0 {
		return "", fmt.Errorf("no group of constants has the condition %s in its comment", conditionType)
	}
	return t.String(), nil
}

// AnnotationTable lists the constants with names in *Annotation. The object is the first kind that the comments of the constant and its group name.
func AnnotationTable(p *Package) (string, error) {
	kind := regexp.MustCompile(`\b(ClusterNetwork|HostSubnet|NetNamespace|Namespace|Node|Pod)s?\b`)
	t := NewTable("annotation", "on", "meaning")
	for _, c := range p.Constants() {
		if !strings.HasSuffix(c.Name, "Annotation") {
			continue
		}
		object := kind.FindStringSubmatch(c.Block + " " + c.Doc)
		if object == nil {
			return "", fmt.Errorf("annotation %s: the comment of the constant or its group names no kind of object", c.Name)
		}
		t.Add(Code(c.Value), object[1], meaning(c))
	}
	return t.String(), nil
}

// Named is a constant of a package, with a prefix to show before its value, such as a directory or the name of a table.
type Named struct {
	Package *Package
	Name    string
	Prefix  string
}

// ConstantTable lists constants by their values and comments.
func ConstantTable(column string, constants []Named) (string, error) {
	t := NewTable(column, "meaning")
	for _, n := range constants {
		all := n.Package.Constants()
		i := slices.IndexFunc(all, func(c Constant) bool { return c.Name == n.Name })
		if i < 0 || all[i].Value == "" || meaning(all[i]) == "" {
			return "", fmt.Errorf("constant %s: want a value and a comment", n.Name)
		}
		t.Add(Code(n.Prefix+all[i].Value), meaning(all[i]))
	}
	return t.String(), nil
}

// ChainTable lists the chains of the firewall: the composite literals with a Table, Name, BuiltIn and Comment.
func ChainTable(p *Package) string {
	t := NewTable("chain", "table", "called from", "rules for")
	for _, file := range p.files {
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			fields := map[string]string{}
			for _, e := range literal.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					if key, ok := kv.Key.(*ast.Ident); ok {
						fields[key.Name] = p.text(kv.Value)
					}
				}
			}
			if fields["Name"] != "" && fields["BuiltIn"] != "" {
				t.Add(Code(fields["Name"]), Code(fields["Table"]), Code(fields["BuiltIn"]), strings.TrimPrefix(fields["Comment"], "ovsdn: "))
			}
			return true
		})
	}
	slices.Sort(t.rows)
	return t.String()
}

// CNIError is an error that the plugin returns.
type CNIError struct {
	Code    string // the constant, such as ErrTryAgainLater
	Message string // "…" for what varies
	Package string
}

// CNIErrors returns the errors that the package creates with types.NewError, directly or by a function that takes the message. Messages that are
// those of other errors are left out.
func (p *Package) CNIErrors() []CNIError {
	helpers := map[string]string{} // the codes of functions that take the message
	var all []CNIError
	for _, collect := range []bool{false, true} {
		for _, file := range p.files {
			for _, decl := range file.Decls {
				fn, ok := decl.(*ast.FuncDecl)
				if !ok || fn.Body == nil {
					continue
				}
				ast.Inspect(fn.Body, func(n ast.Node) bool {
					call, ok := n.(*ast.CallExpr)
					if !ok {
						return true
					}
					e, varies := p.cniError(call, helpers)
					switch {
					case varies && !collect:
						helpers[fn.Name.Name] = e.Code
					case e.Message != "" && collect:
						for _, code := range assigned(fn.Body, e.Code) {
							all = append(all, CNIError{code, e.Message, e.Package})
						}
					}
					return true
				})
			}
		}
	}
	return all
}

// assigned returns the names of the constants that are assigned to a variable, or the name itself if none are.
func assigned(body ast.Node, variable string) []string {
	var names []string
	ast.Inspect(body, func(n ast.Node) bool {
		if s, ok := n.(*ast.AssignStmt); ok && len(s.Lhs) == 1 {
			if v, ok := s.Lhs[0].(*ast.Ident); ok && v.Name == variable && selected(s.Rhs[0]) != "" {
				names = append(names, selected(s.Rhs[0]))
			}
		}
		return true
	})
	if len(names) == 0 {
		return []string{variable}
	}
	return names
}

// cniError reads a call of types.NewError or of a helper. varies reports whether the message is a parameter of the calling function.
func (p *Package) cniError(call *ast.CallExpr, helpers map[string]string) (e CNIError, varies bool) {
	e.Package = path.Base(path.Dir(p.fset.Position(call.Pos()).Filename))
	fn, isFunction := call.Fun.(*ast.Ident)
	var message ast.Expr
	switch {
	case selected(call.Fun) == "NewError" && len(call.Args) > 1:
		e.Code, message = selected(call.Args[0]), call.Args[1]
		if ident, ok := call.Args[0].(*ast.Ident); ok {
			e.Code = ident.Name
		}
	case isFunction && helpers[fn.Name] != "" && len(call.Args) > 0:
		e.Code, message = helpers[fn.Name], call.Args[0]
	default:
		return e, false
	}
	e.Message = regexp.MustCompile(`%[a-z]`).ReplaceAllString(p.message(message), "…")
	format, ok := message.(*ast.CallExpr)
	return e, e.Message == "" && ok && selected(format.Fun) == "Sprintf"
}

// message returns the constant text of a message: itself, the format of fmt.Sprintf, or the constant operands of a sum.
func (p *Package) message(e ast.Expr) string {
	if v := p.info.Types[e].Value; v != nil && v.Kind() == constant.String {
		return constant.StringVal(v)
	}
	switch e := e.(type) {
	case *ast.CallExpr:
		if selected(e.Fun) == "Sprintf" {
			return p.message(e.Args[0])
		}
	case *ast.BinaryExpr:
		left, right := p.message(e.X), p.message(e.Y)
		if left == "" && right == "" {
			return ""
		}
		return orVaries(left) + orVaries(right)
	}
	return ""
}

func orVaries(text string) string {
	if text == "" {
		return "%s"
	}
	return text
}

package reference

import (
	"bytes"
	"cmp"
	"go/ast"
	"go/constant"
	"go/printer"
	"go/types"
	"slices"
	"strings"
)

// Flag is a flag of a program.
type Flag struct {
	Name    string
	Value   string // the name of its value in the help; "": it has none
	Usage   string
	Default string // "": none
}

// Flags returns the flags that functions of a command add to a pflag.FlagSet, sorted by name. defaults returns the default value of a field that a
// flag sets, if the source has no constant; usage the usage of a flag of package flag.
func (p *Package) Flags(functions []string, defaults func(field string) string, usage func(goFlag string) string) []Flag {
	var all []Flag
	assigned := map[string]string{} // constants that the functions assign to fields
	p.inspect(functions, func(n ast.Node) {
		if s, ok := n.(*ast.AssignStmt); ok && len(s.Lhs) == 1 && p.text(s.Rhs[0]) != "" {
			assigned[types.ExprString(s.Lhs[0])] = p.text(s.Rhs[0])
		}
	})
	ofField := func(field string) string {
		if value, ok := assigned[field]; ok {
			return value
		}
		return defaults(field)
	}
	p.inspect(functions, func(n ast.Node) {
		if call, ok := n.(*ast.CallExpr); ok {
			if f, ok := p.flag(call, ofField, usage); ok {
				all = append(all, f)
			}
		}
	})
	slices.SortFunc(all, func(a, b Flag) int { return cmp.Compare(a.Name, b.Name) })
	return slices.Compact(all)
}

// inspect calls visit for all nodes of functions.
func (p *Package) inspect(functions []string, visit func(ast.Node)) {
	for _, file := range p.files {
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && slices.Contains(functions, fn.Name.Name) {
				ast.Inspect(fn.Body, func(n ast.Node) bool {
					visit(n)
					return true
				})
			}
		}
	}
}

// flag reads a call such as f.StringVar(&value, "name", default, "usage"), with a shorthand after the name in StringVarP, and f.AddGoFlag(flags.Lookup("v")).
func (p *Package) flag(call *ast.CallExpr, defaults, usage func(string) string) (Flag, bool) {
	method := selected(call.Fun)
	if method == "AddGoFlag" {
		name := p.text(call.Args[0].(*ast.CallExpr).Args[0])
		return Flag{Name: "-" + name, Value: "level", Usage: usage(name), Default: "0"}, true
	}
	kind, shorthand := strings.CutSuffix(method, "P")
	kind, variable := strings.CutSuffix(kind, "Var")
	args := call.Args
	if variable && len(args) > 0 {
		args = args[1:]
	}
	if shorthand && len(args) > 1 {
		args = append([]ast.Expr{args[0]}, args[2:]...)
	}
	kinds := map[string]string{
		"String": "string", "StringSlice": "strings", "Int": "number", "Uint16": "number", "Uint32": "number", "Duration": "duration", "Text": "CIDR", "Bool": "",
	}
	value, known := kinds[kind]
	if !known || len(args) != len([]string{"name", "default", "usage"}) || p.text(args[0]) == "" {
		return Flag{}, false
	}
	f := Flag{Name: "--" + p.text(args[0]), Value: value, Usage: p.text(args[2]), Default: p.defaultOf(args[1], defaults)}
	if before, rest, quoted := strings.Cut(f.Usage, "`"); quoted { // as pflag.UnquoteUsage
		name, after, _ := strings.Cut(rest, "`")
		f.Value, f.Usage = name, before+name+after
	}
	return f, true
}

// text returns the value of a string. Of one that depends on variables it returns the constant part, without its last clause.
func (p *Package) text(e ast.Expr) string {
	if v := p.info.Types[e].Value; v != nil && v.Kind() == constant.String {
		return constant.StringVal(v)
	}
	if sum, ok := e.(*ast.BinaryExpr); ok {
		text := p.text(sum.X)
		if last := strings.LastIndex(text, "; "); last >= 0 {
			return text[:last]
		}
		return text
	}
	return ""
}

func (p *Package) defaultOf(e ast.Expr, defaults func(string) string) string {
	if v := p.info.Types[e].Value; v != nil {
		switch text := v.ExactString(); {
		case v.Kind() == constant.String:
			return constant.StringVal(v)
		case text == "0" || text == "false":
			return ""
		default:
			return text
		}
	}
	if conversion, ok := e.(*ast.CallExpr); ok && len(conversion.Args) == 1 {
		e = conversion.Args[0]
	}
	if s, ok := e.(*ast.SelectorExpr); ok {
		return defaults(types.ExprString(s))
	}
	var b bytes.Buffer
	_ = printer.Fprint(&b, p.fset, e) // a buffer has no errors
	return strings.ReplaceAll(b.String(), " * time.Second", "s")
}

// FlagTable formats flags.
func FlagTable(flags []Flag) string {
	t := NewTable("flag", "default", "meaning")
	for _, f := range flags {
		name := f.Name
		if f.Value != "" {
			name += "=" + strings.ToUpper(f.Value)
		}
		t.Add(Code(name), Code(f.Default), f.Usage)
	}
	return t.String()
}

package main

import (
	"errors"
	"fmt"
	"go/token"
	"go/types"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/go/callgraph/cha"
	"golang.org/x/tools/go/callgraph/vta"
	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"
)

const module = "github.com/ovsdn/ovsdn/"

// edge is a call, or a value that a goroutine passes to another.
type edge struct {
	from, to *ssa.Function
	handOff  string // how the callee gets another goroutine: go, the name of a library's function, or the channel
	iface    string // interface whose method is called
}

func (e edge) mark() string {
	switch {
	case e.handOff != "":
		return "  [goroutine: " + e.handOff + "]"
	case e.iface != "":
		return "  [interface: " + e.iface + "]"
	}
	return ""
}

// graph is the call graph of the product's own packages.
type graph struct {
	edges map[*ssa.Function][]edge
	names map[*ssa.Function]string
}

// load analyses the agent. Only this module's packages have bodies: a function value that is passed to another module counts as called.
func load(dir string) (*graph, error) {
	config := &packages.Config{Dir: dir, Mode: packages.LoadSyntax | packages.NeedModule}
	initial, err := packages.Load(config, "./cmd/...", "./pkg/...")
	if err != nil {
		return nil, err
	}
	if packages.PrintErrors(initial) > 0 {
		return nil, errors.New("the sources have errors")
	}
	program, _ := ssautil.Packages(initial, ssa.InstantiateGenerics)
	program.Build()
	functions := ssautil.AllFunctions(program)
	g := &graph{edges: map[*ssa.Function][]edge{}, names: map[*ssa.Function]string{}}
	for f := range functions {
		if isOwn(f) {
			g.names[f] = strings.ReplaceAll(f.String(), module, "")
		}
	}
	for f, node := range vta.CallGraph(functions, cha.CallGraph(program)).Nodes {
		if f == nil || !isOwn(f) {
			continue
		}
		for _, out := range node.Out {
			if !isOwn(out.Callee.Func) {
				continue
			}
			e := edge{from: f, to: out.Callee.Func}
			if out.Site != nil && out.Site.Common().IsInvoke() {
				e.iface = types.TypeString(out.Site.Common().Value.Type(), packageName)
			}
			if _, isGo := out.Site.(*ssa.Go); isGo {
				e.handOff = "go"
			}
			g.edges[f] = append(g.edges[f], e)
		}
	}
	g.addCallbacks()
	g.addChannels()
	for _, edges := range g.edges {
		slices.SortFunc(edges, func(a, b edge) int { return strings.Compare(g.names[a.to], g.names[b.to]) })
	}
	return g, nil
}

func packageName(p *types.Package) string { return p.Name() }

// isOwn reports whether the function has a body in this module. Instances of generic functions have their origin's package, and methods that a
// struct has from an embedded field have their type's.
func isOwn(f *ssa.Function) bool {
	pkg := f.Package()
	if pkg == nil && f.Synthetic != "" && f.Object() != nil && f.Object().Pkg() != nil {
		return len(f.Blocks) > 0 && strings.HasPrefix(f.Object().Pkg().Path()+"/", module)
	}
	if pkg == nil && f.Origin() != nil {
		pkg = f.Origin().Package()
	}
	if pkg == nil && f.Parent() != nil {
		return isOwn(f.Parent())
	}
	return len(f.Blocks) > 0 && pkg != nil && strings.HasPrefix(pkg.Pkg.Path()+"/", module)
}

// addCallbacks adds calls of functions that are passed to functions of other modules, such as errgroup's Go.
func (g *graph) addCallbacks() {
	for f := range g.names {
		for _, call := range calls(f) {
			callee := call.Common().StaticCallee()
			if callee == nil || isOwn(callee) {
				continue
			}
			for _, argument := range call.Common().Args {
				if to := functionOf(argument); to != nil && isOwn(to) {
					e := edge{from: f, to: to}
					if name := callee.Name(); name == "Go" || name == "TryGo" || name == "AfterFunc" {
						e.handOff = callee.String()
					}
					g.edges[f] = append(g.edges[f], e)
				}
			}
		}
	}
}

func calls(f *ssa.Function) (all []ssa.CallInstruction) {
	for _, b := range f.Blocks {
		for _, i := range b.Instrs {
			if call, ok := i.(ssa.CallInstruction); ok {
				all = append(all, call)
			}
		}
	}
	return all
}

func functionOf(v ssa.Value) *ssa.Function {
	switch v := v.(type) {
	case *ssa.Function:
		return v
	case *ssa.MakeClosure:
		return v.Fn.(*ssa.Function)
	case *ssa.ChangeType:
		return functionOf(v.X)
	}
	return nil
}

// addChannels connects the functions that send to a channel with those that receive from it. A channel is recognized if it is a struct's field,
// also one that is passed to a function that sends or receives.
func (g *graph) addChannels() {
	senders, receivers := map[string][]*ssa.Function{}, map[string][]*ssa.Function{}
	sending, receiving := map[ssa.Value]bool{}, map[ssa.Value]bool{}
	for f := range g.names {
		for channel, send := range operations(f) {
			if send {
				sending[channel] = true
				record(senders, channel, f)
			} else {
				receiving[channel] = true
				record(receivers, channel, f)
			}
		}
	}
	for f := range g.names {
		for _, call := range calls(f) {
			callee := call.Common().StaticCallee()
			if callee == nil || !isOwn(callee) {
				continue
			}
			for i, argument := range call.Common().Args {
				if sending[callee.Params[i]] {
					record(senders, argument, f)
				}
				if receiving[callee.Params[i]] {
					record(receivers, argument, f)
				}
			}
		}
	}
	for channel, from := range senders {
		for _, f := range from {
			for _, to := range receivers[channel] {
				if f != to {
					g.edges[f] = append(g.edges[f], edge{from: f, to: to, handOff: channel})
				}
			}
		}
	}
}

// operations yields the channels that the function uses, and whether it sends to them.
func operations(f *ssa.Function) iter.Seq2[ssa.Value, bool] {
	return func(yield func(ssa.Value, bool) bool) {
		for _, b := range f.Blocks {
			for _, i := range b.Instrs {
				switch i := i.(type) {
				case *ssa.Send:
					if !yield(i.Chan, true) {
						return
					}
				case *ssa.UnOp:
					if i.Op == token.ARROW && !yield(i.X, false) {
						return
					}
				case *ssa.Select:
					for _, s := range i.States {
						if !yield(s.Chan, s.Dir == types.SendOnly) {
							return
						}
					}
				}
			}
		}
	}
}

// record adds the function to those of the channel, if that is a struct's field.
func record(functions map[string][]*ssa.Function, channel ssa.Value, f *ssa.Function) {
	load, ok := channel.(*ssa.UnOp)
	if !ok {
		return
	}
	address, ok := load.X.(*ssa.FieldAddr)
	if !ok {
		return
	}
	pointer, ok := address.X.Type().Underlying().(*types.Pointer)
	if !ok {
		return
	}
	if s, ok := pointer.Elem().Underlying().(*types.Struct); ok {
		name := types.TypeString(pointer.Elem(), packageName) + "." + s.Field(address.Field).Name()
		if !slices.Contains(functions[name], f) {
			functions[name] = append(functions[name], f)
		}
	}
}

// find returns the functions whose name matches the pattern.
func (g *graph) find(pattern string) ([]*ssa.Function, error) {
	expression, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	var found []*ssa.Function
	for f, name := range g.names {
		if expression.MatchString(name) {
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no function matches %s", pattern)
	}
	slices.SortFunc(found, func(a, b *ssa.Function) int { return strings.Compare(g.names[a], g.names[b]) })
	return found, nil
}

func (g *graph) name(f *ssa.Function) string { return g.names[f] }

// shortest returns a path with the fewest functions.
func (g *graph) shortest(from, to []*ssa.Function) []edge {
	by := map[*ssa.Function]edge{}
	queue := slices.Clone(from)
	for _, f := range from {
		by[f] = edge{to: f}
	}
	for len(queue) > 0 {
		f := queue[0]
		queue = queue[1:]
		if slices.Contains(to, f) {
			path := []edge{by[f]}
			for path[0].from != nil {
				path = slices.Insert(path, 0, by[path[0].from])
			}
			return path
		}
		for _, e := range g.edges[f] {
			if _, seen := by[e.to]; !seen {
				by[e.to] = e
				queue = append(queue, e.to)
			}
		}
	}
	return nil
}

// between returns the edges that are on any path.
func (g *graph) between(from, to []*ssa.Function) []edge {
	backwards := map[*ssa.Function][]*ssa.Function{}
	for _, edges := range g.edges {
		for _, e := range edges {
			backwards[e.to] = append(backwards[e.to], e.from)
		}
	}
	reached := reach(from, func(f *ssa.Function) (next []*ssa.Function) {
		for _, e := range g.edges[f] {
			next = append(next, e.to)
		}
		return next
	})
	reaching := reach(to, func(f *ssa.Function) []*ssa.Function { return backwards[f] })
	var all []edge
	for _, f := range slices.SortedFunc(maps.Keys(reached), func(a, b *ssa.Function) int { return strings.Compare(g.names[a], g.names[b]) }) {
		for _, e := range g.edges[f] {
			if reaching[f] && reaching[e.to] {
				all = append(all, e)
			}
		}
	}
	return all
}

func reach(from []*ssa.Function, next func(*ssa.Function) []*ssa.Function) map[*ssa.Function]bool {
	reached := map[*ssa.Function]bool{}
	for stack := slices.Clone(from); len(stack) > 0; {
		f := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if !reached[f] {
			reached[f] = true
			stack = append(stack, next(f)...)
		}
	}
	return reached
}

type counts struct{ functions, handOffs, interfaces int }

// count counts each function, hand-off and interface once. Functions inside another count as part of it.
func count(edges []edge) counts {
	functions, handOffs, interfaces := map[*ssa.Function]bool{}, map[string]bool{}, map[string]bool{}
	for _, e := range edges {
		functions[outermost(e.to)] = true
		if e.from != nil {
			functions[outermost(e.from)] = true
		}
		switch e.handOff {
		case "":
		case "go":
			handOffs[e.to.String()] = true
		default:
			handOffs[e.handOff+e.to.String()] = true
		}
		if e.iface != "" {
			interfaces[e.iface] = true
		}
	}
	return counts{len(functions), len(handOffs), len(interfaces)}
}

func outermost(f *ssa.Function) *ssa.Function {
	for f.Parent() != nil {
		f = f.Parent()
	}
	return f
}

package reference

import (
	"cmp"
	"fmt"
	"go/doc"
	"go/doc/comment"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// PipelineSections returns the generated sections of docs/pipeline.md from package pipeline, with the names and purposes of its tables.
func PipelineSections(p *Package, names, purposes map[int]string) map[string]string {
	d := pipelineDoc{names: names, purposes: purposes, constants: map[string]Constant{}, functions: p.Functions()}
	for _, c := range p.Constants() {
		d.constants[c.Name] = c
		d.order = append(d.order, c)
	}
	d.emitters, _ = p.Emitters()
	return map[string]string{
		"stages":    stages(p.Comment()),
		"tables":    d.tables(),
		"flows":     d.flows(),
		"meters":    d.meters(),
		"registers": d.registers(),
		"bits":      d.bits(),
		"zones":     d.zones(),
		"cookies":   d.cookies(),
		"compilers": d.compilers(),
	}
}

type pipelineDoc struct {
	names     map[int]string // of tables
	purposes  map[int]string
	constants map[string]Constant // by name
	order     []Constant          // of the sources
	functions map[string][]Function
	emitters  []Emitter
}

// stages formats a package comment as Markdown.
func stages(text string) string {
	return string((&comment.Printer{}).Markdown(new(comment.Parser).Parse(text)))
}

func (d *pipelineDoc) tables() string {
	t := NewTable("table", "name", "packets", "continues with")
	for _, number := range slices.Sorted(maps.Keys(d.names)) {
		t.Add(link(strconv.Itoa(number), d.anchor(number)), d.names[number], d.purposes[number], d.next(number))
	}
	return t.String()
}

func link(text, anchor string) string { return fmt.Sprintf("[%s](#%s)", text, anchor) }

func (d *pipelineDoc) heading(table int) string {
	return fmt.Sprintf("Table %d: %s", table, d.names[table])
}

// anchor returns the anchor that Markdown renderers derive from the heading of a table.
func (d *pipelineDoc) anchor(table int) string {
	return strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(d.heading(table)), ":", ""), " ", "-")
}

// next returns the tables that the flows of a table continue with.
func (d *pipelineDoc) next(table int) string {
	found := map[int]bool{}
	for _, f := range d.flowsOf(table) {
		for _, m := range regexp.MustCompile(`(?:goto_table:|resubmit\(,|ct\(table=)([0-9]+)`).FindAllStringSubmatch(f.text, -1) {
			n, _ := strconv.Atoi(m[1]) // digits
			found[n] = true
		}
	}
	var links []string
	for _, n := range slices.Sorted(maps.Keys(found)) {
		links = append(links, link(strconv.Itoa(n), d.anchor(n)))
	}
	return strings.Join(links, ", ")
}

type example struct {
	text     string
	priority int
	fn       string
}

// flowsOf returns the examples of the flows of a table, those of the highest priority first.
func (d *pipelineDoc) flowsOf(table int) []example {
	var all []example
	seen := map[string]bool{}
	for _, e := range d.emitters {
		if e.Func == "add" {
			continue // its callers have the same examples
		}
		for _, x := range e.Examples {
			var of, priority int
			if n, _ := fmt.Sscanf(x.Text, "table=%d,priority=%d,", &of, &priority); n == 2 && of == table && !seen[x.Text+e.Func] {
				all = append(all, example{x.Text, priority, e.Func})
				seen[x.Text+e.Func] = true
			}
		}
	}
	slices.SortStableFunc(all, func(a, b example) int { return cmp.Compare(b.priority, a.priority) })
	return all
}

func (d *pipelineDoc) flows() string {
	var b strings.Builder
	for _, number := range slices.Sorted(maps.Keys(d.names)) {
		fmt.Fprintf(&b, "### %s\n\n", d.heading(number))
		t := NewTable("flow", "compiled by")
		for _, f := range d.flowsOf(number) {
			t.Add(Code(f.text), d.compiledBy(f.fn))
		}
		b.WriteString(t.String() + "\n")
	}
	return b.String()
}

// compiledBy returns the exported functions that call a function.
func (d *pipelineDoc) compiledBy(fn string) string {
	var names []string
	for _, f := range d.functions[fn] {
		names = append(names, Code(f.Name))
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

func (d *pipelineDoc) meters() string {
	t := NewTable("meter", "compiled by")
	for _, e := range d.emitters {
		for _, x := range e.Examples {
			if e.Meter {
				t.Add(Code(x.Text), d.compiledBy(e.Func))
			}
		}
	}
	return t.String()
}

func (d *pipelineDoc) registers() string {
	register := regexp.MustCompile(`^NXM_NX_(REG\d+|TUN_ID)\[`)
	t := NewTable("field", "constant", "value")
	for _, c := range slices.SortedFunc(slices.Values(d.order), func(a, b Constant) int { return cmp.Compare(a.Value, b.Value) }) {
		if register.MatchString(c.Value) && c.Doc != "" {
			t.Add(Code(c.Value), Code(c.Name), meaning(c))
		}
	}
	return t.String()
}

func (d *pipelineDoc) bits() string {
	t := NewTable("match", "constant", "meaning")
	for _, c := range d.order {
		if value, err := strconv.Atoi(c.Value); err == nil && strings.HasPrefix(c.Block, "The bits of reg4") {
			t.Add(Code(fmt.Sprintf("reg4=%#x/%#x", value, value)), Code(c.Name), c.Doc)
		}
	}
	return t.String()
}

func (d *pipelineDoc) zones() string {
	t := NewTable("constant", "value", "meaning")
	for _, name := range []string{"zoneEgressIP", "egressIPBits", "zoneLocal", "zoneTarget", "zoneHairpin", "zoneNAT", "zoneBits", "firstZone", "markProxied", "markDirect", "markHostPort", "markBalanced",
		"RoutedDSCP", "ForwardedDSCP", "HairpinDSCP"} {
		c := d.constants[name]
		value, _ := strconv.Atoi(c.Value) // a number
		text := new(doc.Package).Synopsis(c.Doc)
		t.Add(Code(name), fmt.Sprintf("%d (%#x)", value, value), strings.TrimPrefix(text, name+" is "))
	}
	return t.String()
}

func (d *pipelineDoc) cookies() string {
	t := NewTable("first byte", "constant", "owner of the flow")
	for _, c := range d.order {
		if value, err := strconv.Atoi(c.Value); err == nil && strings.HasPrefix(c.Name, "Kind") {
			t.Add(Code(fmt.Sprintf("%#02x", value)), Code(c.Name), c.Doc)
		}
	}
	return t.String()
}

// compilers lists the exported functions that emit flows.
func (d *pipelineDoc) compilers() string {
	compilers := map[string]Function{}
	for _, e := range d.emitters {
		for _, f := range d.functions[e.Func] {
			compilers[f.Name] = f
		}
	}
	t := NewTable("function", "compiles", "source")
	for _, name := range slices.Sorted(maps.Keys(compilers)) {
		f := compilers[name]
		t.Add(Code(name), strings.TrimPrefix(f.Synopsis, "compiles "), Code(filepath.Base(f.File)))
	}
	return t.String()
}

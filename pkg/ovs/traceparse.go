package ovs

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// Trace is the report of ofproto/trace: the passes of a packet through the bridge. Each lookup of its connection that continues with a table begins
// another one.
type Trace struct {
	Passes []TracePass
	Forks  int // recirculations; more than the passes after the first one if some are missing in the report
}

// TracePass is one pass.
type TracePass struct {
	Lookup     string // the assumed state of the connection, such as "trk|new"; "" if the pass does not follow a lookup
	Flows      []TracedFlow
	Start, End map[string]string // fields of the packet
	Failure    string            // the reason for which vswitchd ended the evaluation

	megaflow map[string]bits // what the megaflow of the pass matches of each variable field
}

// TracedFlow is a flow that the packet matched.
type TracedFlow struct {
	Key     Key
	Cookie  uint64
	NoMatch bool // no flow of the table matched; Key has the table only
	Actions []TracedAction
}

// TracedAction is an action that was evaluated.
type TracedAction struct {
	Text     string
	Notes    []string
	Warnings []string // reasons why the action has no effect
}

// Limits of a report. That of a service with as many endpoints outside of the pod network as are evaluated has half of them.
const (
	MaxTraceText  = 2 << 20 // bytes
	maxTraceFlows = 8192
	maxPasses     = maxLookups + 1
)

var errTraceFormat = errors.New("the report of ofproto/trace has an unknown form")

// TraceParser parses reports of ofproto/trace. It is safe for concurrent use.
type TraceParser struct {
	tables map[string]int // by name
	line   *regexp.Regexp
}

// NewTraceParser returns a parser. tables has the names that Open vSwitch prints in place of numbers of tables.
func NewTraceParser(tables map[int]string) *TraceParser {
	p := &TraceParser{tables: make(map[string]int, len(tables)), line: traceLine()}
	for n, name := range tables {
		p.tables[name] = n
	}
	return p
}

// Parse parses a report.
func (p *TraceParser) Parse(report string) (*Trace, error) {
	if len(report) > MaxTraceText {
		return nil, fmt.Errorf("the report of ofproto/trace has more than %d bytes", MaxTraceText)
	}
	r := traceReport{TraceParser: p}
	for line := range strings.Lines(report) {
		if err := r.parse(strings.TrimRight(line, "\r\n")); err != nil {
			return nil, err
		}
	}
	if r.pass != nil || len(r.trace.Passes) == 0 {
		return nil, errTraceFormat // cut off
	}
	return &r.trace, nil
}

// traceLine matches the line of a flow: its table, match, priority and cookie.
func traceLine() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z0-9_-]{1,64})\. (?:(No match|Packets are IP fragments).*|(?:([^ ]*), )?priority ([0-9]{1,5})(?:, cookie 0x([0-9a-f]{1,16}))?)$`)
}

// traceReport is a report that is being parsed.
type traceReport struct {
	*TraceParser

	trace  Trace
	pass   *TracePass // between "Flow:" and "Final flow:"
	other  *int       // indentation of another bridge, in which the packet continues; nil: none
	bridge bool       // the pass has reached the bridge
	lookup string     // of the next pass
	open   []openFlow // the last flow at each indentation
	flows  int
}

// openFlow is a flow, whose further actions have a larger indentation.
type openFlow struct{ index, indent int }

// parse parses a line without its end.
func (p *traceReport) parse(line string) error {
	text := strings.TrimLeft(line, " ")
	switch {
	case p.pass != nil:
		return p.parseStep(text, len(line)-len(text))
	case strings.HasPrefix(text, "recirc(") && strings.Contains(text, " ct_state="):
		_, state, _ := strings.Cut(text, " ct_state=")
		p.lookup, _, _ = strings.Cut(state, " ")
	case strings.HasPrefix(text, "Flow: "):
		if len(p.trace.Passes) == maxPasses {
			return fmt.Errorf("the report of ofproto/trace has more than %d passes", maxPasses)
		}
		p.pass = &TracePass{Lookup: p.lookup, Start: traceFields(text[len("Flow: "):])}
		p.pass.megaflow = exactBits(p.pass.Start)
		p.lookup, p.open, p.bridge, p.other = "", nil, false, nil
	case strings.HasPrefix(text, "Megaflow: "):
		if len(p.trace.Passes) == 0 {
			return errTraceFormat
		}
		last := &p.trace.Passes[len(p.trace.Passes)-1]
		last.megaflow = matchedBits(traceFields(text[len("Megaflow: "):]), last.megaflow)
	case strings.HasPrefix(text, "Translation failed ("):
		if len(p.trace.Passes) == 0 {
			return errTraceFormat
		}
		p.trace.Passes[len(p.trace.Passes)-1].Failure = text
	case strings.HasPrefix(text, "Trace reached the recirculation limit"):
		return errors.New("the packet exceeded the number of recirculations")
	}
	return nil
}

// parseStep parses a line of a pass after that of the packet.
func (p *traceReport) parseStep(text string, indent int) error {
	switch {
	case strings.HasPrefix(text, "Final flow: "):
		p.pass.End = p.pass.Start
		if fields := text[len("Final flow: "):]; fields != "unchanged" {
			p.pass.End = traceFields(fields)
		}
		p.trace.Passes = append(p.trace.Passes, *p.pass)
		p.pass = nil
		return nil
	case text == "", p.isOther(text, indent):
		return nil
	case strings.HasPrefix(text, ">>>> "):
		p.pass.Failure = strings.TrimSuffix(text[len(">>>> "):], " <<<<")
		return nil
	case strings.HasPrefix(text, "-> "), strings.HasPrefix(text, ">> "):
		p.annotate(text[:2] == ">>", text[3:])
		return nil
	case text == "thaw", strings.HasPrefix(text, "Resuming from table "), strings.HasPrefix(text, bridgeLine), strings.Trim(text, "-") == "":
		return nil
	}
	if m := p.line.FindStringSubmatch(text); m != nil {
		return p.addFlow(m, indent)
	}
	flow := p.flowAt(indent)
	if flow == nil {
		return errTraceFormat
	}
	if n := len(flow.Actions); n == 0 || !isPart(flow.Actions[n-1].Text, text) {
		flow.Actions = append(flow.Actions, TracedAction{Text: text})
	}
	return nil
}

// isPart reports whether the line is part of a ct action, whose nested actions are listed below it; "drop" stands for none.
func isPart(action, line string) bool {
	return strings.HasPrefix(action, "ct(") && (line == "drop" || strings.Contains(action, line))
}

// bridgeLine is the beginning of the line of a bridge.
const bridgeLine = `bridge("`

// isOther reports whether the line is of another bridge, such as that of the underlay of tunnels on the userspace datapath.
func (p *traceReport) isOther(text string, indent int) bool {
	isBridge := strings.HasPrefix(text, bridgeLine)
	switch {
	case p.other != nil && indent >= *p.other:
		return true
	case isBridge && p.bridge:
		p.other = &indent
		return true
	case isBridge:
		p.bridge = true
	}
	p.other = nil
	return false
}

// flowAt returns the flow whose actions have the indentation.
func (p *traceReport) flowAt(indent int) *TracedFlow {
	for len(p.open) > 0 && p.open[len(p.open)-1].indent >= indent {
		p.open = p.open[:len(p.open)-1]
	}
	if len(p.open) == 0 {
		return nil
	}
	return &p.pass.Flows[p.open[len(p.open)-1].index]
}

func (p *traceReport) addFlow(m []string, indent int) error {
	if p.flows++; p.flows > maxTraceFlows {
		return fmt.Errorf("the packet matched more than %d flows", maxTraceFlows)
	}
	table, known := p.tables[m[1]]
	if !known {
		n, err := strconv.ParseUint(m[1], 10, 8)
		if err != nil {
			return errTraceFormat
		}
		table = int(n)
	}
	f := TracedFlow{Key: Key{Table: table}, NoMatch: m[2] != ""}
	if !f.NoMatch {
		priority, err := strconv.ParseUint(m[4], 10, 16)
		if err != nil {
			return errTraceFormat
		}
		f.Key.Priority = int(priority)
		if f.Key.Match, err = openflow.MatchText(m[3]); err != nil {
			f.Key.Match = m[3] // of another program
		}
		if m[5] != "" {
			if f.Cookie, err = strconv.ParseUint(m[5], 16, 64); err != nil {
				return errTraceFormat
			}
		}
	}
	p.flowAt(indent) // ends the flows of this and larger indentations
	p.open = append(p.open, openFlow{len(p.pass.Flows), indent})
	p.pass.Flows = append(p.pass.Flows, f)
	return nil
}

// annotate adds a remark of vswitchd to the last action.
func (p *traceReport) annotate(warning bool, text string) {
	if strings.Contains(text, forked) {
		p.trace.Forks++
	}
	if len(p.open) == 0 {
		return
	}
	flow := &p.pass.Flows[p.open[len(p.open)-1].index]
	if len(flow.Actions) == 0 {
		return
	}
	a := &flow.Actions[len(flow.Actions)-1]
	if warning {
		a.Warnings = append(a.Warnings, text)
	} else {
		a.Notes = append(a.Notes, text)
	}
}

// traceFields returns the fields of a packet by name.
func traceFields(text string) map[string]string {
	fields := map[string]string{}
	for field := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(field, "=")
		fields[name] = value
	}
	return fields
}

// Resumes reports whether the action looks up the packet's connection, and continues with another pass; translates reports whether that pass has addresses of the
// connection's entry that the trace does not know.
func (a TracedAction) Resumes() (resumes, translates bool) {
	for _, note := range a.Notes {
		if strings.Contains(note, forked) {
			arguments, _, _ := strings.Cut(strings.TrimPrefix(a.Text, "ct("), ")")
			return true, slices.Contains(strings.Split(arguments, ","), "nat")
		}
	}
	return false, false
}

// forked is part of the note of vswitchd about an action that continues with another pass.
const forked = " is forked to recirculate"

// HasNoBucket reports whether the action is of a group that selects no bucket for the packet.
func (a TracedAction) HasNoBucket() bool { return slices.Contains(a.Notes, "no live bucket") }

// OnlyInTrace reports whether a warning is one that vswitchd has in traces only: a pass after a lookup begins with the tunnel that flows have set for the output.
func OnlyInTrace(warning string) bool { return warning == "Not tunneling to our own address" }

// NoPort is the output of an action to other than one port.
const NoPort = -1

// Output returns the port that the action outputs the packet of the pass to, or NoPort for an action that may output it elsewhere. It returns false for actions
// that output nothing; copies to a controller are no outputs.
func (a TracedAction) Output(pass *TracePass) (port int, ok bool) {
	text := strings.ToLower(a.Text)
	name, isOutput := strings.CutPrefix(text, "output:")
	switch {
	case text == "in_port":
		name = pass.Start["in_port"]
	case text == "normal", text == "flood", text == "all", text == "local", strings.HasPrefix(text, "enqueue:"), strings.HasPrefix(text, "enqueue("),
		strings.HasPrefix(text, "output("), strings.HasPrefix(text, "bundle"):
		return NoPort, true
	case !isOutput:
		return 0, false
	}
	for _, note := range a.Notes { // of a register
		if n, found := strings.CutPrefix(note, "output port is "); found {
			name = n
		}
	}
	n, err := strconv.ParseUint(name, 10, 16)
	if err != nil {
		return NoPort, true
	}
	return int(n), true
}

package openflow

import (
	"fmt"
	"strconv"
	"strings"
)

// String returns the flow as `ovs-ofctl --no-stats --no-names dump-flows` prints it.
func (f *FlowStats) String() string {
	var b []byte
	if f.Cookie != 0 {
		b = append(appendHex(append(b, "cookie="...), Value{Lo: f.Cookie}), ", "...)
	}
	if f.Table != 0 {
		b = append(strconv.AppendUint(append(b, "table="...), uint64(f.Table), 10), ", "...)
	}
	number := func(name string, n uint16) {
		if n != 0 {
			b = append(strconv.AppendUint(append(append(b, name...), '='), uint64(n), 10), ", "...)
		}
	}
	number("idle_timeout", f.IdleTimeout)
	number("hard_timeout", f.HardTimeout)
	for i, name := range flowFlagNames() {
		if f.Flags>>i&1 != 0 {
			b = append(append(b, name...), ' ')
		}
	}
	number("importance", f.Importance)
	b = appendKeyText(b, f.Priority, f.Match)
	return string(f.Instructions.appendText(append(b, "actions="...)))
}

// appendKeyText appends priority and match, and, if there are any, the space that precedes actions=.
func appendKeyText(b []byte, priority uint16, m Match) []byte {
	start := len(b)
	if priority != DefaultPriority {
		b = strconv.AppendUint(append(b, "priority="...), uint64(priority), 10)
		if m != (Match{}) {
			b = append(b, ',')
		}
	}
	if b = m.appendText(b); len(b) > start {
		b = append(b, ' ')
	}
	return b
}

// String returns the key in the syntax of a strict delete of ovs-ofctl.
func (k FlowKey) String() string { return string(k.append(nil)) }

func (k FlowKey) append(b []byte) []byte {
	b = strconv.AppendUint(append(b, "table="...), uint64(k.Table), 10)
	b = strconv.AppendUint(append(b, ",priority="...), uint64(k.Priority), 10)
	if k.Match != (Match{}) {
		b = k.Match.appendText(append(b, ','))
	}
	return b
}

// String returns the change in the syntax of a line of a file for `ovs-ofctl --bundle add-flows`.
func (m *FlowMod) String() string {
	b := append([]byte(m.Command.String()), ' ')
	key := m.Key()
	switch m.Command {
	case FlowModify, FlowDelete: // ovs-ofctl accepts no priority for these
		if m.Table != AllTables {
			b = append(strconv.AppendUint(append(b, "table="...), uint64(m.Table), 10), ',')
		}
		if m.Match != (Match{}) {
			b = append(m.Match.appendText(b), ',')
		}
	default:
		b = append(key.append(b), ',')
	}
	if m.CookieMask != 0 {
		b = appendHex(append(b, "cookie="...), Value{Lo: m.Cookie})
		b = append(appendHex(append(b, '/'), Value{Lo: m.CookieMask}), ',')
	} else if m.Cookie != 0 {
		b = append(appendHex(append(b, "cookie="...), Value{Lo: m.Cookie}), ',')
	}
	if m.Command == FlowDelete || m.Command == FlowDeleteStrict {
		return strings.TrimRight(string(b), ", ")
	}
	for _, n := range []struct {
		name  string
		value uint16
	}{{"idle_timeout", m.IdleTimeout}, {"hard_timeout", m.HardTimeout}, {"importance", m.Importance}} {
		if n.value != 0 {
			b = append(strconv.AppendUint(append(append(b, n.name...), '='), uint64(n.value), 10), ',')
		}
	}
	for i, name := range flowFlagNames() {
		if m.Flags>>i&1 != 0 {
			b = append(append(b, name...), ',')
		}
	}
	return string(m.Instructions.appendText(append(b, "actions="...)))
}

// ParseFlow parses a flow in the syntax that ovs-ofctl accepts (add-flow, or a line of add-flows that begins with a command) or prints;
// statistics are skipped. Actions are optional in deletes only.
func ParseFlow(text string) (*FlowMod, error) {
	m, err := parseFlow(text)
	if err != nil {
		return nil, fmt.Errorf("flow %q: %w", excerpt(strings.TrimSpace(text)), err)
	}
	return m, nil
}

func parseFlow(text string) (*FlowMod, error) {
	m := &FlowMod{Priority: DefaultPriority}
	text = m.cutCommand(text)
	if m.Command == FlowDelete || m.Command == FlowModify {
		m.Table = AllTables
	}
	var buf [mostWords]word
	words := buf[:0]
	for {
		w, rest, err := nextWord(text)
		if err != nil {
			return nil, err
		}
		if w.key == "" || w.key == "actions" || w.key == "action" {
			break
		}
		known, err := m.property(w)
		if err != nil {
			return nil, err
		}
		if !known {
			words = append(words, w)
		}
		text = rest
	}
	var err error
	if m.Match, err = parseMatch(words); err != nil {
		return nil, err
	}
	text = trimSeparators(text)
	_, actions, ok := strings.Cut(text, "=")
	switch {
	case ok:
		p := newActionParser(m.Match)
		m.Instructions, err = p.instructions(actions)
		return m, err
	case m.Command == FlowDelete || m.Command == FlowDeleteStrict:
		return m, nil
	}
	return nil, fmt.Errorf("actions= is missing")
}

// cutCommand removes a leading command, such as delete_strict, from text.
func (m *FlowMod) cutCommand(text string) string {
	text = trimSeparators(text)
	word, rest, ok := strings.Cut(text, " ")
	for i, name := range flowCommandNames() {
		if word == name && (ok || i >= int(FlowDelete)) {
			m.Command = FlowCommand(i)
			return rest
		}
	}
	return text
}

// property parses a property of the flow other than match and actions; known is false for any other word.
func (m *FlowMod) property(w word) (known bool, err error) {
	number := func(to *uint16) (bool, error) {
		n, err := w.uint(16)
		*to = uint16(n)
		return true, err
	}
	switch w.key {
	case "table":
		n, err := w.uint(8)
		m.Table = uint8(n)
		return true, err
	case "priority":
		return number(&m.Priority)
	case "idle_timeout":
		return number(&m.IdleTimeout)
	case "hard_timeout":
		return number(&m.HardTimeout)
	case "importance":
		return number(&m.Importance)
	case "cookie":
		return true, m.cookie(w)
	case "duration", "n_packets", "n_bytes", "idle_age", "hard_age":
		return true, nil
	}
	for i, name := range flowFlagNames() {
		if w.key == name && w.form == 0 {
			m.Flags |= 1 << i
			return true, nil
		}
	}
	return false, nil
}

func (m *FlowMod) cookie(w word) error {
	value, mask, masked := strings.Cut(w.value, "/")
	var err error
	if m.Cookie, err = parseUint(value, 64); err != nil || !masked {
		return err
	}
	if mask == "-1" {
		m.CookieMask = ^uint64(0)
		return nil
	}
	m.CookieMask, err = parseUint(mask, 64)
	return err
}

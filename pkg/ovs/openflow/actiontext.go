package openflow

import (
	"fmt"
	"strings"
)

// eachWord calls f for every word of s.
func eachWord(s string, f func(word) error) error {
	for {
		w, rest, err := nextWord(s)
		if err != nil || w.key == "" {
			return err
		}
		if err := f(w); err != nil {
			return err
		}
		s = rest
	}
}

// ParseActions parses a list of actions in the syntax of ovs-ofctl, without instructions such as goto_table (see ParseInstructions).
// "drop" is the empty list.
func ParseActions(text string) ([]Action, error) {
	p := actionParser{}
	actions, err := p.actions(text)
	if err != nil {
		return nil, fmt.Errorf("actions %q: %w", excerpt(text), err)
	}
	return actions, nil
}

// actionParser parses the actions of a flow. It has the flow's match because mod_tp_dst and mod_vlan_vid depend on it.
type actionParser struct {
	match   Match
	hasVLAN bool // the packet has a VLAN tag before the next action
}

func newActionParser(m Match) actionParser {
	vid, _ := m.Lookup(FieldVLANVID)
	return actionParser{match: m, hasVLAN: vid.Value.Lo&vlanPresent != 0}
}

func (p *actionParser) actions(text string) ([]Action, error) {
	var actions []Action
	drop := false
	err := eachWord(text, func(w word) error {
		if w.key == "drop" {
			drop = true
			return w.plain()
		}
		parsed, err := p.action(w)
		actions = append(actions, parsed...)
		return err
	})
	if err == nil && drop && len(actions) > 0 {
		err = fmt.Errorf("drop cannot be combined with other actions")
	}
	return actions, err
}

// action parses one word. Some OpenFlow 1.0 words, such as mod_vlan_vid, become two actions.
func (p *actionParser) action(w word) ([]Action, error) {
	if w.key == "mod_vlan_vid" || w.key == "mod_vlan_pcp" {
		return p.modVLAN(w)
	}
	a, err := p.one(w)
	if err != nil {
		return nil, err
	}
	if w.tail != "" && a.Kind() != KindCheckPktLarger {
		return nil, fmt.Errorf("%q follows %s(…)", w.tail, w.key)
	}
	switch a.Kind() {
	case KindPushVLAN:
		p.hasVLAN = true
	case KindPopVLAN:
		p.hasVLAN = false
	}
	return []Action{a}, nil
}

func (p *actionParser) one(w word) (Action, error) {
	switch w.key {
	case "output":
		return parseOutput(w)
	case "controller", "CONTROLLER":
		return parseController(w)
	case "group":
		n, err := w.uint(32)
		return ToGroup{ID: uint32(n)}, err
	case "resubmit":
		return parseResubmit(w)
	case "move":
		return parseMove(w.value)
	case "load":
		return parseLoad(w.value)
	case "set_field":
		return parseSetField(w.value)
	case "push_vlan", "push_mpls", "pop_mpls":
		return parseTag(w)
	case "pop_vlan", "strip_vlan":
		return PopVLAN{}, w.plain()
	case "mod_nw_ttl":
		n, err := w.uint(8)
		return SetTTL{TTL: uint8(n)}, err
	case "dec_ttl":
		return DecTTL{}, w.plain()
	case "ct":
		return parseCT(w.value)
	case "ct_clear":
		return CTClear{}, w.plain()
	case "learn":
		return parseLearn(w.value)
	case "conjunction":
		return parseConjunction(w.value)
	case "note":
		return parseNote(w.value)
	case "check_pkt_larger":
		return parseCheckPktLarger(w)
	case "sample":
		return parseSample(w.value)
	case unknownWord:
		raw, err := w.unknownBytes()
		if err == nil && (len(raw) < actionHeader || len(raw)%align8 != 0) {
			err = fmt.Errorf("unknown(%s): the length of an action must be a positive multiple of 8 bytes", excerpt(w.value))
		}
		return UnknownAction{Raw: raw}, err
	}
	if a, ok, err := p.alias(w); ok {
		return a, err
	}
	if w.form == 0 {
		if port, err := ParsePort(w.key); err == nil {
			return Output{Port: port}, nil
		}
	}
	return nil, fmt.Errorf("unknown action %q", excerpt(w.key))
}

// parseTag parses the actions on tags that have an EtherType.
func parseTag(w word) (Action, error) {
	n, err := w.uint(16)
	switch w.key {
	case "push_vlan":
		return PushVLAN{EtherType: uint16(n)}, err
	case "push_mpls":
		return PushMPLS{EtherType: uint16(n)}, err
	}
	return PopMPLS{EtherType: uint16(n)}, err
}

// alias parses OpenFlow 1.0 actions that ovs-ofctl sends as set_field.
func (p *actionParser) alias(w word) (a Action, ok bool, err error) {
	set := func(id FieldID) (Action, bool, error) {
		f, err := parseFieldValue(id, w.value)
		return SetField{f}, true, err
	}
	switch w.key {
	case "set_tunnel", "set_tunnel64":
		return set(FieldTunID)
	case "mod_dl_src":
		return set(FieldEthSrc)
	case "mod_dl_dst":
		return set(FieldEthDst)
	case "mod_nw_src":
		return set(FieldIPSrc)
	case "mod_nw_dst":
		return set(FieldIPDst)
	case "mod_nw_ecn":
		return set(FieldIPECN)
	case "mod_nw_tos":
		n, err := w.uint(8)
		if err == nil && n&3 != 0 {
			err = fmt.Errorf("mod_nw_tos:%d: the lower two bits belong to mod_nw_ecn", n)
		}
		return SetField{Num(FieldIPDSCP, n>>2)}, true, err
	case "mod_tp_src", "mod_tp_dst":
		var s fieldSet
		p.match.expand(&s)
		id, ok := s.transportSrc()
		if !ok {
			return nil, true, fmt.Errorf("%s needs tcp, udp or sctp in the match", w.key)
		}
		if w.key == "mod_tp_dst" {
			id++
		}
		return set(id)
	}
	return nil, false, nil
}

// modVLAN parses mod_vlan_vid and mod_vlan_pcp, which add a VLAN tag if the packet has none.
func (p *actionParser) modVLAN(w word) ([]Action, error) {
	set := Num(FieldVLANVID, 0)
	width, present := 12, uint64(vlanPresent)
	if w.key == "mod_vlan_pcp" {
		set, width, present = Num(FieldVLANPCP, 0), 3, 0
	}
	n, err := w.uint(16)
	if err == nil && n>>width != 0 {
		err = fmt.Errorf("%s:%d does not fit into %d bits", w.key, n, width)
	}
	set.Value.Lo = n | present
	if p.hasVLAN {
		return []Action{SetField{set}}, err
	}
	p.hasVLAN = true
	return []Action{PushVLAN{EtherType: ethVLAN}, SetField{set}}, err
}

// parseOutput parses output:PORT and output:FIELD[…].
func parseOutput(w word) (Action, error) {
	const all = 0xffff
	if w.form == '(' {
		return nil, fmt.Errorf("output(%s): unsupported form of output; write output:PORT or output:FIELD[…]", excerpt(w.value))
	}
	port, err := ParsePort(w.value)
	if err == nil {
		a := Output{Port: port}
		if port == PortController {
			a.MaxLen = all
		}
		return a, nil
	}
	from, err2 := ParseSubfield(w.value)
	if err2 != nil {
		return nil, fmt.Errorf("output:%s: not a port or a field", excerpt(w.value))
	}
	a := OutputField{From: from, MaxLen: all}
	return a, a.check()
}

// parseResubmit parses resubmit:PORT and resubmit([PORT],[TABLE][,ct]).
func parseResubmit(w word) (Action, error) {
	a := Resubmit{Port: PortInPort, Table: CurrentTable}
	var parts [3]string
	if fields := strings.Split(w.value, ","); len(fields) <= len(parts) {
		copy(parts[:], fields)
	} else {
		return nil, fmt.Errorf("resubmit(%s): write resubmit([PORT],[TABLE][,ct])", excerpt(w.value))
	}
	var err error
	if parts[0] != "" {
		if a.Port, err = ParsePort(parts[0]); err != nil {
			return nil, fmt.Errorf("resubmit: %w", err)
		}
	}
	if parts[1] != "" {
		n, err := parseUint(parts[1], 8)
		if err != nil {
			return nil, fmt.Errorf("resubmit: table %w", err)
		}
		a.Table = uint8(n)
	}
	switch {
	case parts[2] == "ct":
		a.CT = true
	case parts[2] != "":
		return nil, fmt.Errorf("resubmit: third argument %q, want ct", parts[2])
	}
	if a.Port == PortInPort && a.Table == CurrentTable {
		return nil, fmt.Errorf("resubmit needs a port or a table")
	}
	return a, nil
}

// parseExec parses the actions of ct(exec(…)).
func parseExec(s string) ([]Action, error) {
	var exec []Action
	err := eachWord(s, func(w word) error {
		if w.key == "ct" {
			return fmt.Errorf("ct is not allowed in ct(exec(…))")
		}
		a, err := parseInCT(w)
		exec = append(exec, a)
		return err
	})
	return exec, err
}

func parseInCT(w word) (Action, error) {
	if w.key == "nat" {
		return parseNAT(w)
	}
	p := actionParser{}
	return p.one(w)
}

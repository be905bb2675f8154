package openflow

import (
	"fmt"
	"strconv"
	"strings"
)

// DefaultPriority is the priority of a flow whose text does not specify one (OFP_DEFAULT_PRIORITY).
const DefaultPriority = 0x8000

func (a Learn) appendText(b []byte) []byte {
	b = strconv.AppendUint(append(b, "learn(table="...), uint64(a.Table), 10)
	number := func(name string, n uint64) {
		if n != 0 {
			b = strconv.AppendUint(append(append(append(b, ','), name...), '='), n, 10)
		}
	}
	number("idle_timeout", uint64(a.IdleTimeout))
	number("hard_timeout", uint64(a.HardTimeout))
	number("fin_idle_timeout", uint64(a.FinIdleTimeout))
	number("fin_hard_timeout", uint64(a.FinHardTimeout))
	if a.Priority != DefaultPriority {
		b = strconv.AppendUint(append(b, ",priority="...), uint64(a.Priority), 10)
	}
	if a.SendFlowRem {
		b = append(b, ",send_flow_rem"...)
	}
	if a.DeleteLearned {
		b = append(b, ",delete_learned"...)
	}
	if a.Cookie != 0 {
		b = appendHex(append(b, ",cookie="...), Value{Lo: a.Cookie})
	}
	number("limit", uint64(a.Limit))
	if !a.Result.isNone() {
		b = a.Result.appendText(append(b, ",result_dst="...))
	}
	for _, s := range a.Specs {
		b = s.appendText(append(b, ','))
	}
	return append(b, ')')
}

func (s LearnSpec) appendText(b []byte) []byte {
	immediate := s.Src.isNone()
	switch {
	case s.To == LearnOutput:
		return s.Src.appendText(append(b, "output:"...))
	case s.To == LearnLoad && immediate:
		b = appendHex(append(b, "load:"...), s.Value)
		return s.Dst.appendText(append(b, "->"...))
	case s.To == LearnLoad:
		b = s.Src.appendText(append(b, "load:"...))
		return s.Dst.appendText(append(b, "->"...))
	case immediate && s.Dst == Whole(s.Dst.Field):
		b = append(append(b, s.Dst.Field.String()...), '=')
		return appendFieldValue(b, Exact(s.Dst.Field, s.Value))
	case immediate:
		return appendHex(append(s.Dst.appendText(b), '='), s.Value)
	}
	b = s.Dst.appendText(b)
	if s.Src.Field != s.Dst.Field || s.Src.Offset != s.Dst.Offset {
		b = s.Src.appendText(append(b, '='))
	}
	return b
}

// parseLearn parses the arguments of learn(…).
func parseLearn(s string) (Action, error) {
	a := Learn{Table: 1, Priority: DefaultPriority} // the defaults of ovs-ofctl
	err := eachWord(s, func(w word) error {
		if known, err := a.argument(w); known || err != nil {
			return err
		}
		spec, err := parseLearnSpec(w)
		a.Specs = append(a.Specs, spec)
		return err
	})
	if err == nil {
		err = a.check()
	}
	if err != nil {
		return nil, fmt.Errorf("learn(%s): %w", excerpt(s), err)
	}
	return a, nil
}

// argument parses an argument other than a spec; known is false for any other word.
func (a *Learn) argument(w word) (known bool, err error) {
	number := func(to *uint16) (bool, error) {
		n, err := w.uint(16)
		*to = uint16(n)
		return true, err
	}
	switch w.key {
	case "table":
		n, err := w.uint(8)
		a.Table = uint8(n)
		return true, err
	case "priority":
		return number(&a.Priority)
	case "idle_timeout":
		return number(&a.IdleTimeout)
	case "hard_timeout":
		return number(&a.HardTimeout)
	case "fin_idle_timeout":
		return number(&a.FinIdleTimeout)
	case "fin_hard_timeout":
		return number(&a.FinHardTimeout)
	case "cookie":
		a.Cookie, err = w.uint(64)
		return true, err
	case "limit":
		n, err := w.uint(32)
		a.Limit = uint32(n)
		return true, err
	case "send_flow_rem":
		a.SendFlowRem = true
		return true, w.plain()
	case "delete_learned":
		a.DeleteLearned = true
		return true, w.plain()
	case "result_dst":
		a.Result, err = ParseSubfield(w.value)
		return true, err
	}
	return false, nil
}

func parseLearnSpec(w word) (LearnSpec, error) {
	var err error
	switch w.key {
	case "load":
		return parseLearnLoad(w.value)
	case "output":
		s := LearnSpec{To: LearnOutput}
		s.Src, err = ParseSubfield(w.value)
		return s, err
	}
	s := LearnSpec{To: LearnMatch}
	if s.Dst, err = ParseSubfield(w.key); err != nil {
		return s, err
	}
	switch {
	case w.form == 0:
		s.Src = s.Dst
		return s, nil
	case w.form != '=':
		return s, fmt.Errorf("%q is not a field with a value", w.key)
	}
	if s.Src, err = ParseSubfield(w.value); err == nil {
		return s, s.check()
	}
	if strings.Contains(w.key, "[") {
		s.Value, err = parseValue(w.value, int(s.Dst.Width))
		return s, err
	}
	f, err := parseFieldValue(s.Dst.Field, w.value)
	if err == nil && !f.isExact() {
		err = fmt.Errorf("%s=%s: learn accepts no mask", w.key, w.value)
	}
	s.Value = f.Value
	return s, err
}

// parseLearnLoad parses VALUE->SUBFIELD or SUBFIELD->SUBFIELD.
func parseLearnLoad(text string) (LearnSpec, error) {
	s := LearnSpec{To: LearnLoad}
	value, to, ok := strings.Cut(text, "->")
	if !ok {
		return s, fmt.Errorf("load:%s: write load:VALUE->FIELD[…] or load:FIELD[…]->FIELD[…]", text)
	}
	if value == "" || value[0] < '0' || value[0] > '9' {
		m, err := parseMove(text)
		s.Src, s.Dst = m.From, m.To
		return s, err
	}
	var err error
	if s.Dst, err = ParseSubfield(to); err != nil {
		return s, err
	}
	s.Value, err = parseValue(value, int(s.Dst.Width))
	return s, err
}

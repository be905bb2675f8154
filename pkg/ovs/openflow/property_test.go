package openflow

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/test/seed"
)

func drawValue(t *rapid.T, width int) Value {
	v := Value{Hi: rapid.Uint64().Draw(t, "hi"), Lo: rapid.Uint64().Draw(t, "lo")}
	return v.and(ones(width))
}

func drawField(t *rapid.T, below FieldID) Field {
	id := rapid.Map(rapid.IntRange(0, int(below)-1), func(n int) FieldID { return FieldID(n) }).Draw(t, "field")
	f := Exact(id, drawValue(t, id.significant()))
	if id == FieldInPort {
		f = Num(id, uint64(drawPort(t)))
	}
	if fieldTable[id].maskable && rapid.Bool().Draw(t, "masked") {
		if f.Mask = drawValue(t, id.significant()); f.Mask.isZero() {
			f.Mask = Value{Lo: 1}
		}
	}
	f.Value = f.Value.and(f.Mask)
	return f
}

func drawSubfield(t *rapid.T, most int) Subfield {
	id := rapid.Map(rapid.IntRange(0, int(numFields)-1), func(n int) FieldID { return FieldID(n) }).Draw(t, "field")
	width := rapid.IntRange(1, min(most, id.Bits())).Draw(t, "width")
	return Subfield{Field: id, Offset: uint16(rapid.IntRange(0, id.Bits()-width).Draw(t, "offset")), Width: uint16(width)}
}

// drawOther draws a subfield of the same width as s.
func drawOther(t *rapid.T, s Subfield) Subfield {
	var wide []FieldID
	for id := range numFields {
		if id.Bits() >= int(s.Width) {
			wide = append(wide, id)
		}
	}
	return Subfield{Field: rapid.SampledFrom(wide).Draw(t, "field"), Width: s.Width}
}

func drawPort(t *rapid.T) Port {
	return rapid.OneOf(
		rapid.Map(rapid.IntRange(0, maxPort16-1), func(n int) Port { return Port(n) }),
		rapid.SampledFrom([]Port{PortInPort, PortNormal, PortFlood, PortAll, PortController, PortLocal}),
	).Draw(t, "port")
}

func drawNAT(t *rapid.T) Action {
	a := NAT{Side: NATSide(rapid.IntRange(0, int(NATDestination)).Draw(t, "side"))}
	if a.Side == NATKnown || rapid.Bool().Draw(t, "any") {
		return a
	}
	size := rapid.SampledFrom([]int{4, 16}).Draw(t, "family")
	bytes := rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "address")
	bytes[0] = 10 // excludes the unspecified address and IPv4-mapped IPv6 addresses
	a.Min, _ = netip.AddrFromSlice(bytes)
	if rapid.Bool().Draw(t, "range") {
		a.Max = a.Min.Next()
	}
	if a.PortMin = rapid.Uint16().Draw(t, "port"); a.PortMin > 0 && a.PortMin < 0xffff && rapid.Bool().Draw(t, "ports") {
		a.PortMax = rapid.Uint16Range(a.PortMin+1, 0xffff).Draw(t, "last")
	}
	a.Persistent = rapid.Bool().Draw(t, "persistent")
	a.Hash = rapid.Bool().Draw(t, "hash")
	a.Random = !a.Hash && rapid.Bool().Draw(t, "random")
	return a
}

func drawLoad(t *rapid.T) Action {
	to := drawSubfield(t, maxPacked)
	return Load{To: to, Value: drawValue(t, int(to.Width)).Lo}
}

func drawMove(t *rapid.T) Action {
	from := drawSubfield(t, maxPacked)
	return Move{From: from, To: drawOther(t, from)}
}

func drawSet(t *rapid.T) Action { return SetField{drawField(t, numFields)} }

func drawCT(t *rapid.T) Action {
	a := CT{Commit: true, Force: rapid.Bool().Draw(t, "force"), Table: rapid.Uint8().Draw(t, "table"), ALG: rapid.Uint16().Draw(t, "alg")}
	if rapid.Bool().Draw(t, "zone from field") {
		a.ZoneFrom = Subfield{Field: Reg(3), Offset: 7, Width: 16}
	} else {
		a.Zone = rapid.Uint16().Draw(t, "zone")
	}
	for range rapid.IntRange(0, 3).Draw(t, "exec") {
		a.Exec = append(a.Exec, rapid.SampledFrom([]func(*rapid.T) Action{drawNAT, drawLoad, drawMove, drawSet}).Draw(t, "kind")(t))
	}
	return a
}

func drawLearn(t *rapid.T) Action {
	a := Learn{
		Table: rapid.Uint8Range(0, 254).Draw(t, "table"), Priority: rapid.Uint16().Draw(t, "priority"), Cookie: rapid.Uint64().Draw(t, "cookie"),
		IdleTimeout: rapid.Uint16().Draw(t, "idle"), Limit: rapid.Uint32().Draw(t, "limit"), DeleteLearned: rapid.Bool().Draw(t, "delete"),
	}
	if rapid.Bool().Draw(t, "result") {
		a.Result = drawSubfield(t, 1)
	}
	for range rapid.IntRange(0, 4).Draw(t, "specs") {
		s := LearnSpec{To: LearnTo(rapid.IntRange(0, int(LearnOutput)).Draw(t, "to"))}
		src := drawSubfield(t, maxPacked)
		switch {
		case s.To == LearnOutput:
			s.Src = src
		case rapid.Bool().Draw(t, "immediate"):
			s.Dst = src
			s.Value = drawValue(t, int(src.Width))
		default:
			s.Src, s.Dst = src, drawOther(t, src)
		}
		a.Specs = append(a.Specs, s)
	}
	return a
}

func drawAction(t *rapid.T) Action {
	return rapid.SampledFrom([]func(*rapid.T) Action{
		drawNAT, drawLoad, drawMove, drawSet, drawCT, drawLearn,
		func(t *rapid.T) Action { return Output{Port: drawPort(t)} },
		func(t *rapid.T) Action { return OutputField{From: drawSubfield(t, maxPacked), MaxLen: 0xffff} },
		func(t *rapid.T) Action { return Resubmit{Port: drawPort(t), Table: rapid.Uint8().Draw(t, "table")} },
		func(t *rapid.T) Action { return NewNote(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "note")) },
		func(t *rapid.T) Action {
			return CheckPktLarger{Length: rapid.Uint16().Draw(t, "length"), To: drawSubfield(t, 1)}
		},
		func(t *rapid.T) Action { return Conjunction{ID: rapid.Uint32().Draw(t, "id"), Clause: 2, Of: 3} },
		func(t *rapid.T) Action { return ToGroup{ID: rapid.Uint32().Draw(t, "id")} },
		func(t *rapid.T) Action {
			return Sample{Probability: rapid.Uint16Min(1).Draw(t, "probability"), CollectorSet: rapid.Uint32().Draw(t, "set"), Point: rapid.Uint32().Draw(t, "point")}
		},
	}).Draw(t, "kind")(t)
}

// TestRandomMatches checks matches of random fields, including fields without their prerequisites, as they may arrive on the wire.
func TestRandomMatches(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		var s fieldSet
		for range rapid.IntRange(0, 12).Draw(t, "fields") {
			_ = s.add(drawField(t, numFields)) // a contradicting field is rejected and leaves the match unchanged
		}
		m := s.match()
		b, err := m.append(nil)
		if err != nil {
			t.Fatal(err)
		}
		decoded, _, err := decodeMatch(b)
		if err != nil || decoded != m {
			t.Fatalf("encoded and decoded: got %s, error %v, want %s", decoded, err, m)
		}
		var again fieldSet
		for f := range m.Fields() {
			if err := again.add(f); err != nil {
				t.Fatal(err)
			}
		}
		if again.match() != m {
			t.Fatalf("rebuilt from its fields: got %s, want %s", again.match(), m)
		}
		if coherent, err := parseFlowMatch(m.String()); s.checkPrerequisites() == nil && (err != nil || coherent != m) && !s.has(FieldTCPFlags) {
			t.Fatalf("printed and parsed: got %s, want %s", coherent, m)
		}
	})
}

func TestRandomActions(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		in := Instructions{Meter: rapid.Uint32().Draw(t, "meter"), Goto: rapid.Uint8().Draw(t, "goto")}
		for range rapid.IntRange(0, 6).Draw(t, "actions") {
			in.Apply = append(in.Apply, drawAction(t))
		}
		canonical, err := in.Canonical()
		if err != nil {
			t.Fatal(err)
		}
		b, err := in.append(nil)
		if err != nil {
			t.Fatal(err)
		}
		decoded := decodeInstructions(b)
		if diff := cmp.Diff(in, decoded, deep()); diff != "" {
			t.Fatalf("encoded and decoded (-want +got):\n%s", diff)
		}
		if c, err := decoded.Canonical(); err != nil || c != canonical {
			t.Fatalf("encoded and decoded: got %s, error %v, want %s", decoded, err, in)
		}
	})
}

package openflow

import (
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// deep returns options with which cmp compares values of this package.
func deep() cmp.Options {
	return cmp.Options{
		cmp.Comparer(func(a, b Match) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	}
}

// readTable reads a table in testdata: lines of at least the given number of columns between tabs.
func readTable(t testing.TB, name string, columns int) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var lines [][]string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) < columns {
			t.Fatalf("%s: got %q, want at least %d columns", name, line, columns)
		}
		lines = append(lines, fields)
	}
	return lines
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// fieldForm is a field, exact or masked.
type fieldForm struct {
	id     FieldID
	masked bool
}

// parseFlowMatch parses any match that a flow of the switch may have.
func parseFlowMatch(text string) (Match, error) {
	m, err := ParseFlow(text + " actions=drop")
	if err != nil {
		return Match{}, err
	}
	return m.Match, nil
}

// TestEveryMatch compares matches with their texts and wire forms. It fails if a field has no case in testdata.
func TestEveryMatch(t *testing.T) {
	seen := map[fieldForm]bool{}
	for _, c := range readTable(t, "matches.txt", 3) {
		text, printed, wire := c[0], c[1], unhex(t, c[2])
		m, err := parseFlowMatch(text)
		if err != nil {
			t.Errorf("%q: got error %v, want none", text, err)
			continue
		}
		if got := m.String(); got != printed {
			t.Errorf("%q: got text %q, want %q", text, got, printed)
		}
		if again, err := parseFlowMatch(printed); err != nil || again != m {
			t.Errorf("%q: got %q, error %v after printing and parsing, want no change", text, again, err)
		}
		encoded, err := m.append(nil)
		if err != nil {
			t.Error(err)
		}
		if got := encoded[4 : 4+len(wire)]; string(got) != string(wire) || int(u16(encoded[2:])) != 4+len(wire) || len(encoded)%8 != 0 {
			t.Errorf("%q: got encoding %x, want TLVs %x", text, encoded, wire)
		}
		decoded, rest, err := decodeMatch(append(encoded, 1, 2, 3))
		if err != nil || decoded != m || len(rest) != 3 {
			t.Errorf("%q: got %q, %d bytes left, error %v after encoding and decoding, want no change and 3 bytes left", text, decoded, len(rest), err)
		}
		if !isCanonical(wire) {
			t.Errorf("%q: isCanonical: got false for its own encoding, want true", text)
		}
		for f := range m.Fields() {
			seen[fieldForm{f.ID, !f.isExact()}] = true
			if got, ok := m.Lookup(f.ID); !ok || got != f {
				t.Errorf("%q: Lookup: got %v, want %v", text, got, f)
			}
		}
	}
	for id := range numMatchFields {
		if !seen[fieldForm{id, false}] {
			t.Errorf("got no exact case for %s in testdata/matches.txt", id)
		}
		if fieldTable[id].maskable && id.significant() > 1 && !seen[fieldForm{id, true}] {
			t.Errorf("got no masked case for %s in testdata/matches.txt", id)
		}
	}
}

// TestEveryAction compares actions and instructions with their texts and with their wire forms. It fails if a kind, an
// instruction, or a field that only actions use has no case in testdata.
func TestEveryAction(t *testing.T) {
	kinds, fields, instructions := map[Kind]bool{}, map[fieldForm]bool{}, map[string]bool{}
	for _, c := range readTable(t, "actions.txt", 4) {
		match, text, printed, wire := c[0], c[1], c[2], unhex(t, c[3])
		m, err := ParseFlow(match + " actions=" + text)
		if err != nil {
			t.Error(err)
			continue
		}
		in := m.Instructions
		if got := in.String(); got != printed {
			t.Errorf("%q: got text %q, want %q", text, got, printed)
		}
		if again, err := ParseInstructions(Match{}, printed); err != nil || !cmp.Equal(again, in, deep()) {
			t.Errorf("%q: got %q, error %v after printing and parsing, want no change", text, again, err)
		}
		canonical, err := in.Canonical()
		if err != nil {
			t.Errorf("%q: got error %v, want none", text, err)
		}
		encoded, err := in.append(nil)
		if err != nil || string(encoded) != string(wire) {
			t.Errorf("%q: error %v\ngot  %x\nwant %x", text, err, encoded, wire)
		}
		decoded := decodeInstructions(wire)
		if diff := cmp.Diff(in, decoded, deep()); diff != "" {
			t.Errorf("%q: decoded (-want +got):\n%s", text, diff)
		}
		if got, err := decoded.Canonical(); err != nil || got != canonical {
			t.Errorf("%q: decoded: got %q, error %v, want an equal canonical form", text, decoded, err)
		}
		note(in, kinds, fields)
		v := reflect.ValueOf(in)
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				instructions[v.Type().Field(i).Name] = true
			}
		}
	}
	for k := range numKinds {
		if !kinds[k] {
			t.Errorf("got no case for %s in testdata/actions.txt", k)
		}
	}
	for id := numMatchFields; id < numFields; id++ {
		if !fields[fieldForm{id, false}] {
			t.Errorf("got no exact case for %s in testdata/actions.txt", id)
		}
		if fieldTable[id].maskable && !fields[fieldForm{id, true}] {
			t.Errorf("got no masked case for %s in testdata/actions.txt", id)
		}
	}
	for f := range reflect.TypeFor[Instructions]().Fields() {
		if !instructions[f.Name] {
			t.Errorf("got no case for the instruction %s in testdata/actions.txt", f.Name)
		}
	}
}

// note records the kinds of actions and the forms of fields in the instructions.
func note(in Instructions, kinds map[Kind]bool, fields map[fieldForm]bool) {
	var list func(actions []Action)
	list = func(actions []Action) {
		for _, a := range actions {
			kinds[a.Kind()] = true
			switch a := a.(type) {
			case CT:
				list(a.Exec)
			case SetField:
				fields[fieldForm{a.Field.ID, !a.Field.isExact()}] = true
			}
		}
	}
	list(in.Apply)
	list(in.Write)
}

// TestRegistry checks that the field table is complete and that the indexes of names and headers agree with it.
func TestRegistry(t *testing.T) {
	headers := map[oxmHeader]FieldID{}
	for i := range fieldTable {
		id, f := FieldID(i), &fieldTable[i]
		switch {
		case f.name == "" || f.size == 0 || f.bits == 0 || int(f.bits) > 8*int(f.size) || f.size > maxValue:
			t.Errorf("field %d: got incomplete entry %+v", id, f)
		case f.nx.name == "" && f.oxm.name == "":
			t.Errorf("field %s: got no header, want one", id)
		case f.size > 8 && f.form == formDecimal:
			t.Errorf("field %s: got formDecimal for %d bytes, want at most 8", id, f.size)
		}
		for _, name := range []string{f.name, f.alias, f.nx.name, f.oxm.name} {
			if got, ok := fieldNames[name]; name != "" && (!ok || got != id) {
				t.Errorf("name %q: got field %s, want %s", name, got, id)
			}
		}
		for _, h := range []namedHeader{f.nx, f.oxm} {
			if h.name == "" {
				continue
			}
			if other, ok := headers[h.header]; ok {
				t.Errorf("fields %s and %s: got the same header, want different ones", id, other)
			}
			headers[h.header] = id
			if got := fieldOf(h.header.with(true, 2*id.size())); got != id {
				t.Errorf("header of %s: got field %d, want %d", id, got, id)
			}
		}
	}
	if s := FieldID(200).String(); s != "field(200)" {
		t.Errorf("got %s, want field(200)", s)
	}
	if s := Kind(200).String(); s != "kind(200)" {
		t.Errorf("got %s, want kind(200)", s)
	}
}

// TestMatchViews decodes wire forms of fields other than the canonical one.
func TestMatchViews(t *testing.T) {
	for _, c := range []struct{ name, wire, want string }{
		{"in_port in 16 bits", "000000020005", "in_port=5"},
		{"reserved port in 16 bits", "00000002fffe", "in_port=LOCAL"},
		{"TCI", "000008021005", "dl_vlan=5,dl_vlan_pcp=0"},
		{"a TLV cut short", "00000802100500000406", "dl_vlan=5,dl_vlan_pcp=0,unknown(0x00000406)"},
		{"TCI with priority", "000008023005", "dl_vlan=5,dl_vlan_pcp=1"},
		{"masked TCI", "0000090410001000", "vlan_tci=0x1000/0x1000"},
		{"TCI with a part of the priority", "0000090420002000", "unknown(0x0000090420002000)"},
		{"TOS", "00000602080000000a0108", "ip,nw_tos=8"},
		{"reversed order", "80001804" + "0a000001" + "80000a020800", "ip,nw_dst=10.0.0.1"},
		{"NXM forms", "000006020800" + "00000f08" + "0a000000ff000000", "ip,nw_src=10.0.0.0/8"},
		{"xreg", "80010208" + "0000000100000002", "reg2=0x1,reg3=0x2"},
		{"masked xxreg", "0001df20" + "00000000000000000000000500000000" + "000000000000000000000fff00000000", "reg2=0x5/0xfff"},
		{"all-one mask", "80000d04" + "1005ffff", "dl_vlan=5"},
		{"zero mask", "80001708" + "0a00000100000000", ""},
		{"bits outside of the mask", "80001708" + "0a0000ffffffff00", "nw_src=10.0.0.0/24"},
		{"ONF's tcp_flags", "ffff5406" + "4f4e4600" + "0002", "tcp_flags=syn"},
		{"ONF's tcp_flags, masked", "ffff5508" + "4f4e4600" + "00020012", "tcp_flags=+syn-ack"},
		{"unknown experimenter", "ffff5606" + "4f4e46000001", "unknown(0xffff56064f4e46000001)"},
		{"unknown field between known ones", "80000a020800" + "00014c020005" + "0001000400000007", "ip,reg0=0x7,unknown(0x00014c020005)"},
		{"field of the wrong length", "80000a0308000a", "unknown(0x80000a0308000a)"},
		{"mask where none may be", "80000b04" + "0800ffff", "ip"},
		{"true mask where none may be", "80000b04" + "0800ff00", "unknown(0x80000b040800ff00)"},
		{"contradiction", "80000a020800" + "80000a0286dd", "ip,unknown(0x80000a0286dd)"},
		{"repetition", "80000a020800" + "80000a020800", "ip"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := canonicalMatch(unhex(t, c.wire))
			if got := m.String(); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if again := canonicalMatch([]byte(m.oxm)); again != m {
				t.Errorf("decoded again: got %x, want %x", again.oxm, m.oxm)
			}
		})
	}
}

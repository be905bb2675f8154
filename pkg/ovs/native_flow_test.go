package ovs

import (
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// TestCompiledKeyIsTheKey: what goes over the wire has the key that FlowKey says.
func TestCompiledKeyIsTheKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFlow(t)
		want, err := FlowKey(f)
		if err != nil {
			t.Fatal(err)
		}
		var mod openflow.FlowMod
		if err := compileFlow(&mod, f); err != nil {
			t.Fatal(err)
		}
		if got := keyOf(mod.Key()); got != want {
			t.Fatalf("compiled %q, want %q", got, want)
		}
	})
}

// TestCompileRefusesAlike: a flow is refused by the native backend's short way exactly when FlowText refuses it.
func TestCompileRefusesAlike(t *testing.T) {
	words := protocols()
	rapid.Check(t, func(t *rapid.T) {
		f := &Flow{
			Table:    rapid.SampledFrom([]int{-1, 0, 253, 254, 255, 256}).Draw(t, "table"),
			Priority: rapid.SampledFrom([]int{-1, 0, 65535, 65536}).Draw(t, "priority"),
			InPort:   rapid.SampledFrom([]int{0, 0, 1, goovs.PortLOCAL, 70000}).Draw(t, "in_port"),
			Actions:  rapid.SampledFrom([][]Action{{goovs.Drop()}, {}, {goovs.Drop(), goovs.Output(1)}, {GotoTable(254)}, {goovs.Output(1)}}).Draw(t, "actions"),
		}
		if p := rapid.SampledFrom(append(words[:], protocol{})).Draw(t, "protocol"); p.word != "" {
			f.Protocol = goovs.Protocol(p.word)
		}
		for _, name := range rapid.SliceOfN(rapid.SampledFrom(append(fieldNames(), "no_such_field")), 0, 4).Draw(t, "fields") {
			value := "1"
			if fd, ok := lookupField(name); ok {
				value = drawValue(t, fd)
			}
			f.Matches = append(f.Matches, goovs.FieldMatch(name, value))
		}
		text, refused := FlowText(f)
		var mod openflow.FlowMod
		err := compileFlow(&mod, f)
		if (err != nil) != (refused != nil) {
			t.Fatalf("FlowText: %q, %v\ncompiled: %v", text, refused, err)
		}
	})
}

package ovs

import (
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/test/seed"
)

// TestCompiledFlowHasSameKey checks that the key of a compiled flow is that of FlowKey.
func TestCompiledFlowHasSameKey(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		f := drawFlow(t)
		want, err := FlowKey(f)
		if err != nil {
			t.Fatal(err)
		}
		mod, err := CompileFlow(f)
		if err != nil {
			t.Fatal(err)
		}
		if got := KeyOf(mod.Key()); got != want {
			t.Fatalf("got key %q, want %q", got, want)
		}
	})
}

// TestCompileRejectsSameFlows checks that CompileFlow rejects the same flows as FlowText.
func TestCompileRejectsSameFlows(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		f := &Flow{
			Table:    rapid.SampledFrom([]int{-1, 0, 253, 254, 255, 256}).Draw(t, "table"),
			Priority: rapid.SampledFrom([]int{-1, 0, 65535, 65536}).Draw(t, "priority"),
			InPort:   rapid.SampledFrom([]int{0, 0, 1, goovs.PortLOCAL, 70000}).Draw(t, "in_port"),
			Actions:  rapid.SampledFrom([][]Action{{goovs.Drop()}, {}, {goovs.Drop(), goovs.Output(1)}, {GotoTable(254)}, {goovs.Output(1)}}).Draw(t, "actions"),
		}
		f.Protocol = goovs.Protocol(rapid.SampledFrom(protocols()).Draw(t, "protocol").word)
		unknown := field{names: "no_such_field", form: formDecimal, bits: 8}
		for _, fd := range rapid.SliceOfN(rapid.SampledFrom(append(testFields(), unknown)), 0, 4).Draw(t, "fields") {
			f.Matches = append(f.Matches, goovs.FieldMatch(fd.names, drawValue(t, fd)))
		}
		text, textErr := FlowText(f)
		_, err := CompileFlow(f)
		if (err != nil) != (textErr != nil) {
			t.Fatalf("got error %v, want one exactly if FlowText has one: %q, %v", err, text, textErr)
		}
	})
}

package pipeline

import (
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Of the packets that the switch sends to the agent, those of table 69 are to idled services; bit 19 of reg4 marks those of hosts outside.
func TestReadIdled(t *testing.T) {
	packet := func(table int, reg4 uint32) ovs.PacketIn {
		p := ovs.PacketIn{Table: table, Cookie: 7}
		p.Registers[4] = reg4
		return p
	}
	for name, tc := range map[string]struct {
		packet ovs.PacketIn
		want   Idled
		ok     bool
	}{
		"of a pod":   {packet(tableReject, 1<<18), Idled{Cookie: 7}, true},
		"of outside": {packet(tableReject, 1<<19), Idled{Cookie: 7, Outside: true}, true},
		"denied":     {packet(tableIngressDenied, 0), Idled{Cookie: 7}, false},
	} {
		if got, ok := ReadIdled(tc.packet); got != tc.want || ok != tc.ok {
			t.Errorf("%s: got %+v, %v, want %+v, %v", name, got, ok, tc.want, tc.ok)
		}
		if _, denied := ReadDenied(tc.packet); denied == tc.ok {
			t.Errorf("%s: got denied %v, want %v", name, denied, !tc.ok)
		}
	}
}

// A frontend with endpoints has the same flows whether it is idled or not, and each flow of an idled one that ends in table 69 has an explanation of its own.
func TestIdledFlows(t *testing.T) {
	n := balancing(inMode(config.ModeNetworkPolicy))
	svc := balancedService()
	want := lines(t, n.BalancedService(svc))
	for i := range svc.Frontends {
		svc.Frontends[i].Idled = len(svc.Frontends[i].Endpoints) > 0
	}
	if got := lines(t, n.BalancedService(svc)); got != want {
		t.Errorf("idled service with endpoints: got flows\n%s\nwant\n%s", got, want)
	}
	explained := 0
	for _, f := range n.BalancedService(idledService()).Flows {
		if f.Table != tableReject {
			continue
		}
		explained++
		if got := ExplainDrop(f.Table, f.Priority); !strings.Contains(got, "idled") {
			t.Errorf("priority %d: got explanation %q, want one of an idled service", f.Priority, got)
		}
	}
	if explained == 0 {
		t.Error("got no flow in table 69, want some")
	}
}

package native

import (
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// TestDumpRetainsNoReplies checks that flows, groups and meters of the switch are handled as they arrive, until the dump ends.
func TestDumpRetainsNoReplies(t *testing.T) {
	var flows, groups, meters int
	each := dumped{
		flow:  func(*openflow.FlowStats) { flows++ },
		group: func(*openflow.Group) { groups++ },
		meter: func(*openflow.Meter) { meters++ },
	}
	c := &switchConn{exchanges: map[*exchange]bool{}}
	x := c.begin(3, each.take)
	reply := &openflow.FlowStatsReply{Flows: make([]openflow.FlowStats, 2)}
	c.deliver(x.first, reply)
	c.deliver(x.first, reply)
	c.deliver(x.first+1, &openflow.GroupDescReply{Groups: make([]openflow.Group, 3)})
	c.deliver(x.first+2, &openflow.MeterConfigReply{Meters: make([]openflow.Meter, 1)})
	c.deliver(x.first+2, &openflow.Error{})
	if flows != 4 || groups != 3 || meters != 1 {
		t.Errorf("got %d flows, %d groups, %d meters, want 4, 3, 1", flows, groups, meters)
	}
	if got := c.answers(x); len(got) != 1 || got[0].index != 2 {
		t.Errorf("got retained answers %v, want only the error about message 2", got)
	}
	c.deliver(x.barrier, &openflow.BarrierReply{})
	if !isClosed(x.done) {
		t.Error("the exchange has not ended with the barrier")
	}
	c.remove(x)
	if c.deliver(x.first, reply); flows != 4 {
		t.Errorf("got %d flows after the end of the dump, want 4", flows)
	}
}

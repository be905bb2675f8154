package native

import (
	"context"
	"strconv"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// dumped handles the elements of the switch as they arrive, since all need several times the memory of the wanted ones' texts. Its functions must not use the session.
type dumped struct {
	flow  func(*openflow.FlowStats)
	group func(*openflow.Group) // nil: groups are not requested
	meter func(*openflow.Meter) // nil: as well
}

// dump requests flows, groups and meters.
func (c *switchConn) dump(ctx context.Context, each dumped) error {
	var requests []openflow.Message
	if each.group != nil {
		requests = append(requests, &openflow.GroupDescRequest{})
	}
	requests = append(requests, &openflow.FlowStatsRequest{FlowFilter: openflow.FlowFilter{Table: openflow.AllTables}})
	if each.meter != nil {
		requests = append(requests, &openflow.MeterConfigRequest{Meter: openflow.AllMeters})
	}
	answers, err := c.doTaking(ctx, len(requests), func(i int) openflow.Message { return requests[i] }, each.take)
	if err != nil {
		return err
	}
	for _, a := range answers {
		if m, ok := a.message.(*openflow.Error); ok {
			return m
		}
	}
	return nil
}

// take is exchange.take.
func (each dumped) take(message openflow.Message) bool {
	switch m := message.(type) {
	case *openflow.FlowStatsReply:
		for i := range m.Flows {
			each.flow(&m.Flows[i])
		}
	case *openflow.GroupDescReply:
		for i := range m.Groups {
			each.group(&m.Groups[i])
		}
	case *openflow.MeterConfigReply:
		for i := range m.Meters {
			each.meter(&m.Meters[i])
		}
	default:
		return false
	}
	return true
}

// DumpFlows returns the flows of all tables in no particular order.
func (n *Native) DumpFlows(ctx context.Context) (flows []ovs.DumpedFlow, err error) {
	err = within(ctx, replaceTimeout, n.flows, func(ctx context.Context, c *switchConn) error {
		flows = nil
		return c.dump(ctx, dumped{flow: func(f *openflow.FlowStats) {
			flows = append(flows, ovs.DumpedFlow{Key: ovs.KeyOf(f.Key()), Text: textOf(f), Cookie: f.Cookie, Packets: f.Packets, Bytes: f.Bytes})
		}})
	})
	if err != nil {
		return nil, err
	}
	return flows, nil
}

// DumpMeters returns the meters that drop packets above one rate, as those of ovs.Meter do.
func (n *Native) DumpMeters(ctx context.Context) (meters []ovs.Meter, err error) {
	err = within(ctx, replaceTimeout, n.flows, func(ctx context.Context, c *switchConn) error {
		answers, err := c.do(ctx, 1, func(int) openflow.Message { return &openflow.MeterConfigRequest{Meter: openflow.AllMeters} })
		if err != nil {
			return err
		}
		meters = nil
		for _, a := range answers {
			switch m := a.message.(type) {
			case *openflow.MeterConfigReply:
				for _, meter := range m.Meters {
					if parsed, ok := ovs.ParseMeter(meter); ok {
						meters = append(meters, parsed)
					}
				}
			case *openflow.Error:
				return m
			}
		}
		return nil
	})
	return meters, err
}

func textOf(f *openflow.FlowStats) string {
	s := ovs.KeyOf(f.Key()).String()
	if f.IdleTimeout != 0 {
		s += ",idle_timeout=" + strconv.Itoa(int(f.IdleTimeout))
	}
	if f.Cookie != 0 {
		s += ",cookie=0x" + strconv.FormatUint(f.Cookie, 16)
	}
	return s + ",actions=" + f.Instructions.String()
}

package native

import (
	"context"
	"strconv"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// contents are the flows, groups and meters of the switch.
type contents struct {
	flows  []*openflow.FlowStatsReply
	groups []openflow.Group
	meters []openflow.Meter
}

// dump requests flows, groups and meters.
func (c *switchConn) dump(ctx context.Context) (contents, error) {
	var is contents
	requests := []openflow.Message{
		&openflow.FlowStatsRequest{FlowFilter: openflow.FlowFilter{Table: openflow.AllTables}},
		&openflow.GroupDescRequest{},
		&openflow.MeterConfigRequest{Meter: openflow.AllMeters},
	}
	answers, err := c.do(ctx, len(requests), func(i int) openflow.Message { return requests[i] })
	if err != nil {
		return is, err
	}
	for _, a := range answers {
		switch m := a.message.(type) {
		case *openflow.FlowStatsReply:
			is.flows = append(is.flows, m)
		case *openflow.GroupDescReply:
			is.groups = append(is.groups, m.Groups...)
		case *openflow.MeterConfigReply:
			is.meters = append(is.meters, m.Meters...)
		case *openflow.Error:
			return is, m
		}
	}
	return is, nil
}

// DumpFlows returns the flows of all tables in no particular order.
func (n *Native) DumpFlows(ctx context.Context) ([]ovs.DumpedFlow, error) {
	var is contents
	err := within(ctx, replaceTimeout, n.flows, func(ctx context.Context, c *switchConn) (err error) {
		is, err = c.dump(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	var flows []ovs.DumpedFlow
	for _, reply := range is.flows {
		for i := range reply.Flows {
			f := &reply.Flows[i]
			flows = append(flows, ovs.DumpedFlow{Key: ovs.KeyOf(f.Key()), Text: textOf(f), Cookie: f.Cookie, Packets: f.Packets, Bytes: f.Bytes})
		}
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

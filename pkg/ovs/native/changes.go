package native

import (
	"context"
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// monitorChanges requests reports of changes that do not come from this session, and no other asynchronous messages: flows by a flow monitor, groups and
// meters by forwarded requests. The switch abbreviates the report of this session's own changes to one message for each bundle.
func (c *switchConn) monitorChanges(ctx context.Context, onChange func(table int)) error {
	c.mu.Lock()
	c.onChange = onChange
	c.mu.Unlock()
	requests := []openflow.Message{
		&openflow.SetAsync{RequestForward: 1<<openflow.ReasonGroupMod | 1<<openflow.ReasonMeterMod},
		&openflow.FlowMonitorRequest{ID: 1, Flags: openflow.MonitorAdded | openflow.MonitorRemoved | openflow.MonitorModified, Table: openflow.AllTables},
	}
	answers, err := c.do(ctx, len(requests), func(i int) openflow.Message { return requests[i] })
	if err != nil {
		return err
	}
	for _, a := range answers {
		if m, ok := a.message.(*openflow.Error); ok {
			return fmt.Errorf("monitor changes: %T: %w", requests[a.index], m)
		}
	}
	return nil
}

// takeUpdates reports each table once in which others changed flows.
func (c *switchConn) takeUpdates(m *openflow.FlowMonitorReply) {
	last := NoTable - 1
	for _, u := range m.Updates {
		table := int(u.Table)
		switch u.Event {
		case openflow.FlowAbbreviated:
			continue
		case openflow.MonitorPaused, openflow.MonitorResumed: // in the meantime changes are reported incompletely
			table = NoTable
		}
		if table != last {
			c.reportChange(table)
			last = table
		}
	}
}

func (c *switchConn) reportChange(table int) {
	c.mu.Lock()
	onChange := c.onChange
	c.mu.Unlock()
	if onChange != nil {
		onChange(table)
	}
}

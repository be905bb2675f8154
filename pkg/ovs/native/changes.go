package native

import (
	"context"
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// MonitorTables limits the events of foreign changes of flows to the tables. Without it all are monitored, including those that the switch changes all the
// time by itself: it pauses the monitor of a client that does not read the reports fast enough. It must be called before the first use.
func (n *Native) MonitorTables(tables []int) { n.monitored = tables }

// monitorChanges requests reports of changes that do not come from this session, and no other asynchronous messages: flows by a flow monitor for each table,
// groups and meters by forwarded requests. The switch abbreviates the report of this session's own changes to one message for each bundle.
func (c *switchConn) monitorChanges(ctx context.Context, tables []int, onChange func(table int)) error {
	c.mu.Lock()
	c.onChange = onChange
	c.mu.Unlock()
	if len(tables) == 0 {
		tables = []int{openflow.AllTables}
	}
	requests := []openflow.Message{&openflow.SetAsync{RequestForward: 1<<openflow.ReasonGroupMod | 1<<openflow.ReasonMeterMod}}
	for i, table := range tables {
		requests = append(requests, &openflow.FlowMonitorRequest{
			ID: uint32(i + 1), Flags: openflow.MonitorAdded | openflow.MonitorRemoved | openflow.MonitorModified, Table: uint8(table),
		})
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

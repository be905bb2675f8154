package native

import (
	"cmp"
	"context"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// meterChange sets meters. OpenFlow has no command that adds or modifies a meter: each meter is added, and modified if the switch answers
// that it exists. The previous configuration of these is requested, to restore it. Other meters are not read, so the cost does not depend
// on their number.
type meterChange struct {
	meters []openflow.Meter

	added    map[uint32]bool // IDs
	modified []openflow.Meter
	previous map[uint32]openflow.Meter // configuration of the modified meters before this change
}

func newMeterChange(meters []openflow.Meter) *meterChange {
	return &meterChange{meters: meters, added: map[uint32]bool{}, previous: map[uint32]openflow.Meter{}}
}

// read processes the answers to the messages that add the meters, of which the first n were sent. They are the first messages of their
// exchange. It returns a *MeterError if the switch rejected a meter.
func (m *meterChange) read(answers []answer, n int) error {
	rejected := map[int]*openflow.Error{} // by the index of the meter
	for _, a := range answers {
		if e, ok := a.message.(*openflow.Error); ok && a.index < len(m.meters) {
			rejected[a.index] = e
		}
	}
	var first error
	for i, meter := range m.meters[:min(n, len(m.meters))] {
		err := rejected[i]
		switch {
		case err == nil:
			m.added[meter.ID] = true
		case err.Type == openflow.ErrorMeterModFailed && err.Code == openflow.CodeMeterExists:
			m.modified = append(m.modified, meter)
		default:
			first = cmp.Or(first, meterError(meter, err))
		}
	}
	return first
}

func meterError(meter openflow.Meter, err *openflow.Error) error {
	return &ovs.MeterError{ID: meter.ID, Meter: meter.String(), Reason: err.Name()}
}

// undo returns the messages that restore the previous meters.
func (m *meterChange) undo() []openflow.Message {
	var messages []openflow.Message
	for id := range m.added {
		messages = append(messages, deletionOfMeter(id))
	}
	for _, meter := range m.previous {
		messages = append(messages, &openflow.MeterMod{Command: openflow.MeterModify, Meter: meter})
	}
	return messages
}

// setMeters sets meters without a bundle.
func (c *switchConn) setMeters(ctx context.Context, m *meterChange) error {
	answers, err := c.do(ctx, len(m.meters), m.addition)
	if err != nil {
		return err
	}
	if err := m.read(answers, len(m.meters)); err != nil {
		return err
	}
	return c.modify(ctx, m)
}

// addition returns the message that adds the meter with the index i.
func (m *meterChange) addition(i int) openflow.Message {
	return &openflow.MeterMod{Command: openflow.MeterAdd, Meter: m.meters[i]}
}

// modify modifies the meters that existed. It requests the configuration of each before.
func (c *switchConn) modify(ctx context.Context, m *meterChange) error {
	const perMeter = 2
	if len(m.modified) == 0 {
		return nil
	}
	answers, err := c.do(ctx, perMeter*len(m.modified), func(i int) openflow.Message {
		meter := m.modified[i/perMeter]
		if i%perMeter == 0 {
			return &openflow.MeterConfigRequest{Meter: meter.ID}
		}
		return &openflow.MeterMod{Command: openflow.MeterModify, Meter: meter}
	})
	if err != nil {
		return err
	}
	for _, a := range answers {
		switch reply := a.message.(type) {
		case *openflow.MeterConfigReply:
			m.record(reply.Meters)
		case *openflow.Error:
			err = cmp.Or(err, meterError(m.modified[a.index/perMeter], reply))
		}
	}
	return err
}

// record adds configurations to the previous ones, of a meter the first.
func (m *meterChange) record(meters []openflow.Meter) {
	for _, meter := range meters {
		if _, known := m.previous[meter.ID]; !known && !m.added[meter.ID] {
			m.previous[meter.ID] = meter
		}
	}
}

// readSent reads the answers to the messages that were sent before one that cannot be encoded.
func (c *switchConn) readSent(ctx context.Context, m *meterChange, x *exchange) error {
	if len(m.meters) == 0 {
		return nil
	}
	if _, err := c.do(ctx, 0, nil); err != nil {
		return err
	}
	return m.read(c.answers(x), x.sent)
}

// deleteMeters sends the deletion of meters and does not wait: vswitchd returns no error for a deletion, and processes later messages of this
// session after it.
func (c *switchConn) deleteMeters(ctx context.Context, ids []uint32) error {
	if len(ids) == 0 {
		return nil
	}
	x := c.begin(len(ids), nil)
	defer c.remove(x)
	return c.send(ctx, x, func(i int) (openflow.Message, error) { return deletionOfMeter(ids[i]), nil })
}

package native

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// WatchPackets calls handle for the packets that flows send with ToController, until the context ends. It uses a connection of its own, so
// that packets and changes of flows do not delay each other. The calls of handle do not overlap. While handle is busy, the switch queues
// a hundred packets and drops further ones (do_send_packet_ins in OVS's connmgr.c). Packets are lost while there is no connection.
func (n *Native) WatchPackets(ctx context.Context, handle func(ovs.PacketIn)) {
	l := newLink(dialTimeout, func(ctx context.Context) (*switchConn, error) {
		c, err := dialSwitch(ctx, filepath.Join(n.runDir, n.bridge+".mgmt"))
		if err != nil {
			return nil, err
		}
		if err := c.subscribe(ctx, handle); err != nil {
			c.close()
			return nil, err
		}
		return c, nil
	})
	defer l.close()
	l.maintain(ctx)
}

// subscribe requests packets, and no other asynchronous messages.
func (c *switchConn) subscribe(ctx context.Context, handle func(ovs.PacketIn)) error {
	c.mu.Lock()
	c.onPacket = handle
	c.mu.Unlock()
	requests := []openflow.Message{
		&openflow.SetControllerID{ID: ovs.ControllerID},
		&openflow.SetPacketInFormat{Format: openflow.PacketInNicira2},
		&openflow.SetAsync{PacketIn: 1<<openflow.ReasonMiss | 1<<openflow.ReasonAction},
		fragmentConfig(), // its flags apply to the bridge, not the connection
	}
	answers, err := c.do(ctx, len(requests), func(i int) openflow.Message { return requests[i] })
	if err != nil {
		return err
	}
	for _, a := range answers {
		if m, ok := a.message.(*openflow.Error); ok {
			return fmt.Errorf("request packets: %T: %w", requests[a.index], m)
		}
	}
	return nil
}

// takePacket passes a packet to the handler, if there is one.
func (c *switchConn) takePacket(m *openflow.PacketIn) {
	c.mu.Lock()
	handle := c.onPacket
	c.mu.Unlock()
	if handle == nil {
		return
	}
	p := ovs.PacketIn{Table: int(m.Table), Cookie: m.Cookie, Packet: m.Packet}
	for f := range m.Metadata.Fields() {
		if f.ID == openflow.FieldInPort && openflow.Port(f.Value.Lo) < openflow.PortInPort {
			p.InPort = int(f.Value.Lo)
		}
		if f.ID >= openflow.Reg(0) && f.ID <= openflow.Reg(ovs.NumRegisters-1) {
			p.Registers[f.ID-openflow.Reg(0)] = uint32(f.Value.Lo)
		}
	}
	handle(p)
}

// Inject implements Interface, on the connection of changes of flows.
func (n *Native) Inject(ctx context.Context, inPort int, packet []byte) error {
	if err := ovs.ValidateInjection(inPort, packet); err != nil {
		return err
	}
	m := &openflow.PacketOut{
		InPort: openflow.Port(inPort), Actions: []openflow.Action{openflow.Output{Port: openflow.PortTable}}, Packet: packet, //nolint:gosec // validated
	}
	err := within(ctx, n.timeout, n.flows, func(ctx context.Context, c *switchConn) error {
		answers, err := c.do(ctx, 1, func(int) openflow.Message { return m })
		if err != nil {
			return err
		}
		for _, a := range answers {
			if rejection, ok := a.message.(*openflow.Error); ok {
				return rejection
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("inject packet: %w", err)
	}
	return nil
}

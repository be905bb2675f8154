package ovs

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// WatchPackets calls handle for the packets that flows send by ToController, until the context ends. It keeps a connection of its own, so
// that packets never hold up changes of flows, nor the other way round. The calls come one at a time. While handle is busy, the switch
// keeps a hundred packets and drops those that come after (do_send_packet_ins in OVS' connmgr.c); what is sent while there is no
// connection is lost.
func (n *Native) WatchPackets(ctx context.Context, handle func(PacketIn)) {
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
	l.keep(ctx, func() {})
}

// subscribe asks for packets and for nothing else that comes unasked.
func (c *switchConn) subscribe(ctx context.Context, handle func(PacketIn)) error {
	c.mu.Lock()
	c.onPacket = handle
	c.mu.Unlock()
	requests := []openflow.Message{
		&openflow.SetControllerID{ID: controllerID},
		&openflow.SetPacketInFormat{Format: openflow.PacketInNicira2},
		&openflow.SetAsync{PacketIn: 1<<openflow.ReasonMiss | 1<<openflow.ReasonAction},
		// A length other than 0 is what makes the switch send at all. The flags are the bridge's, not the connection's.
		&openflow.SetConfig{Flags: openflow.FragNXMatch, MissSendLen: 1},
	}
	answers, err := c.do(ctx, len(requests), func(i int) openflow.Message { return requests[i] })
	if err != nil {
		return err
	}
	for _, a := range answers {
		if m, ok := a.message.(*openflow.Error); ok {
			return fmt.Errorf("ask for packets: %T: %w", requests[a.index], m)
		}
	}
	return nil
}

// takePacket gives a packet to who has subscribed.
func (c *switchConn) takePacket(m *openflow.PacketIn) {
	c.mu.Lock()
	handle := c.onPacket
	c.mu.Unlock()
	if handle == nil {
		return
	}
	p := PacketIn{Table: int(m.Table), Cookie: m.Cookie, Packet: m.Packet}
	for f := range m.Metadata.Fields() {
		if f.ID >= openflow.Reg(0) && f.ID <= openflow.Reg(numRegisters-1) {
			p.Registers[f.ID-openflow.Reg(0)] = uint32(f.Value.Lo)
		}
	}
	handle(p)
}

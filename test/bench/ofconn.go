package main

import (
	"bufio"
	"fmt"
	"net"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// ofconn is an open OpenFlow connection that sends one bundle at a time.
type ofconn struct {
	conn   net.Conn
	in     *bufio.Reader
	out    []byte
	xid    uint32
	bundle uint32
}

const ofVersion = openflow.Version14

func dialOpenFlow(socket string) (*ofconn, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	c := &ofconn{conn: conn, in: ovstest.NewReader(conn)}
	if err = c.put(&openflow.Hello{Versions: openflow.Versions(ofVersion)}); err == nil {
		err = c.flush()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil // the switch's Hello is read with the first answer
}

// put adds a message to what flush sends.
func (c *ofconn) put(m openflow.Message) (err error) {
	c.xid++
	c.out, err = openflow.Append(c.out, c.xid, m)
	return err
}

func (c *ofconn) flush() error {
	_, err := c.conn.Write(c.out)
	c.out = c.out[:0]
	return err
}

// apply sends the flow-mods in one bundle and waits until it is committed.
func (c *ofconn) apply(mods []*openflow.FlowMod) error {
	const flags = openflow.BundleAtomic | openflow.BundleOrdered
	c.bundle++
	if err := c.put(&openflow.BundleControl{ID: c.bundle, Step: openflow.BundleOpen, Flags: flags}); err != nil {
		return err
	}
	for _, m := range mods {
		if err := c.put(&openflow.BundleAdd{ID: c.bundle, Flags: flags, Message: m}); err != nil {
			return err
		}
	}
	if err := c.put(&openflow.BundleControl{ID: c.bundle, Step: openflow.BundleCommit, Flags: flags}); err != nil {
		return err
	}
	if err := c.flush(); err != nil {
		return err
	}
	for {
		m, err := c.receive()
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *openflow.Error:
			return fmt.Errorf("the switch refuses a bundle: %w", m)
		case *openflow.EchoRequest:
			if err := c.put(&openflow.EchoReply{Data: m.Data}); err != nil {
				return err
			}
		case *openflow.BundleControl:
			if m.ID == c.bundle && m.Step == openflow.BundleCommitted {
				return nil
			}
		}
	}
}

func (c *ofconn) receive() (openflow.Message, error) {
	_, b, err := ovstest.ReadMessage(c.in)
	if err != nil {
		return nil, err
	}
	_, m, err := openflow.Decode(b)
	return m, err
}

package openflow

import (
	"fmt"
)

// BundleStep is the type of a BundleControl: a request, or its confirmation (OpenFlow 1.4.1, 7.3.9.1, ofp_bundle_ctrl_type).
type BundleStep uint16

// The steps.
const (
	BundleOpen      BundleStep = 0
	BundleOpened    BundleStep = 1
	BundleClose     BundleStep = 2
	BundleClosed    BundleStep = 3
	BundleCommit    BundleStep = 4
	BundleCommitted BundleStep = 5
	BundleDiscard   BundleStep = 6
	BundleDiscarded BundleStep = 7
)

// BundleFlags are the commit semantics of a bundle. All messages of a bundle must have the same flags.
type BundleFlags uint16

// The flags.
const (
	BundleAtomic  BundleFlags = 1 << 0 // packets see all changes or none
	BundleOrdered BundleFlags = 1 << 1 // changes are applied in the order in which they were added
)

// BundleControl opens, closes, commits or discards a bundle, or confirms one of these steps.
type BundleControl struct {
	ID    uint32 // chosen by the controller, unique on its connection
	Step  BundleStep
	Flags BundleFlags
}

func (*BundleControl) messageType() uint8 { return typeBundleControl }

func (m *BundleControl) appendBody(b []byte) ([]byte, error) {
	return put16(put16(put32(b, m.ID), uint16(m.Step)), uint16(m.Flags)), nil
}

func decodeBundleControl(b []byte) (Message, error) {
	if len(b) < 8 {
		return nil, short("bundle control", len(b), 8)
	}
	return &BundleControl{ID: u32(b), Step: BundleStep(u16(b[4:])), Flags: BundleFlags(u16(b[6:]))}, nil
}

// BundleAdd adds a FlowMod, GroupMod or MeterMod to a bundle. The message inside has the XID of the BundleAdd, and so has an error
// about it, which may arrive as late as the commit.
type BundleAdd struct {
	ID      uint32
	Flags   BundleFlags
	Message Message
}

func (*BundleAdd) messageType() uint8 { return typeBundleAdd }

func (m *BundleAdd) appendBody(b []byte) ([]byte, error) {
	if _, ok := m.Message.(*BundleAdd); ok || m.Message == nil {
		return b, fmt.Errorf("bundle add needs a message other than a bundle add")
	}
	xid := u32(b[len(b)-4:]) // Append has written the header, which ends with the XID
	b = put16(zeros(put32(b, m.ID), 2), uint16(m.Flags))
	return Append(b, xid, m.Message)
}

func decodeBundleAdd(b []byte) (Message, error) {
	const fixed = 8
	if len(b) < fixed {
		return nil, short("bundle add", len(b), fixed)
	}
	m := &BundleAdd{ID: u32(b), Flags: BundleFlags(u16(b[6:]))}
	inner, err := ParseHeader(b[fixed:])
	switch {
	case err != nil:
		return nil, err
	case inner.Type == typeBundleAdd:
		return nil, fmt.Errorf("bundle add inside a bundle add")
	case inner.Version != Version14:
		return nil, fmt.Errorf("bundle add: message version %s, want %s", inner.Version, Version14)
	case int(inner.Length) > len(b)-fixed:
		return nil, fmt.Errorf("bundle add: message length %d exceeds the %d bytes left", inner.Length, len(b)-fixed)
	}
	_, m.Message, err = Decode(b[fixed : fixed+int(inner.Length)])
	return m, err
}

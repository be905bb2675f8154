package openflow

import (
	"fmt"
)

// BundleStep is a step in a bundle's life and its confirmation (OpenFlow 1.4.1, 7.3.9.1, ofp_bundle_ctrl_type).
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

// BundleFlags say how a bundle is applied. All messages of a bundle have the same.
type BundleFlags uint16

// The flags.
const (
	BundleAtomic  BundleFlags = 1 << 0 // packets see all of it or nothing
	BundleOrdered BundleFlags = 1 << 1 // in the order in which messages were added
)

// BundleControl opens, closes, commits or discards a bundle, and confirms that.
type BundleControl struct {
	ID    uint32 // chosen by the controller, unique on its connection
	Step  BundleStep
	Flags BundleFlags
}

func (*BundleControl) messageType() uint8 { return typeBundleControl }

func (m *BundleControl) appendBody(b []byte, _ Version) ([]byte, error) {
	return put16(put16(put32(b, m.ID), uint16(m.Step)), uint16(m.Flags)), nil
}

func decodeBundleControl(b []byte) (Message, error) {
	if len(b) < 8 {
		return nil, short("bundle control", len(b), 8)
	}
	return &BundleControl{ID: u32(b), Step: BundleStep(u16(b[4:])), Flags: BundleFlags(u16(b[6:]))}, nil
}

// BundleAdd puts a FlowMod or GroupMod into a bundle. The message inside has the same XID as the BundleAdd, and an error
// about it, which may come as late as the commit, has that XID too.
type BundleAdd struct {
	ID      uint32
	Flags   BundleFlags
	Message Message
}

func (*BundleAdd) messageType() uint8 { return typeBundleAdd }

func (m *BundleAdd) appendBody(b []byte, v Version) ([]byte, error) {
	if _, ok := m.Message.(*BundleAdd); ok || m.Message == nil {
		return b, fmt.Errorf("a bundle holds messages, not bundles")
	}
	xid := u32(b[len(b)-4:]) // the header that Append has written ends with it
	b = put16(zeros(put32(b, m.ID), 2), uint16(m.Flags))
	return Append(b, v, xid, m.Message)
}

func decodeBundleAdd(v Version, b []byte) (Message, error) {
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
		return nil, fmt.Errorf("a bundle inside of a bundle")
	case inner.Version != v:
		return nil, fmt.Errorf("a message of %s in a bundle of %s", inner.Version, v)
	case int(inner.Length) > len(b)-fixed:
		return nil, fmt.Errorf("bundle add: a message of %d bytes where %d are left", inner.Length, len(b)-fixed)
	}
	_, m.Message, err = Decode(b[fixed : fixed+int(inner.Length)])
	return m, err
}

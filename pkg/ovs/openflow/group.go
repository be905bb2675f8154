package openflow

import (
	"fmt"
)

// GroupType determines which buckets of a group receive a packet (OpenFlow 1.4.1, 7.3.4.3, ofp_group_type).
type GroupType uint8

// Group types.
const (
	GroupAll      GroupType = 0 // each bucket receives a copy
	GroupSelect   GroupType = 1 // one bucket, selected by hash and weight
	GroupIndirect GroupType = 2 // the only bucket
	GroupFailover GroupType = 3 // the first live bucket
)

func groupTypeNames() [4]string { return [...]string{"all", "select", "indirect", "ff"} }

func (t GroupType) String() string {
	if names := groupTypeNames(); int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}

// AllGroups in a delete or a request selects every group (OFPG_ALL).
const AllGroups uint32 = 0xfffffffc

// Group is a group, as in a GroupMod or in the switch's description.
type Group struct {
	ID      uint32
	Type    GroupType
	Buckets []Bucket
}

// Bucket is a bucket of a group.
type Bucket struct {
	Weight     uint16 // GroupSelect only
	WatchPort  Port   // the bucket is live while this port is; 0: not watched
	WatchGroup uint32 // the bucket is live while this group is; 0: not watched
	Actions    []Action
}

// GroupCommand is the operation of a GroupMod.
type GroupCommand uint16

// Group commands. GroupAddOrModify is an extension of Open vSwitch.
const (
	GroupAdd         GroupCommand = 0
	GroupModify      GroupCommand = 1
	GroupDelete      GroupCommand = 2
	GroupAddOrModify GroupCommand = 0x8000
)

func (c GroupCommand) String() string {
	switch c {
	case GroupAdd:
		return "add"
	case GroupModify:
		return "modify"
	case GroupDelete:
		return "delete"
	case GroupAddOrModify:
		return "add_or_mod"
	}
	return fmt.Sprintf("command(%d)", uint16(c))
}

// GroupMod adds, modifies or deletes a group.
type GroupMod struct {
	Command GroupCommand
	Group   Group
}

func (*GroupMod) messageType() uint8 { return typeGroupMod }

func (m *GroupMod) appendBody(b []byte) ([]byte, error) {
	b = put16(b, uint16(m.Command))
	b = put32(append(b, byte(m.Group.Type), 0), m.Group.ID)
	return m.Group.appendBuckets(b)
}

func decodeGroupMod(b []byte) (Message, error) {
	const fixed = 8
	if len(b) < fixed {
		return nil, short("group mod", len(b), fixed)
	}
	m := &GroupMod{Command: GroupCommand(u16(b)), Group: Group{Type: GroupType(b[2]), ID: u32(b[4:])}}
	return m, m.Group.decodeBuckets(b[fixed:])
}

// bucketLen is the length of a bucket without its actions (OpenFlow 1.4.1, 7.3.4.3, ofp_bucket).
const bucketLen = 16

func (g *Group) appendBuckets(b []byte) ([]byte, error) {
	for i := range g.Buckets {
		var err error
		if b, err = g.Buckets[i].append(b); err != nil {
			return b, fmt.Errorf("bucket %d: %w", i, err)
		}
	}
	return b, nil
}

func (k *Bucket) append(b []byte) ([]byte, error) {
	start := len(b)
	port, group := PortAny, uint32(anyGroup)
	if k.WatchPort != 0 {
		port = k.WatchPort
	}
	if k.WatchGroup != 0 {
		group = k.WatchGroup
	}
	b = put16(zeros(b, 2), k.Weight)
	b = zeros(put32(put32(b, uint32(port)), group), 4)
	b, err := appendActions(b, k.Actions)
	if err != nil {
		return b, err
	}
	return b, putLength(b, start, start)
}

func (g *Group) decodeBuckets(b []byte) error {
	for len(b) > 0 {
		element, rest, ok := tlv(b, 0, bucketLen)
		if !ok {
			return fmt.Errorf("group %d: invalid bucket length in the last %d bytes", g.ID, len(b))
		}
		k := Bucket{Weight: u16(element[2:]), Actions: decodeActions(element[bucketLen:])}
		k.watch(Port(u32(element[4:])), u32(element[8:]))
		g.Buckets = append(g.Buckets, k)
		b = rest
	}
	return nil
}

func (k *Bucket) watch(port Port, group uint32) {
	if port != PortAny {
		k.WatchPort = port
	}
	if group != anyGroup {
		k.WatchGroup = group
	}
}

package openflow

import (
	"fmt"
)

// GroupType says which of a group's buckets get a packet (OpenFlow 1.4.1, 7.3.4.3, ofp_group_type).
type GroupType uint8

// The types.
const (
	GroupAll      GroupType = 0 // each bucket a copy
	GroupSelect   GroupType = 1 // one bucket, chosen by hash and weight
	GroupIndirect GroupType = 2 // the one bucket that there is
	GroupFailover GroupType = 3 // the first live bucket
)

func groupTypeNames() [4]string { return [...]string{"all", "select", "indirect", "ff"} }

func (t GroupType) String() string {
	if names := groupTypeNames(); int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}

// AllGroups in a delete or a request means every group (OFPG_ALL).
const AllGroups uint32 = 0xfffffffc

// Group is a group as it is set and as the switch describes it.
type Group struct {
	ID        uint32
	Type      GroupType
	Selection *Selection // of GroupSelect; nil: the switch's own choice. OpenFlow 1.5 only
	Buckets   []Bucket
}

// Selection is how a select group chooses (Netronome's NTRT_SELECTION_METHOD).
type Selection struct {
	Method string // "hash" or "dp_hash"
	Param  uint64
	Fields []Field // what "hash" looks at: fields whose Value is the mask of the bits that count
}

// Bucket is one choice of a group.
type Bucket struct {
	ID         uint32 // OpenFlow 1.5; in 1.4 the switch numbers buckets from 0 and nobody sees it
	Weight     uint16 // of GroupSelect
	WatchPort  Port   // the bucket lives while this port does; 0: not watched
	WatchGroup uint32 // likewise; 0: not watched
	Actions    []Action
}

// GroupCommand is what a GroupMod does.
type GroupCommand uint16

// The commands. Those on single buckets need OpenFlow 1.5; AddOrModify is an extension of Open vSwitch.
const (
	GroupAdd          GroupCommand = 0
	GroupModify       GroupCommand = 1
	GroupDelete       GroupCommand = 2
	GroupInsertBucket GroupCommand = 3
	GroupRemoveBucket GroupCommand = 5
	GroupAddOrModify  GroupCommand = 0x8000
)

func (c GroupCommand) String() string {
	switch c {
	case GroupAdd:
		return "add"
	case GroupModify:
		return "modify"
	case GroupDelete:
		return "delete"
	case GroupInsertBucket:
		return "insert_bucket"
	case GroupRemoveBucket:
		return "remove_bucket"
	case GroupAddOrModify:
		return "add_or_mod"
	}
	return fmt.Sprintf("command(%d)", uint16(c))
}

// Places for GroupMod.Bucket beside a bucket's id (OpenFlow 1.5.1, 7.3.4.3, ofp_group_bucket).
const (
	FirstBucket uint32 = 0xfffffffd
	LastBucket  uint32 = 0xfffffffe
	AllBuckets  uint32 = 0xffffffff
)

// GroupMod changes a group.
type GroupMod struct {
	Command GroupCommand
	Group   Group
	Bucket  uint32 // GroupInsertBucket: insert behind this one, or FirstBucket, LastBucket; GroupRemoveBucket: this one, or AllBuckets too
}

func (*GroupMod) messageType() uint8 { return typeGroupMod }

func (m *GroupMod) onBucket() bool {
	return m.Command == GroupInsertBucket || m.Command == GroupRemoveBucket
}

func (m *GroupMod) appendBody(b []byte, v Version) ([]byte, error) {
	b = put16(b, uint16(m.Command))
	b = put32(append(b, byte(m.Group.Type), 0), m.Group.ID)
	if v < Version15 {
		switch {
		case m.onBucket():
			return b, fmt.Errorf("%s needs %s", m.Command, Version15)
		case m.Group.Selection != nil:
			return b, fmt.Errorf("a selection method needs %s", Version15)
		}
		return m.Group.appendBuckets(b, v)
	}
	place := AllBuckets
	if m.onBucket() {
		place = m.Bucket
	}
	at := len(b)
	b = put32(zeros(b, 4), place)
	start := len(b)
	b, err := m.Group.appendBuckets(b, v)
	if err != nil {
		return b, err
	}
	if err := putLength(b, start, at); err != nil {
		return b, err
	}
	return m.Group.appendSelection(b)
}

func decodeGroupMod(v Version, b []byte) (Message, error) {
	fixed := 8
	if v >= Version15 {
		fixed = 16
	}
	if len(b) < fixed {
		return nil, short("group mod", len(b), fixed)
	}
	m := &GroupMod{Command: GroupCommand(u16(b))}
	m.Group.Type, m.Group.ID = GroupType(b[2]), u32(b[4:])
	n := len(b) - fixed
	if v >= Version15 {
		if n = int(u16(b[8:])); n > len(b)-fixed {
			return nil, fmt.Errorf("group mod: %d bytes of buckets where %d are left", n, len(b)-fixed)
		}
		if m.onBucket() {
			m.Bucket = u32(b[12:])
		}
	}
	b = b[fixed:]
	if err := m.Group.decodeBuckets(b[:n], v); err != nil {
		return nil, err
	}
	return m, m.Group.decodeSelection(b[n:])
}

// Layout of a bucket (OpenFlow 1.4.1, 7.3.4.3, ofp_bucket; 1.5.1 likewise), and its properties in 1.5.
const (
	bucketLen = 16

	bucketWeight     = 0
	bucketWatchPort  = 1
	bucketWatchGroup = 2
)

func (g *Group) appendBuckets(b []byte, v Version) ([]byte, error) {
	for i := range g.Buckets {
		var err error
		if b, err = g.Buckets[i].append(b, v, g.Type); err != nil {
			return b, fmt.Errorf("bucket %d: %w", i, err)
		}
	}
	return b, nil
}

func (k *Bucket) append(b []byte, v Version, t GroupType) ([]byte, error) {
	start := len(b)
	port, group := PortAny, uint32(anyGroup)
	if k.WatchPort != 0 {
		port = k.WatchPort
	}
	if k.WatchGroup != 0 {
		group = k.WatchGroup
	}
	if v < Version15 {
		b = put16(zeros(b, 2), k.Weight)
		b = zeros(put32(put32(b, uint32(port)), group), 4)
		b, err := appendActions(b, v, k.Actions)
		if err != nil {
			return b, err
		}
		return b, putLength(b, start, start)
	}
	b = put32(zeros(b, 4), k.ID)
	actions := len(b)
	b, err := appendActions(b, v, k.Actions)
	if err != nil {
		return b, err
	}
	if err := putLength(b, actions, start+2); err != nil {
		return b, err
	}
	if t == GroupSelect || k.Weight != 0 {
		b = zeros(put16(appendHeader(b, bucketWeight, 8), k.Weight), 2)
	}
	if k.WatchPort != 0 {
		b = put32(appendHeader(b, bucketWatchPort, 8), uint32(port))
	}
	if k.WatchGroup != 0 {
		b = put32(appendHeader(b, bucketWatchGroup, 8), group)
	}
	return b, putLength(b, start, start)
}

func (g *Group) decodeBuckets(b []byte, v Version) error {
	for len(b) > 0 {
		element, rest, ok := bucketTLV(b, v)
		if !ok {
			return fmt.Errorf("group %d: a bucket's length does not fit into its %d bytes", g.ID, len(b))
		}
		k := Bucket{ID: uint32(len(g.Buckets))}
		if v < Version15 {
			k.Weight = u16(element[2:])
			k.watch(Port(u32(element[4:])), u32(element[8:]))
			k.Actions = decodeActions(element[bucketLen:])
		} else if err := k.decode15(element); err != nil {
			return fmt.Errorf("group %d: %w", g.ID, err)
		}
		g.Buckets = append(g.Buckets, k)
		b = rest
	}
	return nil
}

func bucketTLV(b []byte, v Version) (element, rest []byte, ok bool) {
	if v < Version15 {
		return tlv(b, 0, bucketLen)
	}
	return tlv(b, 0, 8)
}

func (k *Bucket) decode15(b []byte) error {
	n := 8 + int(u16(b[2:]))
	if n > len(b) {
		return fmt.Errorf("a bucket of %d bytes with %d bytes of actions", len(b), n-8)
	}
	k.ID = u32(b[4:])
	k.Actions = decodeActions(b[8:n])
	port, group := PortAny, uint32(anyGroup)
	for rest := b[n:]; len(rest) > 0; {
		typ, payload, after, ok := property(rest)
		if !ok {
			return fmt.Errorf("a bucket's property is longer than the bucket")
		}
		switch {
		case typ == bucketWeight && len(payload) >= 2:
			k.Weight = u16(payload)
		case typ == bucketWatchPort && len(payload) >= 4:
			port = Port(u32(payload))
		case typ == bucketWatchGroup && len(payload) >= 4:
			group = u32(payload)
		}
		rest = after
	}
	k.watch(port, group)
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

// Layout of struct ntr_group_prop_selection_method.
const (
	propertyExperimenter = 0xffff
	ntrSelectionMethod   = 1
	selectionLen         = 40
	selectionMethodLen   = 16
)

func (g *Group) appendSelection(b []byte) ([]byte, error) {
	s := g.Selection
	if s == nil {
		return b, nil
	}
	if len(s.Method) == 0 || len(s.Method) >= selectionMethodLen {
		return b, fmt.Errorf("%q is not a selection method", s.Method)
	}
	start := len(b)
	b = put32(appendHeader(b, propertyExperimenter, 0), experimenterNTR)
	b = zeros(put32(b, ntrSelectionMethod), 4)
	b = zeros(append(b, s.Method...), selectionMethodLen-len(s.Method))
	b = put64(b, s.Param)
	for _, f := range s.Fields {
		if err := f.check(); err != nil {
			return b, err
		}
		b = appendField(b, fieldTable[f.ID].wire(), Exact(f.ID, f.Value))
	}
	if err := putLength(b, start, start+2); err != nil {
		return b, err
	}
	return pad8(b, start), nil
}

// decodeSelection decodes a group's properties, of which only the selection method is known.
func (g *Group) decodeSelection(b []byte) error {
	for len(b) > 0 {
		typ, payload, rest, ok := property(b)
		if !ok {
			return fmt.Errorf("group %d: a property is longer than what is left", g.ID)
		}
		if typ == propertyExperimenter && len(payload) >= selectionLen-4 && u32(payload) == experimenterNTR && u32(payload[4:]) == ntrSelectionMethod {
			g.Selection = decodeSelection(payload[12:])
		}
		b = rest
	}
	return nil
}

func decodeSelection(b []byte) *Selection {
	s := &Selection{Method: cString(b[:selectionMethodLen]), Param: u64(b[selectionMethodLen:])}
	for rest := b[selectionMethodLen+8:]; ; {
		f, n, ok := readField(rest)
		if !ok {
			return s
		}
		s.Fields = append(s.Fields, f)
		rest = rest[n:]
	}
}

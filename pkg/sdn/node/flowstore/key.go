package flowstore

import (
	"cmp"
	"strconv"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// kind is the type of an object on the switch.
type kind uint8

const (
	kindFlow kind = iota
	kindGroup
	kindMeter
	numKinds
)

// key identifies a flow, group or meter. Flows and meters may have several owners; a group has one, which is part of its name.
// It is small, because the store has several of each.
type key struct {
	kind     kind
	table    uint8  // of a flow
	priority uint16 // of a flow
	meter    uint32 // ID of a meter
	text     string // match of a flow; name of a group
}

// flowKey returns the key of a flow, whose table and priority are in the ranges that ovs.FlowKey accepts.
func flowKey(k ovs.Key) key {
	return key{kind: kindFlow, table: uint8(k.Table), priority: uint16(k.Priority), text: k.Match}
}

// flow returns the key of the flow on the switch.
func (k key) flow() ovs.Key {
	return ovs.Key{Table: int(k.table), Priority: int(k.priority), Match: k.text}
}

func groupKey(owner pipeline.Owner, name string) key {
	return key{kind: kindGroup, text: name + " of " + owner.String()}
}

func meterKey(id uint32) key { return key{kind: kindMeter, meter: id} }

func (k key) String() string {
	switch k.kind {
	case kindGroup:
		return "group " + k.text
	case kindMeter:
		return "meter " + strconv.FormatUint(uint64(k.meter), 10)
	}
	return "flow " + k.flow().String()
}

// compareKeys orders flows by table and priority, as dumps do. The order of the others only has to be the same each time.
func compareKeys(a, b key) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.table, b.table), cmp.Compare(b.priority, a.priority), cmp.Compare(a.meter, b.meter),
		cmp.Compare(a.text, b.text))
}

func compareOwners(a, b pipeline.Owner) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key))
}

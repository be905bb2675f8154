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
type key struct {
	kind kind
	flow ovs.Key
	name string // of a group or meter
}

func flowKey(k ovs.Key) key { return key{kind: kindFlow, flow: k} }

func groupKey(owner pipeline.Owner, name string) key {
	return key{kind: kindGroup, name: name + " of " + owner.String()}
}

func meterKey(id uint32) key { return key{kind: kindMeter, name: strconv.FormatUint(uint64(id), 10)} }

func (k key) String() string {
	switch k.kind {
	case kindGroup:
		return "group " + k.name
	case kindMeter:
		return "meter " + k.name
	}
	return "flow " + k.flow.String()
}

// compareKeys orders flows by table and priority, as dumps do. The order of the others only has to be the same each time.
func compareKeys(a, b key) int {
	if c := cmp.Compare(a.kind, b.kind); c != 0 {
		return c
	}
	if a.kind == kindFlow {
		return cmp.Or(cmp.Compare(a.flow.Table, b.flow.Table), cmp.Compare(b.flow.Priority, a.flow.Priority), cmp.Compare(a.flow.Match, b.flow.Match))
	}
	return cmp.Compare(a.name, b.name)
}

func compareOwners(a, b pipeline.Owner) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key))
}

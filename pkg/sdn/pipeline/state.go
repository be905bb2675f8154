package pipeline

import (
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// State is what one owner wants on the switch. The order in which its parts get there is the store's affair, never a feature's.
type State struct {
	Flows  []*ovs.Flow // cookies are filled in by the store
	Groups []Group
	Meters []Meter
	// Learned names flows that `learn` actions of the owner make. The switch keeps them for as long as somebody names them; then they are
	// purged, together with the change.
	Learned []ovs.Learned
	// Connections are those that the owner vouches for. When it does not any more, they are forgotten, after the change.
	Connections []Connections
}

// Group is a select group of its owner. The owner's flows and buckets send to it by ToGroup.
type Group struct {
	Name    string // unique within the owner
	Buckets []ovs.Bucket
}

// Meter is a meter of its owner. The owner's flows go through it by ThroughMeter.
type Meter struct {
	Name  string // unique within the owner
	Unit  ovs.MeterUnit
	Rate  uint32 // units per second
	Burst uint32 // units; 0: the switch's own choice
}

// Connections are vouched for on some ground. When the ground changes they are forgotten too.
type Connections struct {
	ovs.Connections
	Ground string
}

// Reference is an action that names a group or a meter of the same owner. The store puts the number in its place that the switch knows
// it by.
type Reference struct {
	Object Object
	Name   string
}

// Object is what a Reference names.
type Object string

// The objects.
const (
	ObjectGroup Object = "group"
	ObjectMeter Object = "meter"
)

// ToGroup sends the packet to the owner's group of that name.
func ToGroup(name string) ovs.Action { return Reference{ObjectGroup, name} }

// ThroughMeter drops the packet when it exceeds the rate of the owner's meter of that name. It comes first in the action list.
func ThroughMeter(name string) ovs.Action { return Reference{ObjectMeter, name} }

// MarshalText returns the action as ovs-ofctl would read it if groups and meters had names.
func (r Reference) MarshalText() ([]byte, error) {
	if r.Name == "" {
		return nil, fmt.Errorf("%s without a name", r.Object)
	}
	return []byte(string(r.Object) + ":" + r.Name), nil
}

// GoString implements ovs.Action.
func (r Reference) GoString() string {
	return fmt.Sprintf("pipeline.Reference{%q, %q}", r.Object, r.Name)
}

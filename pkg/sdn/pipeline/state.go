package pipeline

import (
	"errors"
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// State is what one owner wants on the switch. The order in which its parts get there is the store's affair, never a feature's.
type State struct {
	Flows  []*ovs.Flow // cookies are filled in by the store
	Groups []Group
	// Meters have numbers that follow from ports: those of a pod are the same whatever other pods there are. The owner's flows go ovs.ThroughMeter.
	Meters []ovs.Meter
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

// Connections are vouched for on some ground. When the ground changes they are forgotten too.
type Connections struct {
	ovs.Connections
	Ground string
}

// Reference is an action that sends to a group of the same owner, by its name. The store puts the number in its place that the switch knows it by.
type Reference struct {
	Group string
}

// ToGroup sends the packet to the owner's group of that name.
func ToGroup(name string) ovs.Action { return Reference{name} }

// MarshalText returns the action as ovs-ofctl would read it if groups had names.
func (r Reference) MarshalText() ([]byte, error) {
	if r.Group == "" {
		return nil, errors.New("group without a name")
	}
	return []byte("group:" + r.Group), nil
}

// GoString implements ovs.Action.
func (r Reference) GoString() string { return fmt.Sprintf("pipeline.ToGroup(%q)", r.Group) }

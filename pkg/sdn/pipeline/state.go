package pipeline

import (
	"errors"
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// State is the desired state of one owner on the switch. The store orders the transactions that install it.
type State struct {
	Flows  []*ovs.Flow // cookies are filled in by the store
	Groups []Group
	// Meters have numbers that follow from ports, so that those of a pod do not depend on other pods. The owner's flows use them by ovs.ThroughMeter.
	Meters []ovs.Meter
}

// Group is a select group of its owner. The owner's flows and buckets refer to it by ToGroup.
type Group struct {
	Name    string // unique within the owner
	Buckets []ovs.Bucket
}

// Reference is an action that sends to a group of the same owner, by its name. The store replaces the name by the group's number.
type Reference struct {
	Group string
}

// ToGroup returns the action that sends the packet to the owner's group of that name.
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

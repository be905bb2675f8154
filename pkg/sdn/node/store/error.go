package store

import (
	"errors"
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// ConflictError says that an owner wants other actions on a flow key than the owner that has it.
type ConflictError struct {
	Key          ovs.Key
	Actions      string
	Rival        pipeline.Owner
	RivalActions string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("flow %s is wanted with actions=%s, but %s has it with actions=%s", e.Key, e.Actions, e.Rival, e.RivalActions)
}

// refusedKey returns the key of what the switch refused, and false when the error is of another kind.
func refusedKey(err error, groups map[uint32]key) (key, bool) {
	var flow *ovs.FlowError
	var group *ovs.GroupError
	var meter *ovs.MeterError
	switch {
	case errors.As(err, &flow):
		return flowKey(flow.Key), true
	case errors.As(err, &group):
		return groups[group.ID], true
	case errors.As(err, &meter):
		return meterKey(meter.ID), true
	}
	return key{}, false
}

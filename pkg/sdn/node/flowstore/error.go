package flowstore

import (
	"errors"
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// ConflictError is the error of a flow whose key another owner has with other actions.
type ConflictError struct {
	Key          ovs.Key
	Actions      string
	Rival        pipeline.Owner
	RivalActions string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("flow %s with actions=%s conflicts with that of %s with actions=%s", e.Key, e.Actions, e.Rival, e.RivalActions)
}

// rejectedKey returns the key of the flow, group or meter that the switch rejected, or false if the error is of another type.
func rejectedKey(err error, groups *groupNumbers) (key, bool) {
	var flow *ovs.FlowError
	var group *ovs.GroupError
	var meter *ovs.MeterError
	switch {
	case errors.As(err, &flow):
		return flowKey(flow.Key), true
	case errors.As(err, &group):
		return groups.key(group.ID), true
	case errors.As(err, &meter):
		return meterKey(meter.ID), true
	}
	return key{}, false
}

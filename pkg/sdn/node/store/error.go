package store

import (
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

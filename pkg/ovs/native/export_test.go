package native

import (
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// SetDialTimeout sets the time limit for connecting.
func (n *Native) SetDialTimeout(d time.Duration) { n.db.timeout, n.flows.timeout = d, d }

// SetUndoTimeout sets the time limit for undoing a failed call.
func (n *Native) SetUndoTimeout(d time.Duration) { n.undo = d }

// SetTimeout sets the time limit of one call.
func SetTimeout(b ovs.Interface, d time.Duration) {
	switch b := b.(type) {
	case *Exec:
		b.timeout = d
	case *Native:
		b.timeout = d
	}
}

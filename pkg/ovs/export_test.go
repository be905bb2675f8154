package ovs

import "time"

// SetDialTimeout sets how long it may take to connect.
func (n *Native) SetDialTimeout(d time.Duration) { n.db.timeout, n.flows.timeout = d, d }

// SetUndoTimeout sets how long it may take to take back what a call has left.
func (n *Native) SetUndoTimeout(d time.Duration) { n.undo = d }

// SetTimeout sets how long one call may take.
func SetTimeout(b Interface, d time.Duration) {
	switch b := b.(type) {
	case *Exec:
		b.timeout = d
	case *Native:
		b.timeout = d
	}
}

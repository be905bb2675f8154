package ovs

import "time"

// SetDialTimeout shortens how long it may take to connect to the bridge.
func (n *Native) SetDialTimeout(d time.Duration) { n.flows.timeout = d }

// SetTimeout shortens how long one call may take.
func SetTimeout(b Interface, d time.Duration) {
	switch b := b.(type) {
	case *Exec:
		b.timeout = d
	case *Native:
		b.timeout = d
	}
}

package ovs

import "time"

// SetTimeout shortens how long one call may take.
func SetTimeout(b Interface, d time.Duration) {
	switch b := b.(type) {
	case *Exec:
		b.timeout = d
	case *Native:
		b.timeout = d
	}
}

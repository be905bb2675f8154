package ovs

import "time"

// SetTimeout shortens how long the backend's programs may take.
func SetTimeout(e *Exec, d time.Duration) {
	e.timeout = d
}

package netid

import "github.com/ovsdn/ovsdn/pkg/sdn/config"

// Usage returns the number of VNIDs that namespaces have, and of those in quarantine.
func (c *Controller) Usage() (used, quarantined int) { return c.vnids.Usage() }

// Usage returns the number of VNIDs that namespaces have or get, and of those in quarantine. Those that are never allocated do not count.
func (a *Allocator) Usage() (used, quarantined int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.endQuarantine()
	used = len(a.allocations)
	for vnid := range config.MinVNID {
		if _, ok := a.allocations[vnid]; ok {
			used--
		}
	}
	return used, len(a.quarantined)
}

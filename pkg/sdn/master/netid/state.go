package netid

import (
	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// state is the state of a NetNamespace that is neither in the cache nor in the allocator.
type state struct {
	written     *networkv1.NetNamespace // by this controller, until the cache has it; nil: none
	preexisting bool                    // found by Load, and not validated yet
	rejected    bool                    // validation has rejected its VNID
	assigned    *config.VNID            // the last valid VNID, as in config.AssignedVNIDAnnotation; nil: unknown
	namespace   types.UID               // of the Namespace whose VNID the allocator has; "": unknown
}

func (c *Controller) state(name string) state {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.states[name]
}

func (c *Controller) updateState(name string, update func(*state)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.states[name]
	update(&s)
	if s == (state{}) {
		delete(c.states, name)
		return
	}
	c.states[name] = s
}

// setAssigned sets the assigned VNID of the Namespace with the UID after validation.
func (c *Controller) setAssigned(name string, uid types.UID, vnid config.VNID) {
	c.updateState(name, func(s *state) { s.preexisting, s.rejected, s.assigned, s.namespace = false, false, &vnid, uid })
}

// release releases the VNID of the namespace: its NetNamespace was deleted.
func (c *Controller) release(name string) {
	c.vnids.Release(name)
	c.updateState(name, func(s *state) { s.preexisting, s.rejected, s.assigned, s.namespace = false, false, nil, "" })
}

// restoreAssigned corrects config.AssignedVNIDAnnotation while nodes use it because the netid is invalid: another client may have
// edited or removed it.
func (c *Controller) restoreAssigned(nn *networkv1.NetNamespace) {
	if vnid := c.state(nn.Name).assigned; vnid != nil && hasInvalidNetID(nn) {
		setAnnotation(nn, config.AssignedVNIDAnnotation, vnid.String())
	}
}

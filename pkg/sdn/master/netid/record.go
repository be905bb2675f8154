package netid

import (
	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// inUse returns the VNID that nodes use for the NetNamespace: the netid or, while a field is invalid, the recorded VNID. If the record is
// invalid too, it returns the netid and false.
func inUse(nn *networkv1.NetNamespace) (vnid config.VNID, usable bool) {
	n, err := config.ParseNetNamespace(nn)
	if err != nil {
		return config.VNID(nn.NetID), false
	}
	return n.VNID, true
}

func isInvalid(nn *networkv1.NetNamespace) bool {
	_, err := config.CheckVNID(nn.NetID)
	return err != nil
}

// restoreRecord corrects config.AssignedVNIDAnnotation while nodes use it because the netid is invalid: another client may have
// edited or removed it.
func (c *Controller) restoreRecord(nn *networkv1.NetNamespace) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if vnid, ok := c.assigned[nn.Name]; ok && isInvalid(nn) {
		setAnnotation(nn, config.AssignedVNIDAnnotation, vnid.String())
	}
}

// record stores the namespace's VNID, as in config.AssignedVNIDAnnotation, for restoreRecord.
func (c *Controller) record(name string, vnid config.VNID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.assigned[name] = vnid
}

func (c *Controller) unrecord(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.assigned, name)
}

package netid

import (
	"fmt"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// maxNamed is the number of namespaces with the same VNID that a message names.
const maxNamed = 3

// effectiveVNID returns the VNID that nodes use for the NetNamespace: the netid or, while a field is invalid, the VNID of
// config.AssignedVNIDAnnotation. If both are invalid, it returns the netid and false.
func effectiveVNID(nn *networkv1.NetNamespace) (vnid config.VNID, valid bool) {
	n, err := config.ParseNetNamespace(nn)
	if err != nil {
		return config.VNID(nn.NetID), false
	}
	return n.VNID, true
}

func hasInvalidNetID(nn *networkv1.NetNamespace) bool {
	_, err := config.CheckVNID(nn.NetID)
	return err != nil
}

// validate reports an invalid netid, and one that another client has written and that other namespaces have.
func (c *Controller) validate(nn *networkv1.NetNamespace) error {
	vnid, err := config.CheckVNID(nn.NetID)
	if err != nil {
		effect := "nodes with pods of the namespace continue with their VNID, and on others new pods do not start, since none is recorded"
		if assigned, valid := effectiveVNID(nn); valid {
			effect = fmt.Sprintf("the assigned VNID %s stays in use", assigned)
		}
		return reconcile.ReportUserError(c.Events, nn, eventreason.InvalidNetNamespace, fmt.Errorf("netid: %w, or set the annotation %s to %s; until then %s",
			err, networkv1.ChangePodNetworkAnnotation, config.ActionIsolate, effect))
	}
	assigned, ok := nn.Annotations[config.AssignedVNIDAnnotation]
	if assigned == vnid.String() || !ok && c.state(nn.Name).preexisting {
		return nil
	}
	others := c.vnids.Others(nn.Name, vnid)
	if len(others) == 0 {
		return nil
	}
	confirm := config.Change{Action: config.ActionJoin, To: others[0]}
	if vnid.IsGlobal() {
		confirm = config.Change{Action: config.ActionGlobal}
	}
	return reconcile.ReportUserError(c.Events, nn, eventreason.VNIDWrittenByHand, fmt.Errorf("netid %s was written by hand, and makes one network with %s: "+
		"set the annotation %s to %s if that is wanted, or else to %s; outside mode %s write back the previous netid, "+
		"or delete the NetNamespace, and it is re-created with a VNID of its own",
		vnid, reconcile.FirstNames(others, maxNamed), networkv1.ChangePodNetworkAnnotation, confirm, config.ActionIsolate, config.ModeMultitenant))
}

// validateLogDenied reports an invalid annotation. The nodes read it too, but each of them would send the same Event.
func (c *Controller) validateLogDenied(ns *corev1.Namespace) {
	if _, err := config.ParseLogDenied(ns.Annotations); err != nil {
		c.Events.Event(ns, corev1.EventTypeWarning, eventreason.InvalidLogDenied, err.Error())
	}
}

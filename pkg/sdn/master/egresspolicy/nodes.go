package egresspolicy

import (
	"slices"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ovsdn/ovsdn/pkg/sdn/egressstatus"
)

// nodeDelay is the time after which the reports of deleted nodes are removed: many nodes are deleted together.
const nodeDelay = time.Minute

// nodeDeleted schedules the removal of a node's reports. Agents report policies with DNS names only.
func (c *Controller) nodeDeleted(any) {
	for _, obj := range c.policies.GetStore().List() {
		o, ok := obj.(*networkv1.EgressNetworkPolicy)
		if ok && slices.ContainsFunc(o.Spec.Egress, func(r networkv1.EgressNetworkPolicyRule) bool { return r.To.DNSName != "" }) {
			c.loop.AddAfter(o.Namespace, wait.Jitter(nodeDelay, 1))
		}
	}
}

// deletedNodes returns the patch that removes the reports of nodes that no longer exist. They would take the place of others (egressstatus.MaxNodes).
func (c *Controller) deletedNodes(status *egressstatus.Status) map[string]*egressstatus.Node {
	var deleted map[string]*egressstatus.Node
	for name := range status.Nodes {
		if _, exists, err := c.hostSubnets.GetStore().GetByKey(name); err == nil && !exists {
			if deleted == nil {
				deleted = map[string]*egressstatus.Node{}
			}
			deleted[name] = nil
		}
	}
	return deleted
}

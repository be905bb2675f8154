package egresspolicy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ovsdn/ovsdn/pkg/sdn/egressstatus"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// nodeDelay is the time after which the reports of deleted nodes are removed: many nodes are deleted together.
const nodeDelay = time.Minute

// summaryDelay is the time after which the errors that nodes report are summarized: one write for the reports of several nodes.
const summaryDelay = 10 * time.Second

// statusWritten schedules the summary of a policy whose status an agent, or this controller, has written.
func (c *Controller) statusWritten(obj any) {
	if o, ok := obj.(*networkv1.EgressNetworkPolicy); ok && hasNames(o) {
		c.loop.AddAfter(o.Namespace, wait.Jitter(summaryDelay, 0.5))
	}
}

func hasNames(o *networkv1.EgressNetworkPolicy) bool {
	return slices.ContainsFunc(o.Spec.Egress, func(r networkv1.EgressNetworkPolicyRule) bool { return r.To.DNSName != "" })
}

// changedSummary returns the summary of the DNS errors without the deleted nodes; nil: the status has it.
func changedSummary(o *networkv1.EgressNetworkPolicy, status *egressstatus.Status, deleted map[string]*egressstatus.Node) *string {
	summary, written := "", ""
	if hasNames(o) { // else the agents remove their reports
		nodes := maps.Clone(status.Nodes)
		maps.DeleteFunc(nodes, func(name string, n *egressstatus.Node) bool {
			_, isDeleted := deleted[name]
			return isDeleted || n == nil
		})
		summary = summarize(nodes)
	}
	if status.DNSErrors != nil {
		written = *status.DNSErrors
	}
	if summary == written {
		return nil
	}
	return &summary
}

// maxError bounds an error in the summary, in bytes. That of an agent is not longer.
const maxError = 256

// summarize returns how many nodes have a DNS error, and the first of them by name with its error, on one line; "": none has one.
func summarize(nodes map[string]*egressstatus.Node) string {
	failing := slices.DeleteFunc(slices.Sorted(maps.Keys(nodes)), func(name string) bool { return nodes[name].Error == "" })
	if len(failing) == 0 {
		return ""
	}
	first := nodes[failing[0]]
	text, example := strings.ToValidUTF8(first.Error[:min(len(first.Error), maxError)], ""), failing[0]
	if len(failing) > 1 {
		example = "such as " + example
	}
	summary := fmt.Sprintf("%d of %d nodes (%s): %s", len(failing), len(nodes), example, strings.Join(strings.Fields(text), " "))
	if i := slices.IndexFunc(first.Names, func(n egressstatus.Name) bool { return n.Error != "" }); i >= 0 && first.Names[i].Since != nil {
		summary += ", since " + first.Names[i].Since.UTC().Format(time.RFC3339)
	}
	return reconcile.Shorten(summary)
}

// nodeDeleted schedules the removal of a node's reports. Agents report policies with DNS names only.
func (c *Controller) nodeDeleted(any) {
	for _, obj := range c.policies.GetStore().List() {
		if o, ok := obj.(*networkv1.EgressNetworkPolicy); ok && hasNames(o) {
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

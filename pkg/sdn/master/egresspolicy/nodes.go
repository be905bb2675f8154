package egresspolicy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/egressstatus"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// nodeDelay is the time after which the reports of deleted nodes are removed: many nodes are deleted together.
const nodeDelay = time.Minute

// summaryDelay is the time after which the errors that nodes report are summarized: one write for the reports of several nodes.
const summaryDelay = 10 * time.Second

// textInterval is the minimum interval of writes while errors neither begin nor end: they may change every few seconds, on each node.
const textInterval = time.Minute

// lastStatus is what the controller knows of the status of a policy with DNS names.
type lastStatus struct {
	version string    // the resourceVersion at which the summary has all reports
	written time.Time // when this controller wrote the summary; zero: never
}

// statusWritten schedules the summary of a policy whose status an agent, or this controller, has written.
func (c *Controller) statusWritten(obj any) {
	if o, ok := obj.(*networkv1.EgressNetworkPolicy); ok && hasNames(o) {
		c.loop.AddAfter(cache.MetaObjectToName(o).String(), wait.Jitter(summaryDelay, 0.5))
	}
}

// isSummarized reports whether the summary of a policy has all reports: this controller was the last that wrote the status, or the policy was deleted.
func (c *Controller) isSummarized(namespace, name string) bool {
	obj, _, _ := c.policies.GetStore().GetByKey(cache.NewObjectName(namespace, name).String()) // it never fails
	o, exists := obj.(*networkv1.EgressNetworkPolicy)
	version := c.last[namespace][name].version
	return !exists || version != "" && version == o.ResourceVersion
}

// setSummarized stores the version of a status if its summary has all reports. The result of a write also has what agents wrote since the controller's read.
func (c *Controller) setSummarized(o *networkv1.EgressNetworkPolicy, status *egressstatus.Status) {
	if deleted := c.deletedNodes(status); len(deleted) == 0 && changedSummary(o, status, nil) == nil {
		c.setLast(o, func(l *lastStatus) { l.version = status.ResourceVersion })
	}
}

// setLast changes what is known of a policy with DNS names.
func (c *Controller) setLast(o *networkv1.EgressNetworkPolicy, change func(*lastStatus)) {
	if !hasNames(o) {
		return
	}
	if c.last[o.Namespace] == nil {
		c.last[o.Namespace] = map[string]lastStatus{}
	}
	last := c.last[o.Namespace][o.Name]
	change(&last)
	c.last[o.Namespace][o.Name] = last
}

// releaseDeleted deletes what is known of other policies of the namespace than the existing ones.
func (c *Controller) releaseDeleted(namespace string, existing []*networkv1.EgressNetworkPolicy) {
	maps.DeleteFunc(c.last[namespace], func(name string, _ lastStatus) bool {
		return !slices.ContainsFunc(existing, func(o *networkv1.EgressNetworkPolicy) bool { return o.Name == name && hasNames(o) })
	})
	if len(c.last[namespace]) == 0 {
		delete(c.last, namespace)
	}
}

// postpone schedules the write of a summary if only its text has changed since a write within textInterval.
func (c *Controller) postpone(o *networkv1.EgressNetworkPolicy, status *egressstatus.Status, summary string) bool {
	if hadErrors := status.DNSErrors != nil && *status.DNSErrors != ""; hadErrors != (summary != "") {
		return false
	}
	pause := textInterval - time.Since(c.last[o.Namespace][o.Name].written)
	if pause <= 0 {
		return false
	}
	c.loop.AddAfter(o.Namespace, pause)
	return true
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

package egressips

import (
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// evaluateConnections implements flowstore.Evaluator: a translated connection is not valid if its egress IP is no longer one of the namespace of the pod that opened it.
// Else a reply to the new namespace could reach the pod. Connections with an egress IP that another node hosts now are valid: the IP may come back.
func (e *EgressIPs) evaluateConnections(restarted bool) func(ovs.Connection) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.hosted && !restarted {
		return nil
	}
	return func(c ovs.Connection) bool {
		namespace, known := e.options.NamespaceOf(c.Original.Src)
		e.mu.Lock()
		defer e.mu.Unlock()
		namespaces := e.table.IP(c.Reply.Dst).Namespaces
		if !known && len(namespaces) > 0 {
			return restarted // the pod is new; connections of deleted ones are flushed by their addresses, but not while no agent ran
		}
		return !slices.Contains(namespaces, namespace)
	}
}

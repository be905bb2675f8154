package endpoints

import "unique"

// place is a Node in the form in which endpoints are compared with it.
type place struct {
	node       unique.Handle[string] // zero: no endpoint is local
	zone, name nameSet               // with one name; "": unknown
}

func newPlace(node Node) place {
	var out place
	if node.Name != "" {
		out.node, out.name = unique.Make(node.Name), nameSet("").add(node.Name)
	}
	if node.Zone != "" {
		out.zone = nameSet("").add(node.Zone)
	}
	return out
}

// isLocal reports whether an endpoint is on the node.
func (p place) isLocal(e *Endpoint) bool {
	return e.node == p.node && p.node != (unique.Handle[string]{})
}

// preference returns the function that reports whether the hints of a ready endpoint allow its use on the node, as in kube-proxy's topologyModeFromHints.
//
// Hints for nodes are used if all ready endpoints have some, and those of one name this node; hints for zones likewise, if hints for nodes are not used. Else
// all endpoints are allowed. The Service's trafficDistribution has no effect here: kube-controller-manager sets the hints by it.
func (p place) preference(found []candidate) func(*Endpoint) bool {
	ofNode, ofZone := false, false
	allNodes, allZones := true, true
	for _, c := range found {
		if !c.Ready() {
			continue
		}
		h := c.hintsOf()
		allNodes, allZones = allNodes && h.nodes != "", allZones && h.zones != ""
		ofNode, ofZone = ofNode || h.nodes.has(p.name), ofZone || h.zones.has(p.zone)
	}
	switch {
	case allNodes && ofNode:
		return func(e *Endpoint) bool { return e.hintsOf().nodes.has(p.name) }
	case allZones && ofZone:
		return func(e *Endpoint) bool { return e.hintsOf().zones.has(p.zone) }
	default:
		return func(*Endpoint) bool { return true }
	}
}

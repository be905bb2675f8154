package endpoints

import (
	"strings"
	"unique"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// hints are the zones and the nodes for which an endpoint is preferred. Most endpoints of a cluster share few values.
type hints struct{ zones, nodes nameSet }

// nameSet is a set of names: "" is empty, others have a separator before and after each name.
type nameSet string

// nameSeparator is a character that names of nodes and zones do not have.
const nameSeparator = "\x00"

func newHints(h *discoveryv1.EndpointHints) unique.Handle[hints] {
	if h == nil || len(h.ForZones) == 0 && len(h.ForNodes) == 0 {
		return unique.Handle[hints]{}
	}
	var out hints
	for _, zone := range h.ForZones {
		out.zones = out.zones.add(zone.Name)
	}
	for _, node := range h.ForNodes {
		out.nodes = out.nodes.add(node.Name)
	}
	return unique.Make(out)
}

func (s nameSet) add(name string) nameSet {
	if s == "" {
		s = nameSeparator
	}
	return s + nameSet(name) + nameSeparator
}

// has reports whether the set has all names of another set.
func (s nameSet) has(other nameSet) bool {
	return other != "" && strings.Contains(string(s), string(other))
}

// hintsOf returns the hints of an endpoint.
func (e *Endpoint) hintsOf() hints {
	if e.hints == (unique.Handle[hints]{}) {
		return hints{}
	}
	return e.hints.Value()
}

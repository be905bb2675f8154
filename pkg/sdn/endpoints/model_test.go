package endpoints

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/test/seed"
)

// modelEndpoint is an endpoint of the model: the API object, and the port of its slice.
type modelEndpoint struct {
	discoveryv1.Endpoint
	addr netip.AddrPort
}

func (e modelEndpoint) ready() bool {
	return e.Conditions.Ready == nil || *e.Conditions.Ready
}

func (e modelEndpoint) terminating() bool {
	return e.Conditions.Terminating != nil && *e.Conditions.Terminating
}

func (e modelEndpoint) draining() bool {
	return (e.Conditions.Serving == nil || *e.Conditions.Serving) && e.terminating()
}

func (e modelEndpoint) on(node string) bool { return e.NodeName != nil && *e.NodeName == node }

func (e modelEndpoint) zones() []string {
	var out []string
	if e.Hints != nil {
		for _, zone := range e.Hints.ForZones {
			out = append(out, zone.Name)
		}
	}
	return out
}

func (e modelEndpoint) nodes() []string {
	var out []string
	if e.Hints != nil {
		for _, node := range e.Hints.ForNodes {
			out = append(out, node.Name)
		}
	}
	return out
}

// model returns the endpoints of a port for policy Cluster and for policy Local, as sets. Each rule is a pass over all endpoints.
func model(port corev1.ServicePort, of []*discoveryv1.EndpointSlice, node, zone string) (cluster, local []modelEndpoint) {
	byAddr := map[netip.AddrPort]modelEndpoint{}
	for _, s := range of {
		for _, p := range s.Ports {
			if *p.Name != port.Name || *p.Protocol != port.Protocol || *p.Port == 0 {
				continue
			}
			for _, e := range s.Endpoints {
				addr := netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*p.Port)) //nolint:gosec // 0 to 2
				m := modelEndpoint{e, addr}
				if _, exists := byAddr[addr]; !exists || !m.terminating() {
					byAddr[addr] = m
				}
			}
		}
	}
	all := slices.Collect(maps.Values(byAddr))
	readyOnes, drainingOnes := filter(all, modelEndpoint.ready), filter(all, modelEndpoint.draining)
	onNode := func(e modelEndpoint) bool { return e.on(node) }

	local = orElse(filter(readyOnes, onNode), filter(drainingOnes, onNode))
	forNode := filter(readyOnes, func(e modelEndpoint) bool { return slices.Contains(e.nodes(), node) })
	forZone := filter(readyOnes, func(e modelEndpoint) bool { return slices.Contains(e.zones(), zone) })
	if slices.ContainsFunc(readyOnes, func(e modelEndpoint) bool { return len(e.nodes()) == 0 }) {
		forNode = nil
	}
	if slices.ContainsFunc(readyOnes, func(e modelEndpoint) bool { return len(e.zones()) == 0 }) {
		forZone = nil
	}
	return orElse(forNode, forZone, readyOnes, drainingOnes), local
}

func filter(all []modelEndpoint, use func(modelEndpoint) bool) []modelEndpoint {
	return slices.DeleteFunc(slices.Clone(all), func(e modelEndpoint) bool { return !use(e) })
}

// orElse returns the first list that is not empty.
func orElse(lists ...[]modelEndpoint) []modelEndpoint {
	for _, list := range lists {
		if len(list) > 0 {
			return list
		}
	}
	return nil
}

// checkTargets compares targets with the model's endpoints for a policy, and with whether the cluster has endpoints at all.
func checkTargets(t *rapid.T, what string, got Targets, want []modelEndpoint, inCluster bool, node string) {
	verdict := Forward
	if !inCluster {
		verdict = Reject
	} else if len(want) == 0 {
		verdict = Drop
	}
	var all []Target
	for _, e := range want {
		all = append(all, Target{Addr: e.addr, Local: e.on(node)})
	}
	slices.SortFunc(all, func(a, b Target) int { return a.Addr.Compare(b.Addr) })
	if got.Verdict != verdict || !slices.Equal(got.Endpoints, all) {
		t.Errorf("%s: got %v %s, want %v %s", what, got.Verdict, format(got.Endpoints), verdict, format(all))
	}
}

// TestSelect_matchesModel compares Select with the model, which was compared with kube-proxy 1.36.3.
func TestSelect_matchesModel(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		from, of := drawService(t), drawSlices(t)
		name, zone := drawNode(t)
		svc := NewService(from)
		var compact []*Slice
		for _, s := range of {
			compact = append(compact, NewSlice(s, serviceNetwork()))
		}
		slices.Reverse(compact)
		sel, ok := Select(svc, compact, Node{Name: name, Zone: zone})
		if !ok || len(sel.Ports) != len(from.Spec.Ports) {
			t.Fatalf("got %d ports, ok=%v, want %d", len(sel.Ports), ok, len(from.Spec.Ports))
		}
		for i, port := range from.Spec.Ports {
			cluster, local := model(port, of, name, zone)
			internal, external := cluster, cluster
			if svc.InternalLocal {
				internal = local
			}
			if svc.ExternalLocal {
				external = local
			}
			got, what := sel.Ports[i], fmt.Sprintf("port %s", port.Name)
			checkTargets(t, what+", internal", got.Internal, internal, len(cluster) > 0, name)
			if port.NodePort == 0 && len(svc.ExternalIPs)+len(svc.LoadBalancerIPs) == 0 {
				if got.External.Verdict != Unused || got.ShortCircuit.Verdict != Unused {
					t.Errorf("%s: got external %v, short circuit %v, want both unused", what, got.External, got.ShortCircuit)
				}
				continue
			}
			checkTargets(t, what+", external", got.External, external, len(cluster) > 0, name)
			checkTargets(t, what+", short circuit", got.ShortCircuit, cluster, len(cluster) > 0, name)
		}
	})
}

package diagnosticsserver

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

const (
	// maxHashes is the number of hash values that a search tries. No group uses more.
	maxHashes = 256
	// minKnown is the lowest number of successive hash values without another endpoint after which a search ends.
	minKnown = 16
)

// endpointSearch looks for the hash value with which the switch selects the wanted endpoint. There is one for all traces of a request.
type endpointSearch struct {
	left  int // hash values that may still be tried
	seen  map[netip.AddrPort]bool
	known int // successive hash values with endpoints that were seen before
}

func newEndpointSearch(exists bool) *endpointSearch {
	s := &endpointSearch{seen: map[netip.AddrPort]bool{}}
	if exists {
		s.left = maxHashes - 1 // after the first one
	}
	return s
}

// next reports whether another hash value may select the wanted endpoint, after one that selected this one. Endpoints have nearly the same number of slots, and
// successive values select all of them before one again.
func (s *endpointSearch) next(selected netip.AddrPort) bool {
	s.known++
	if !s.seen[selected] {
		s.seen[selected], s.known = true, 0
	}
	if s.left == 0 || s.known >= max(minKnown, 2*len(s.seen)) {
		s.left = 0
		return false
	}
	s.left--
	return true
}

// selectEndpoint traces the packet until the switch selects the wanted endpoint, if there is one. unreadable is an error in the report.
func (t *tracer) selectEndpoint(ctx context.Context, packet ovs.TracePacket, snapshot *flowstore.Snapshot) (unreadable, err error) {
	for ; ; t.hash++ {
		if err := t.limiter.Wait(ctx); err != nil {
			return nil, failf(http.StatusTooManyRequests, "node %s traces %d packets each second; retry: %w", t.node, tracesPerSecond, err)
		}
		packet.Hash = t.hash
		report, err := t.Switch.Trace(ctx, packet)
		if err != nil {
			return nil, failf(http.StatusServiceUnavailable, "trace the packet on node %s: %w", t.node, err)
		}
		if t.trace, unreadable = t.parser.Parse(report); unreadable != nil {
			return unreadable, nil
		}
		endpoint, byGroup := endpointOf(t.trace)
		t.unselected = t.request.endpoint.IsValid() && endpoint.IsValid() && endpoint != t.request.endpoint
		if !t.unselected || !byGroup {
			return nil, nil
		}
		if t.search == nil {
			if t.search, err = t.newSearch(ctx, snapshot); err != nil {
				return nil, failf(http.StatusServiceUnavailable, "find the endpoint on node %s: %w", t.node, err)
			}
		}
		if !t.search.next(endpoint) {
			return nil, nil
		}
	}
}

// newSearch returns a search, which tries no value if the service of the traced packet does not have the wanted endpoint.
func (t *tracer) newSearch(ctx context.Context, snapshot *flowstore.Snapshot) (*endpointSearch, error) {
	protocol := map[uint8]goovs.Protocol{
		ovs.ProtocolNumberTCP: goovs.ProtocolTCPv4, ovs.ProtocolNumberUDP: goovs.ProtocolUDPv4, ovs.ProtocolNumberSCTP: pipeline.ProtocolSCTP,
	}[t.request.protocol]
	key, err := pipeline.EndpointKey(protocol, t.request.endpoint)
	if err != nil {
		return nil, err
	}
	cookies := map[ovs.Key]uint64{key: pipeline.Owner{Kind: pipeline.KindService}.Cookie()} // of any service
	for i := range t.trace.Passes {
		for _, f := range t.trace.Passes[i].Flows {
			if f.Key.Table == pipeline.ServiceTable && !f.NoMatch {
				cookies[f.Key] = f.Cookie
			}
		}
	}
	flows, err := snapshot.FlowsAt(ctx, cookies)
	if err != nil {
		return nil, err
	}
	var ofEndpoint, ofService []pipeline.Owner
	for _, f := range flows {
		if f.Key == key {
			ofEndpoint = f.Owners
		} else {
			ofService = append(ofService, f.Owners...)
		}
	}
	return newEndpointSearch(slices.ContainsFunc(ofService, func(o pipeline.Owner) bool { return slices.Contains(ofEndpoint, o) })), nil
}

// endpointOf returns the endpoint of a service that the switch selects; the zero value if it selects none. byGroup reports whether other hash values may select
// another one.
func endpointOf(trace *ovs.Trace) (endpoint netip.AddrPort, byGroup bool) {
	for i := range trace.Passes {
		for _, f := range trace.Passes[i].Flows {
			for _, a := range f.Actions {
				byGroup = byGroup || strings.HasPrefix(a.Text, "group:")
				if _, to, found := strings.Cut(a.Text, "nat(dst="); found && f.Key.Table == pipeline.TranslateTable {
					to, _, _ = strings.Cut(to, ")")
					endpoint, _ = netip.ParseAddrPort(to)
				}
			}
		}
	}
	return endpoint, byGroup
}

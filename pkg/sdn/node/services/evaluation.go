package services

import (
	"context"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// retention is how long policies are evaluated for an endpoint after its removal, since the proxy may still use it. kube-proxy syncs within a second
// (minSyncPeriod), and after a failure within 30 seconds (syncPeriod).
const retention = 40 * time.Second

// frontend is an address and port of a service. A node port has no address.
type frontend struct {
	addr     netip.Addr
	port     uint16
	protocol goovs.Protocol
}

func (f frontend) isNodePort() bool { return f.addr == netip.Addr{} }

// evaluation holds the endpoints for which policies are evaluated when a packet is sent to a frontend.
type evaluation struct {
	service  string // the last one with the frontend
	retained bool   // the service no longer has the frontend

	// endpoints are those that the proxy may use, with the times of their removal; zero for those that exist. The zero endpoint stands for endpoints
	// that are not stored because there are too many or they do not parse.
	endpoints map[netip.AddrPort]time.Time
	outside   pipeline.OutsideEndpoints // derived from endpoints
}

// update sets the existing endpoints. It returns when the retention of the next removed endpoint ends; zero if none is retained.
func (e *evaluation) update(exist pipeline.OutsideEndpoints, now time.Time) (next time.Time) {
	all := map[netip.AddrPort]time.Time{}
	for endpoint, removed := range e.endpoints {
		if removed.IsZero() {
			removed = now
		}
		if now.Sub(removed) < retention {
			all[endpoint] = removed
		}
	}
	if exist.Closed {
		exist.Addrs = []netip.AddrPort{{}}
	}
	for _, endpoint := range exist.Addrs {
		all[endpoint] = time.Time{}
	}
	if len(all) > pipeline.MaxOutsideEndpoints { // limits the memory for endpoints that change often
		maps.DeleteFunc(all, func(_ netip.AddrPort, removed time.Time) bool { return !removed.IsZero() })
		if _, closed := all[netip.AddrPort{}]; !closed {
			all[netip.AddrPort{}] = now
		}
	}
	for _, removed := range all {
		if end := removed.Add(retention); !removed.IsZero() && (next.IsZero() || end.Before(next)) {
			next = end
		}
	}
	e.endpoints, e.outside = all, pipeline.OutsideEndpoints{}
	if _, closed := all[netip.AddrPort{}]; closed {
		e.outside.Closed = true
	} else {
		e.outside.Addrs = slices.SortedFunc(maps.Keys(all), netip.AddrPort.Compare)
	}
	return next
}

// endpoints are the outside endpoints of all services.
type endpoints struct {
	byFrontend map[frontend]evaluation // without frontends that have no outside endpoints
	frontends  map[string][]frontend   // those in byFrontend, by service; has all services
	excessive  map[string]struct{}     // services with too many endpoints of a port
}

func newEndpoints() endpoints {
	return endpoints{byFrontend: map[frontend]evaluation{}, frontends: map[string][]frontend{}, excessive: map[string]struct{}{}}
}

// reportExcess logs once that a port of the service has too many endpoints. It writes no Event, since each node would write one.
func (e *endpoints) reportExcess(ctx context.Context, service string, most int) {
	if most <= pipeline.MaxOutsideEndpoints {
		delete(e.excessive, service)
		return
	}
	if _, reported := e.excessive[service]; !reported {
		klog.FromContext(ctx).Info("Service has too many endpoints outside of the pod network; its ports with such endpoints are closed to pods whose packets are evaluated",
			"service", service, "endpointsAtLeast", most, "limit", pipeline.MaxOutsideEndpoints,
			"action", "use several services, or let clients send to the endpoints")
		e.excessive[service] = struct{}{}
	}
}

// of returns the endpoints of a service, without frontends that another service has got in the meantime.
func (e *endpoints) of(service string) map[frontend]pipeline.OutsideEndpoints {
	all := map[frontend]pipeline.OutsideEndpoints{}
	for _, f := range e.frontends[service] {
		if of := e.byFrontend[f]; of.service == service {
			all[f] = of.outside
		}
	}
	return all
}

// Outside returns the endpoints for which policies are evaluated when a packet is sent to an address and port of a service; none for other
// addresses. The zero address stands for node ports.
func (s *Services) Outside(addr netip.Addr, protocol goovs.Protocol, port uint16) pipeline.OutsideEndpoints {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endpoints.byFrontend[frontend{addr, port, protocol}].outside
}

// updateEndpoints parses a service (nil: it was deleted), and stores its outside endpoints, including those removed within the retention time. It
// adds node ports that the service had within that time: the proxy may still forward packets to them. changed reports whether policies of open
// connections to the service must be evaluated again.
func (s *Services) updateEndpoints(ctx context.Context, key string, svc *corev1.Service) (out pipeline.Service, changed bool) {
	known, most := true, 0
	if svc != nil {
		out = parse(svc)
		known, most = s.addOutside(svc, &out)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endpoints.reportExcess(ctx, key, most)
	previous, existed := s.endpoints.frontends[key]
	previousOutside := s.endpoints.of(key)
	u := update{endpoints: &s.endpoints, service: key, known: known, now: time.Now()}
	for _, addr := range out.ClusterIPs {
		for i := range out.Ports {
			u.set(frontend{addr, out.Ports[i].Port, out.Ports[i].Protocol}, &out.Ports[i].Outside)
		}
	}
	for i := range out.NodePorts {
		u.set(frontend{port: out.NodePorts[i].Port, protocol: out.NodePorts[i].Protocol}, &out.NodePorts[i].Outside)
	}
	for _, f := range previous {
		if outside := u.retain(f); f.isNodePort() && outside.Any() {
			out.NodePorts = append(out.NodePorts, pipeline.ServicePort{Protocol: f.protocol, Port: f.port, Outside: outside})
		}
	}
	delete(s.endpoints.frontends, key)
	if svc != nil || len(u.frontends) > 0 {
		s.endpoints.frontends[key] = u.frontends
	}
	if !u.next.IsZero() {
		s.loop.AddAfter(key, u.next.Sub(u.now))
	}
	for _, other := range u.others {
		s.loop.Add(other)
	}
	return out, existed && len(u.frontends) > 0 && !reflect.DeepEqual(previousOutside, s.endpoints.of(key))
}

// update is an update of one service's frontends.
type update struct {
	*endpoints
	service string
	known   bool // its endpoints are known
	now     time.Time

	frontends []frontend // with outside endpoints
	next      time.Time  // when the next retention of an endpoint ends; zero: none
	others    []string   // services that had one of the frontends
}

// set stores the endpoints of a frontend, and adds the retained ones to outside.
func (u *update) set(f frontend, outside *pipeline.OutsideEndpoints) {
	e := u.byFrontend[f]
	if e.retained && e.service != u.service {
		u.others = append(u.others, e.service)
	}
	e.service, e.retained = u.service, false
	u.store(f, e, *outside)
	*outside = u.byFrontend[f].outside
}

// retain stores a previous frontend of the service, and returns its retained endpoints; none if the service or another one has the frontend.
func (u *update) retain(f frontend) pipeline.OutsideEndpoints {
	e := u.byFrontend[f]
	if e.service != u.service || slices.Contains(u.frontends, f) {
		return pipeline.OutsideEndpoints{}
	}
	e.retained = true
	u.store(f, e, pipeline.OutsideEndpoints{})
	return u.byFrontend[f].outside
}

func (u *update) store(f frontend, e evaluation, exist pipeline.OutsideEndpoints) {
	if end := e.update(exist, u.now); u.next.IsZero() || !end.IsZero() && end.Before(u.next) {
		u.next = end
	}
	if !u.known && !e.retained { // closed until a slice exists
		e.outside = pipeline.OutsideEndpoints{Closed: true}
	}
	delete(u.byFrontend, f)
	if e.outside.Any() {
		u.byFrontend[f] = e
		u.frontends = append(u.frontends, f)
	}
}

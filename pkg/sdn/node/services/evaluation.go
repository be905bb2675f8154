package services

import (
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

// retention is how long packets are evaluated by an endpoint after its removal, since the proxy may still use it. kube-proxy follows within a second
// (minSyncPeriod), and after a failure within 30 seconds (syncPeriod).
const retention = 40 * time.Second

// frontend is an address and port of a service. Its node ports have no address.
type frontend struct {
	addr     netip.Addr
	port     uint16
	protocol goovs.Protocol
}

func (f frontend) isNodePort() bool { return f.addr == netip.Addr{} }

// evaluation is how packets to a frontend are evaluated.
type evaluation struct {
	service  string // the last one that had the frontend
	retained bool   // it no longer has it

	// endpoints are those that the proxy may use, with the times of their removal; zero for those that exist. The zero endpoint stands for those that are
	// not stored: they were too many, or not parsed.
	endpoints map[netip.AddrPort]time.Time
	outside   pipeline.OutsideEndpoints // what follows from endpoints
}

// update sets the endpoints that exist, and returns when the first of those that were removed is deleted; zero if there is none.
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
	if len(all) > pipeline.MaxOutsideEndpoints { // bounds what is stored of endpoints that change all the time
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

// endpoints are the outside endpoints of services, by the services' addresses.
type endpoints struct {
	byFrontend map[frontend]evaluation // those that have any
	frontends  map[string][]frontend   // by service, of all services
	excessive  map[string]struct{}     // services that have a port with too many endpoints
}

func newEndpoints() endpoints {
	return endpoints{byFrontend: map[frontend]evaluation{}, frontends: map[string][]frontend{}, excessive: map[string]struct{}{}}
}

// reportExcess logs that a port of the service has more endpoints than are evaluated, once. Each node would write an Event of its own.
func (e *endpoints) reportExcess(service string, most int) {
	if most <= pipeline.MaxOutsideEndpoints {
		delete(e.excessive, service)
		return
	}
	if _, reported := e.excessive[service]; !reported {
		klog.Background().Info("Service has too many endpoints outside of the pod network: its ports that have them are closed for pods that are evaluated",
			"service", service, "endpointsAtLeast", most, "limit", pipeline.MaxOutsideEndpoints,
			"action", "use several services, or let clients send to the endpoints")
		e.excessive[service] = struct{}{}
	}
}

// of returns the endpoints of a service. Another service may have got one of its frontends before its deletion is served.
func (e *endpoints) of(service string) map[frontend]pipeline.OutsideEndpoints {
	all := map[frontend]pipeline.OutsideEndpoints{}
	for _, f := range e.frontends[service] {
		if of := e.byFrontend[f]; of.service == service {
			all[f] = of.outside
		}
	}
	return all
}

// Outside returns the endpoints by which packets to an address and port of a service are evaluated; none for other addresses. The zero address
// stands for node ports.
func (s *Services) Outside(addr netip.Addr, protocol goovs.Protocol, port uint16) pipeline.OutsideEndpoints {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endpoints.byFrontend[frontend{addr, port, protocol}].outside
}

// learn parses a service, nil for one that was deleted, and stores the outside endpoints by which packets to it are evaluated, those that were removed a
// short time ago included. It adds the node ports that the service had then: packets to them may still be sent to an endpoint. changed reports whether
// open connections to the service are evaluated by other endpoints than before.
func (s *Services) learn(key string, svc *corev1.Service) (out pipeline.Service, changed bool) {
	known, most := true, 0
	if svc != nil {
		out = parse(svc)
		known, most = s.addOutside(svc, &out)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endpoints.reportExcess(key, most)
	had, again := s.endpoints.frontends[key]
	before := s.endpoints.of(key)
	u := update{endpoints: &s.endpoints, service: key, known: known, now: time.Now()}
	for _, addr := range out.ClusterIPs {
		for i := range out.Ports {
			u.set(frontend{addr, out.Ports[i].Port, out.Ports[i].Protocol}, &out.Ports[i].Outside)
		}
	}
	for i := range out.NodePorts {
		u.set(frontend{port: out.NodePorts[i].Port, protocol: out.NodePorts[i].Protocol}, &out.NodePorts[i].Outside)
	}
	for _, f := range had {
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
	return out, again && len(u.frontends) > 0 && !reflect.DeepEqual(before, s.endpoints.of(key))
}

// update is an update of one service's frontends.
type update struct {
	*endpoints
	service string
	known   bool // its endpoints are
	now     time.Time

	frontends []frontend // that have outside endpoints
	next      time.Time  // when the next removed endpoint is deleted; zero: none
	others    []string   // services that retain a frontend which is this service's now
}

// set stores the endpoints of a frontend, and adds those by which it is evaluated, too.
func (u *update) set(f frontend, outside *pipeline.OutsideEndpoints) {
	e := u.byFrontend[f]
	if e.retained && e.service != u.service {
		u.others = append(u.others, e.service)
	}
	e.service, e.retained = u.service, false
	u.store(f, e, *outside)
	*outside = u.byFrontend[f].outside
}

// retain stores a frontend that the service had before, and returns the endpoints by which it is evaluated; none if the service has it now, or another has.
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
	if !u.known && !e.retained { // it is closed until there is a slice, and not longer
		e.outside = pipeline.OutsideEndpoints{Closed: true}
	}
	delete(u.byFrontend, f)
	if e.outside.Any() {
		u.byFrontend[f] = e
		u.frontends = append(u.frontends, f)
	}
}

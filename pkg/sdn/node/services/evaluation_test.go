package services

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// The deletion of a service does not delete the endpoints of another service that has its address in the meantime.
func TestUpdateEndpoints_addressOfDeletedService(t *testing.T) {
	s := newServices() // without slices: ports are closed
	for step, update := range []func(){
		func() { s.updateEndpoints(t.Context(), "ns/old", service()) }, func() { s.updateEndpoints(t.Context(), "ns/new", service()) }, func() { s.updateEndpoints(t.Context(), "ns/old", nil) },
	} {
		update()
		if got := s.Outside(netip.MustParseAddr("172.30.0.10"), goovs.ProtocolTCPv4, 80); !got.Closed {
			t.Errorf("step %d: got %v, want a closed port", step, got)
		}
	}
	s.updateEndpoints(t.Context(), "ns/new", nil)
	if got := s.Outside(netip.MustParseAddr("172.30.0.10"), goovs.ProtocolTCPv4, 80); got.Closed {
		t.Errorf("without the services: got %v, want none", got)
	}
}

// removal is a change that removes an endpoint, and the endpoints of the frontends after it.
type removal struct {
	before                    []string        // endpoints
	after                     []string        // nil: no slice
	svc                       *corev1.Service // nil: deleted
	web, nodePort             string          // one of the frontend's endpoints; "": none
	webClosed, nodePortClosed bool
	remains                   [2]bool // whether the frontends have endpoints after the retention
}

// Policies are evaluated for an endpoint until the proxy has handled its removal, whatever change removed it.
func TestUpdateEndpoints_removedEndpoint(t *testing.T) {
	many := make([]string, pipeline.MaxOutsideEndpoints)
	for i := range many {
		many[i] = fmt.Sprintf("192.0.%d.%d", 3+i/256, i%256)
	}
	without := func(change func(*corev1.Service)) *corev1.Service {
		svc := service()
		change(svc)
		return svc
	}
	tooMany := append([]string{"192.0.2.7"}, many...)
	for name, tc := range map[string]removal{
		"an endpoint":             {before: []string{"192.0.2.7"}, after: []string{"10.128.0.5"}, svc: service(), web: "192.0.2.7:8080", nodePort: "192.0.2.7:5353"},
		"one of two":              {before: []string{"192.0.2.7", "192.0.2.8"}, after: []string{"192.0.2.8"}, svc: service(), web: "192.0.2.7:8080", nodePort: "192.0.2.7:5353", remains: [2]bool{true, true}},
		"all slices":              {before: []string{"192.0.2.7"}, svc: service(), webClosed: true, nodePortClosed: true, remains: [2]bool{true, true}},
		"too many":                {before: tooMany, after: []string{"10.128.0.5"}, svc: service(), webClosed: true, nodePortClosed: true},
		"too many with the next":  {before: []string{"192.0.2.7"}, after: many, svc: service(), webClosed: true, nodePortClosed: true, remains: [2]bool{true, true}},
		"the service":             {before: []string{"192.0.2.7"}, after: []string{"192.0.2.7"}, web: "192.0.2.7:8080", nodePort: "192.0.2.7:5353"},
		"the node port":           {before: []string{"192.0.2.7"}, after: []string{"192.0.2.7"}, svc: without(func(s *corev1.Service) { s.Spec.Ports[1].NodePort = 0 }), web: "192.0.2.7:8080", nodePort: "192.0.2.7:5353", remains: [2]bool{true, false}},
		"a service of that name":  {before: []string{"192.0.2.7"}, after: []string{"10.128.0.5"}, svc: without(func(s *corev1.Service) { s.UID = "new" }), web: "192.0.2.7:8080", nodePort: "192.0.2.7:5353"},
		"all, and there was none": {before: []string{"10.128.0.5"}, after: []string{"10.128.0.6"}, svc: service()},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, tc.test) })
	}
}

func (tc removal) test(t *testing.T) {
	s := newServices()
	set := func(addrs []string) {
		t.Helper()
		for name, p := range map[string]discoveryv1.EndpointPort{"a": port("web", corev1.ProtocolTCP, 8080), "b": port("dns", corev1.ProtocolUDP, 5353)} {
			do := s.slices.Update
			if addrs == nil {
				do = s.slices.Delete
			}
			if err := do(transformSlice(s.node, slice(name, p, addrs...))); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(name string, addr netip.Addr, protocol goovs.Protocol, port uint16, want string, closed bool) {
		t.Helper()
		got := s.Outside(addr, protocol, port)
		has := want == "" || slices.Contains(got.Addrs, netip.MustParseAddrPort(want))
		if !has || got.Closed != closed || want == "" && !closed && got.Any() {
			t.Errorf("%s: got %v, want %q, closed %v", name, got, want, closed)
		}
	}
	set(tc.before)
	s.updateEndpoints(t.Context(), "ns/svc", service())
	set(tc.after)
	for range 2 { // other changes of the service within the retention
		out, _ := s.updateEndpoints(t.Context(), "ns/svc", tc.svc)
		check("web", netip.MustParseAddr("172.30.0.10"), goovs.ProtocolTCPv4, 80, tc.web, tc.webClosed)
		check("node port", netip.Addr{}, goovs.ProtocolUDPv4, 30053, tc.nodePort, tc.nodePortClosed)
		if got, want := len(out.NodePorts) > 0 && out.NodePorts[0].Outside.Any(), tc.nodePort != "" || tc.nodePortClosed; got != want {
			t.Errorf("node port with endpoints in the result: got %t, want %t: %v", got, want, out)
		}
		<-time.After(retention / 2)
	}
	out, _ := s.updateEndpoints(t.Context(), "ns/svc", tc.svc)
	remains := [2]bool{
		s.Outside(netip.MustParseAddr("172.30.0.10"), goovs.ProtocolTCPv4, 80).Any(), s.Outside(netip.Addr{}, goovs.ProtocolUDPv4, 30053).Any(),
	}
	if remains != tc.remains {
		t.Errorf("endpoints after the retention: got %v, want %v", remains, tc.remains)
	}
	if tc.svc == nil && (len(s.endpoints.byFrontend) > 0 || len(s.endpoints.frontends) > 0 || len(out.NodePorts) > 0) {
		t.Errorf("state of a deleted service: got %v, %v, want none", s.endpoints, out)
	}
}

// A service with too many endpoints is logged once, and again after it had fewer.
func TestReportExcess(t *testing.T) {
	var log bytes.Buffer
	klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
	t.Cleanup(klog.ClearLogger)
	s := newServices()
	for step, want := range []int{0, 1, 1, 1, 2} {
		count := pipeline.MaxOutsideEndpoints
		if step%3 > 0 {
			count++
		}
		addrs := make([]string, count)
		for i := range addrs {
			addrs[i] = fmt.Sprintf("192.0.%d.%d", 2+i/256, i%256)
		}
		if err := s.slices.Update(transformSlice(s.node, slice("a", port("web", corev1.ProtocolTCP, 8080), addrs...))); err != nil {
			t.Fatal(err)
		}
		s.updateEndpoints(t.Context(), "ns/svc", service())
		if got := strings.Count(log.String(), `service="ns/svc" endpointsAtLeast=257 limit=256`); got != want {
			t.Errorf("step %d: logged %d times, want %d: %s", step, got, want, log.String())
		}
	}
}

// For a service that gets the node port of a deleted one, policies are evaluated for the endpoints of both.
func TestUpdateEndpoints_nodePortOfDeletedService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServices()
		if err := s.slices.Add(transformSlice(s.node, slice("a", port("dns", corev1.ProtocolUDP, 5353), "192.0.2.7"))); err != nil {
			t.Fatal(err)
		}
		s.updateEndpoints(t.Context(), "ns/svc", service())
		s.updateEndpoints(t.Context(), "ns/svc", nil)
		next := service()
		next.Name = "next"
		of := slice("b", port("dns", corev1.ProtocolUDP, 5353), "192.0.2.8")
		of.Labels[discoveryv1.LabelServiceName] = "next"
		if err := s.slices.Add(transformSlice(s.node, of)); err != nil {
			t.Fatal(err)
		}
		got, _ := s.updateEndpoints(t.Context(), "ns/next", next)
		if n := len(got.NodePorts[0].Outside.Addrs); n != 2 {
			t.Errorf("got %v, want two endpoints", got.NodePorts[0].Outside)
		}
		if old, _ := s.updateEndpoints(t.Context(), "ns/svc", nil); len(old.NodePorts) > 0 {
			t.Errorf("the deleted service has %v, want none", old.NodePorts)
		}
		<-time.After(retention)
		got, _ = s.updateEndpoints(t.Context(), "ns/next", next)
		if n := len(got.NodePorts[0].Outside.Addrs); n != 1 {
			t.Errorf("after the retention: got %v, want one endpoint", got.NodePorts[0].Outside)
		}
	})
}

package endpoints

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// FuzzSelect converts arbitrary objects and selects endpoints of them. Each result must be usable, and the same for each order of the slices.
func FuzzSelect(f *testing.F) {
	slice, _ := json.Marshal(apiSlice("web-1", endpoint("10.128.0.1 ready node=n1 zone=a for=n1"), endpoint("172.30.0.1 serving terminating")))
	service, _ := json.Marshal(apiService(func(s *corev1.Service) {
		s.Spec.ExternalIPs, s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.1"}, []string{"192.0.2.0/24"}
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
	}))
	f.Add(service, slice, slice, "n1", "a")
	f.Add(service, slice, []byte(`{"metadata":{"namespace":"ns","name":"web-2","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4",`+
		`"endpoints":[{},{"addresses":["010.0.0.1","x"],"hints":{"forZones":[{"name":""}],"forNodes":[]}}],`+
		`"ports":[{},{"name":"http","port":-1},{"name":"http","port":80}]}`),
		"", "")
	f.Add([]byte(`{"metadata":{"namespace":"ns","name":"web"},"spec":{"clusterIP":"1.2.3.4","ipFamilies":["IPv4"],"ports":[{"port":80},{"port":80},{}]}}`),
		slice, []byte(`{}`), "n1", "")
	f.Fuzz(func(t *testing.T, service, one, two []byte, name, zone string) {
		var from corev1.Service
		if json.Unmarshal(service, &from) != nil {
			return
		}
		var of []*Slice
		for i, text := range [][]byte{one, two} {
			var s discoveryv1.EndpointSlice
			if json.Unmarshal(text, &s) != nil {
				return
			}
			s.Name += string(rune('a' + i))
			of = append(of, NewSlice(&s, serviceNetwork()))
		}
		svc, node := NewService(&from), Node{Name: name, Zone: zone}
		for _, p := range append(slices.Clone(svc.Problems.First), append(of[0].Problems.First, of[1].Problems.First...)...) {
			if p.Kind == "" || p.Field == "" || p.Error() == "" {
				t.Errorf("got problem %+v, want a kind and a field", p)
			}
		}
		checkFrontends(t, svc)
		sel, ok := Select(svc, of, node)
		if ok != svc.Proxied {
			t.Fatalf("got ok=%v, want %v", ok, svc.Proxied)
		}
		again, _ := Select(svc, []*Slice{of[1], of[0]}, node)
		for i, port := range sel.Ports {
			for j, targets := range []Targets{port.Internal, port.External, port.ShortCircuit} {
				checkUsable(t, targets)
				if other := []Targets{again.Ports[i].Internal, again.Ports[i].External, again.Ports[i].ShortCircuit}[j]; !slices.Equal(targets.Endpoints, other.Endpoints) {
					t.Errorf("got %v, and %v for another order of slices", targets, other)
				}
			}
		}
	})
}

// checkUsable fails unless the endpoints are valid, sorted and distinct, and match the verdict.
func checkUsable(t *testing.T, targets Targets) {
	if (targets.Verdict == Forward) != (len(targets.Endpoints) > 0) {
		t.Errorf("got verdict %v with %d endpoints", targets.Verdict, len(targets.Endpoints))
	}
	for i, target := range targets.Endpoints {
		addr := target.Addr.Addr()
		if !addr.Is4() || target.Addr.Port() == 0 || isUnusable(addr) || serviceNetwork().Contains(addr) {
			t.Errorf("got endpoint %v, want a usable one", target)
		}
		if i > 0 && targets.Endpoints[i-1].Addr.Compare(target.Addr) >= 0 {
			t.Errorf("got %v after %v, want them sorted and distinct", target, targets.Endpoints[i-1])
		}
	}
}

// checkFrontends fails unless the frontends are valid and distinct.
func checkFrontends(t *testing.T, svc *Service) {
	type key struct {
		addr     netip.Addr
		port     uint16
		protocol corev1.Protocol
	}
	used := map[key]bool{}
	all, _ := svc.Frontends(maxPorts * (2*maxAddresses + 1))
	for _, front := range all {
		k := key{front.Addr, front.Port, svc.Ports[front.Of].Protocol}
		if used[k] || front.Port == 0 || (front.Kind == NodePort) == front.Addr.IsValid() || front.Kind != NodePort && !front.Addr.Is4() {
			t.Errorf("got frontend %v, want a valid and distinct one", front)
		}
		used[k] = true
	}
}

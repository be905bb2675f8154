package endpoints

import (
	"fmt"
	"slices"
	"testing"

	unidlingv1alpha1 "github.com/openshift/api/unidling/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func here() Node { return Node{Name: "n1", Zone: "a"} }

// selectOne returns the selection of the only port.
func selectOne(t *testing.T, svc *Service, node Node, of ...*Slice) PortSelection {
	t.Helper()
	sel, ok := Select(svc, of, node)
	if !ok || len(sel.Ports) != 1 {
		t.Fatalf("got %v, %v, want one port", sel, ok)
	}
	return sel.Ports[0]
}

func TestSelect_clusterPolicy(t *testing.T) {
	for _, c := range []struct {
		name      string
		endpoints []string
		want      string // "": Reject
	}{
		{"no endpoints", nil, ""},
		{"ready", []string{"10.128.0.2 ready serving", "10.128.0.1 ready serving node=n1"}, "10.128.0.1:8080* 10.128.0.2:8080"},
		{"not ready", []string{"10.128.0.1 node=n1"}, ""},
		{"serving and not ready, such as an external controller writes", []string{"10.128.0.1 serving"}, ""},
		{"ready ones only, while others terminate", []string{"10.128.0.1 ready serving", "10.128.0.2 serving terminating"}, "10.128.0.1:8080"},
		{"terminating ones if none is ready", []string{"10.128.0.1", "10.128.0.2 serving terminating"}, "10.128.0.2:8080"},
		{"terminating and not serving", []string{"10.128.0.1 terminating"}, ""},
		{"publishNotReadyAddresses: ready while terminating", []string{"10.128.0.1 ready terminating", "10.128.0.2 ready"}, "10.128.0.1:8080 10.128.0.2:8080"},
		{"duplicate", []string{"10.128.0.1 ready", "10.128.0.1 ready"}, "10.128.0.1:8080"},
		{"address in use again before the previous pod was deleted", []string{"10.128.0.1 ready node=n1", "10.128.0.1 terminating node=n2"}, "10.128.0.1:8080*"},
		{"the same in the other order", []string{"10.128.0.1 serving terminating node=n2", "10.128.0.1 ready node=n1"}, "10.128.0.1:8080*"},
		{"sorted by number", []string{"10.128.0.10 ready", "10.128.0.9 ready"}, "10.128.0.9:8080 10.128.0.10:8080"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := selectOne(t, NewService(apiService(nil)), here(), newSlice(t, "web-1", c.endpoints...))
			want := Forward
			if c.want == "" {
				want = Reject
			}
			if got.Internal.Verdict != want || format(got.Internal.Endpoints) != c.want {
				t.Errorf("got %v %s, want %v %s", got.Internal.Verdict, format(got.Internal.Endpoints), want, c.want)
			}
			if got.External.Verdict != Unused || got.ShortCircuit.Verdict != Unused {
				t.Errorf("got external %v, short circuit %v, want both unused", got.External, got.ShortCircuit)
			}
		})
	}
}

func TestSelect_localPolicy(t *testing.T) {
	for _, c := range []struct {
		name      string
		endpoints []string
		want      string
		verdict   Verdict
	}{
		{"no endpoints", nil, "", Reject},
		{"none usable", []string{"10.128.0.1 node=n1"}, "", Reject},
		{"none on this node", []string{"10.128.1.1 ready node=n2", "10.128.1.2 ready"}, "", Drop},
		{"none on this node, terminating elsewhere", []string{"10.128.1.1 serving terminating node=n2"}, "", Drop},
		{"on this node", []string{"10.128.0.1 ready node=n1", "10.128.1.1 ready node=n2"}, "10.128.0.1:8080*", Forward},
		{"terminating here, ready elsewhere", []string{"10.128.0.1 serving terminating node=n1", "10.128.1.1 ready node=n2"}, "10.128.0.1:8080*", Forward},
		{"ready and terminating here", []string{"10.128.0.1 serving terminating node=n1", "10.128.0.2 ready node=n1"}, "10.128.0.2:8080*", Forward},
		{"hints are ignored", []string{"10.128.0.1 ready node=n1 zone=b for=n2", "10.128.1.1 ready node=n2 zone=a for=n1"}, "10.128.0.1:8080*", Forward},
	} {
		t.Run(c.name, func(t *testing.T) {
			local := corev1.ServiceInternalTrafficPolicyLocal
			svc := NewService(apiService(func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }))
			got := selectOne(t, svc, here(), newSlice(t, "web-1", c.endpoints...))
			if got.Internal.Verdict != c.verdict || format(got.Internal.Endpoints) != c.want {
				t.Errorf("internal: got %v %s, want %v %s", got.Internal.Verdict, format(got.Internal.Endpoints), c.verdict, c.want)
			}
			svc = NewService(apiService(func(s *corev1.Service) {
				s.Spec.ExternalTrafficPolicy, s.Spec.ExternalIPs = corev1.ServiceExternalTrafficPolicyLocal, []string{"192.0.2.1"}
			}))
			got = selectOne(t, svc, here(), newSlice(t, "web-1", c.endpoints...))
			if got.External.Verdict != c.verdict || format(got.External.Endpoints) != c.want {
				t.Errorf("external: got %v %s, want %v %s", got.External.Verdict, format(got.External.Endpoints), c.verdict, c.want)
			}
			if cluster := format(got.Internal.Endpoints); format(got.ShortCircuit.Endpoints) != cluster || got.ShortCircuit.Verdict != got.Internal.Verdict {
				t.Errorf("short circuit: got %v, want %v, as to the cluster IP", got.ShortCircuit, got.Internal)
			}
		})
	}
}

func TestSelect_policiesDiffer(t *testing.T) {
	local := corev1.ServiceInternalTrafficPolicyLocal
	svc := NewService(apiService(func(s *corev1.Service) {
		s.Spec.Type, s.Spec.InternalTrafficPolicy = corev1.ServiceTypeNodePort, &local
		s.Spec.Ports[0].NodePort = 30080
	}))
	got := selectOne(t, svc, here(), newSlice(t, "web-1", "10.128.0.1 ready node=n1", "10.128.1.1 ready node=n2"))
	if got := format(got.Internal.Endpoints); got != "10.128.0.1:8080*" {
		t.Errorf("internal: got %s, want the endpoint of this node", got)
	}
	for _, targets := range []Targets{got.External, got.ShortCircuit} {
		if got := format(targets.Endpoints); got != "10.128.0.1:8080* 10.128.1.1:8080" {
			t.Errorf("external: got %s, want all endpoints", got)
		}
	}
}

func TestSelect_hints(t *testing.T) {
	const one, two = "10.128.0.1:8080*", "10.128.1.1:8080"
	for _, c := range []struct {
		name      string
		node      Node
		endpoints []string
		want      string
	}{
		{"zone", here(), []string{"10.128.0.1 ready node=n1 zone=a", "10.128.1.1 ready node=n2 zone=b"}, one},
		{"two zones", here(), []string{"10.128.0.1 ready node=n1 zone=a", "10.128.1.1 ready node=n2 zone=b zone=a"}, one + " " + two},
		{"one without a hint", here(), []string{"10.128.0.1 ready node=n1 zone=a", "10.128.1.1 ready node=n2"}, one + " " + two},
		{"one without a hint is not ready", here(), []string{"10.128.0.1 ready node=n1 zone=a", "10.128.1.1 node=n2", "10.128.1.2 ready zone=b"}, one},
		{"none for the zone", here(), []string{"10.128.0.1 ready node=n1 zone=b", "10.128.1.1 ready node=n2 zone=c"}, one + " " + two},
		{"zone of the node is unknown", Node{Name: "n1"}, []string{"10.128.0.1 ready node=n1 zone=a", "10.128.1.1 ready node=n2 zone=b"}, one + " " + two},
		{"part of a name", here(), []string{"10.128.0.1 ready node=n1 zone=aa", "10.128.1.1 ready node=n2 zone=b"}, one + " " + two},
		{"node", here(), []string{"10.128.0.1 ready node=n1 for=n1", "10.128.1.1 ready node=n2 for=n2"}, one},
		{"node before zone", here(), []string{"10.128.0.1 ready node=n1 for=n1 zone=a", "10.128.1.1 ready node=n2 for=n2 zone=a"}, one},
		{"zone if none for the node", Node{Name: "n3", Zone: "b"},
			[]string{"10.128.0.1 ready node=n1 for=n1 zone=a", "10.128.1.1 ready node=n2 for=n2 zone=b"}, two},
		{"zone if one without a hint for nodes", here(), []string{"10.128.0.1 ready node=n1 for=n1 zone=a", "10.128.1.1 ready node=n2 zone=b"}, one},
		{"terminating ones ignore hints", here(),
			[]string{"10.128.0.1 serving terminating node=n1 zone=b", "10.128.1.1 serving terminating node=n2 zone=a"}, one + " " + two},
		{"a terminating one in the zone is not used", here(), []string{"10.128.0.1 serving terminating node=n1 zone=a", "10.128.1.1 ready node=n2 zone=b"}, two},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := selectOne(t, NewService(apiService(nil)), c.node, newSlice(t, "web-1", c.endpoints...))
			if got := format(got.Internal.Endpoints); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestSelect_namedPorts(t *testing.T) {
	svc := NewService(apiService(func(s *corev1.Service) {
		s.Spec.Ports = []corev1.ServicePort{{Name: "dns", Protocol: "UDP", Port: 53}, {Name: "dns-tcp", Protocol: "TCP", Port: 53}, {Name: "metrics", Port: 9153}}
	}))
	one := apiSlice("web-1", endpoint("10.128.0.1 ready"))
	one.Ports = []discoveryv1.EndpointPort{apiPort("dns", "UDP", 5353), apiPort("dns-tcp", "TCP", 5354), apiPort("metrics", "UDP", 9153)}
	two := apiSlice("web-2", endpoint("10.128.0.2 ready"))
	two.Ports = []discoveryv1.EndpointPort{apiPort("dns", "UDP", 53)}
	sel, _ := Select(svc, []*Slice{NewSlice(two, serviceNetwork()), NewSlice(one, serviceNetwork())}, here())
	for i, want := range []string{"10.128.0.1:5353 10.128.0.2:53", "10.128.0.1:5354", ""} {
		if got := format(sel.Ports[i].Internal.Endpoints); got != want {
			t.Errorf("port %s: got %s, want %s", svc.Ports[i].Name, got, want)
		}
	}
}

func TestSelect_ignoresOtherSlices(t *testing.T) {
	namespace, service := apiSlice("web-1", endpoint("10.128.0.1 ready")), apiSlice("web-1", endpoint("10.128.0.1 ready"))
	namespace.Namespace, service.Labels[discoveryv1.LabelServiceName] = "other", "web2"
	of := []*Slice{NewSlice(namespace, serviceNetwork()), NewSlice(service, serviceNetwork())}
	if got := selectOne(t, NewService(apiService(nil)), here(), of...).Internal; got.Verdict != Reject {
		t.Errorf("got %v, want no endpoints", got)
	}
}

func TestSelect_endpointMovesBetweenSlices(t *testing.T) {
	of := []*Slice{newSlice(t, "web-1", "10.128.0.1 ready"), newSlice(t, "web-2", "10.128.0.1 terminating"), newSlice(t, "web-3", "10.128.0.1 ready node=n1")}
	for range 6 {
		if got := format(selectOne(t, NewService(apiService(nil)), here(), of...).Internal.Endpoints); got != "10.128.0.1:8080*" {
			t.Errorf("slices %s, %s, %s: got %s, want the endpoint of the last slice", of[0].name, of[1].name, of[2].name, got)
		}
		of[0], of[1], of[2] = of[2], of[0], of[1]
		if of[0].name == "web-1" {
			slices.Reverse(of)
		}
	}
}

func TestSelect_localReady(t *testing.T) {
	svc := NewService(apiService(func(s *corev1.Service) {
		s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}}
	}))
	from := apiSlice("web-1", endpoint("10.128.0.1 ready node=n1"), endpoint("10.128.0.2 serving terminating node=n1"), endpoint("10.128.1.1 ready node=n2"))
	from.Ports = append(from.Ports, apiPort("https", "TCP", 8443))
	for _, c := range []struct {
		node string
		want int
	}{{"n1", 1}, {"n2", 1}, {"n3", 0}, {"", 0}} {
		if sel, _ := Select(svc, []*Slice{NewSlice(from, serviceNetwork())}, Node{Name: c.node}); sel.LocalReady != c.want {
			t.Errorf("node %q: got %d addresses, want %d", c.node, sel.LocalReady, c.want)
		}
	}
}

func TestSelect_boundsEndpoints(t *testing.T) {
	var of []*Slice
	for i := range 12 {
		var texts []string
		for j := range 1000 {
			texts = append(texts, fmt.Sprintf("10.%d.%d.%d ready node=n%d", i, j/250, j%250, 1+i/11))
		}
		of = append(of, newSlice(t, fmt.Sprintf("web-%02d", i), texts...))
	}
	sel, _ := Select(NewService(apiService(nil)), of, Node{Name: "n2"})
	got := sel.Ports[0].Internal.Endpoints
	local := 0
	for _, target := range got {
		if target.Local {
			local++
		}
	}
	if len(got) != MaxEndpoints || local != 1000 {
		t.Errorf("got %d endpoints, %d of this node; want %d, 1000", len(got), local, MaxEndpoints)
	}
	want := "{[endpoints of port 80/TCP: \"12000\" exceeds the number that is used, and the others are ignored; distribute them over several Services] 1}"
	if got := fmt.Sprint(sel.Problems); got != want {
		t.Errorf("got problems %s, want %s", got, want)
	}
	svc := NewService(apiService(func(s *corev1.Service) {
		s.Spec.Ports = nil
		for i := range 50 {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "http", Port: int32(i + 1)}) //nolint:gosec // i is small
		}
	}))
	sel, _ = Select(svc, of, here())
	for i, port := range sel.Ports {
		if got := len(port.Internal.Endpoints); got != MaxServiceEndpoints/50 {
			t.Fatalf("port %d: got %d endpoints, want %d", i, got, MaxServiceEndpoints/50)
		}
	}
}

// A Service is idled by a valid time in its annotation while no port has an endpoint in the cluster, on this node or another.
func TestSelect_idled(t *testing.T) {
	for _, c := range []struct {
		name, at  string
		local     bool
		endpoints []string
		want      bool
	}{
		{"no annotation", "", false, nil, false},
		{"invalid time", "yesterday", false, nil, false},
		{"no endpoints", "2026-01-02T03:04:05Z", false, nil, true},
		{"no endpoints, with a fraction and a zone", "2026-01-02T03:04:05.6+02:00", false, nil, true},
		{"not ready", "2026-01-02T03:04:05Z", false, []string{"10.128.0.1 node=n1"}, true},
		{"ready", "2026-01-02T03:04:05Z", false, []string{"10.128.0.1 ready node=n1"}, false},
		{"terminating", "2026-01-02T03:04:05Z", false, []string{"10.128.0.1 serving terminating"}, false},
		{"policy Local, on another node", "2026-01-02T03:04:05Z", true, []string{"10.128.1.1 ready node=n2"}, false},
		{"policy Local, no endpoints", "2026-01-02T03:04:05Z", true, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := NewService(apiService(func(s *corev1.Service) {
				s.Annotations = map[string]string{unidlingv1alpha1.IdledAtAnnotation: c.at}
				if c.local {
					local := corev1.ServiceInternalTrafficPolicyLocal
					s.Spec.InternalTrafficPolicy = &local
				}
			}))
			sel, ok := Select(svc, []*Slice{newSlice(t, "web-1", c.endpoints...)}, here())
			if got := svc.Idled && sel.Empty; !ok || got != c.want {
				t.Errorf("got idled %v and empty %v, %v, want both: %v", svc.Idled, sel.Empty, ok, c.want)
			}
		})
	}
}

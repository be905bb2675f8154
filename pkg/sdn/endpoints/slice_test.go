package endpoints

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/reference"
)

func TestNewSlice_invalidAddress(t *testing.T) {
	for _, c := range []struct {
		name, addr string
		want       ProblemKind
	}{
		{"host name", "db.example.com", InvalidAddress},
		{"number out of range", "10.128.0.256", InvalidAddress},
		{"IPv6", "2001:db8::1", InvalidAddress},
		{"loopback", "127.0.0.1", UnusableAddress},
		{"unspecified", "0.0.0.0", UnusableAddress},
		{"link-local", "169.254.169.254", UnusableAddress},
		{"multicast", "239.1.2.3", UnusableAddress},
		{"link-local multicast", "224.0.0.1", UnusableAddress},
		{"broadcast", "255.255.255.255", UnusableAddress},
		{"service network", "172.30.0.1", UnusableAddress},
		{"loopback as IPv6", "::ffff:127.0.0.1", UnusableAddress},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewSlice(apiSlice("web-1", endpoint("10.128.0.1 ready"), endpoint(c.addr+" ready")), serviceNetwork())
			if len(s.Endpoints) != 1 || s.Endpoints[0].Addr().String() != "10.128.0.1" {
				t.Errorf("got endpoints %v, want 10.128.0.1 only", s.Endpoints)
			}
			if got, want := kinds(s.Problems), string(c.want)+" endpoints[1].addresses[0]"; got != want {
				t.Errorf("got problems %q, want %q", got, want)
			}
		})
	}
}

func TestNewSlice_onlyFirstAddress(t *testing.T) {
	e := endpoint("10.128.0.1 ready")
	e.Addresses = append(e.Addresses, "10.128.0.2", "x")
	s := NewSlice(apiSlice("web-1", e, discoveryv1.Endpoint{}), serviceNetwork())
	if len(s.Endpoints) != 1 || s.Endpoints[0].Addr().String() != "10.128.0.1" {
		t.Errorf("got endpoints %v, want 10.128.0.1 only", s.Endpoints)
	}
	if got, want := kinds(s.Problems), "InvalidAddress endpoints[1].addresses[0]"; got != want {
		t.Errorf("got problems %q, want %q", got, want)
	}
}

func TestNewSlice_ports(t *testing.T) {
	noName, noNumber, noProtocol := apiPort("", "TCP", 80), apiPort("b", "TCP", 80), apiPort("c", "TCP", 80)
	noName.Name, noNumber.Port, noProtocol.Protocol = nil, nil, nil
	for _, c := range []struct {
		name     string
		port     discoveryv1.EndpointPort
		want     SlicePort
		problems string
	}{
		{"valid", apiPort("a", "UDP", 53), SlicePort{"a", "UDP", 53}, ""},
		{"empty name", apiPort("", "SCTP", 65535), SlicePort{"", "SCTP", 65535}, ""},
		{"no protocol is TCP", noProtocol, SlicePort{"c", "TCP", 80}, ""},
		{"no name", noName, SlicePort{}, "InvalidPortName ports[0].name"},
		{"no number means all ports", noNumber, SlicePort{}, "InvalidPort ports[0].port"},
		{"0", apiPort("a", "TCP", 0), SlicePort{}, "InvalidPort ports[0].port"},
		{"negative", apiPort("a", "TCP", -1), SlicePort{}, "InvalidPort ports[0].port"},
		{"65536", apiPort("a", "TCP", 65536), SlicePort{}, "InvalidPort ports[0].port"},
		{"other protocol", apiPort("a", "ICMP", 80), SlicePort{}, "InvalidProtocol ports[0].protocol"},
	} {
		t.Run(c.name, func(t *testing.T) {
			from := apiSlice("web-1", endpoint("10.128.0.1 ready"))
			from.Ports = []discoveryv1.EndpointPort{c.port}
			s := NewSlice(from, serviceNetwork())
			if got := kinds(s.Problems); got != c.problems {
				t.Errorf("got problems %q, want %q", got, c.problems)
			}
			if c.problems == "" && (len(s.Ports) != 1 || s.Ports[0] != c.want) || c.problems != "" && len(s.Ports) != 0 {
				t.Errorf("got ports %v, want %v", s.Ports, c.want)
			}
		})
	}
}

func TestNewSlice_conditions(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		name string
		from discoveryv1.EndpointConditions
		want conditions
	}{
		{"unset", discoveryv1.EndpointConditions{}, ready | serving},
		{"all true", discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &yes}, ready | serving | terminating},
		{"all false", discoveryv1.EndpointConditions{Ready: &no, Serving: &no, Terminating: &no}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewSlice(apiSlice("web-1", discoveryv1.Endpoint{Addresses: []string{"10.128.0.1"}, Conditions: c.from}), serviceNetwork())
			if got := s.Endpoints[0].conditions; got != c.want {
				t.Errorf("got %b, want %b", got, c.want)
			}
		})
	}
}

func TestNewSlice_ignored(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*discoveryv1.EndpointSlice)
	}{
		{"IPv6", func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeIPv6 }},
		{"host names", func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }},
		{"no Service", func(s *discoveryv1.EndpointSlice) { s.Labels = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			from := apiSlice("web-1", endpoint("x ready"), endpoint("10.128.0.1 ready"))
			c.change(from)
			s := NewSlice(from, serviceNetwork())
			if len(s.Endpoints)+len(s.Ports)+s.Problems.Total != 0 || s.ServiceKey() != "" {
				t.Errorf("got %+v, want no endpoints, ports, problems and Service", s)
			}
		})
	}
}

func TestNewSlice_boundsProblems(t *testing.T) {
	bad := discoveryv1.Endpoint{Addresses: []string{strings.Repeat("x", 1000)}}
	from := apiSlice("web-1")
	for range 1000 {
		from.Endpoints = append(from.Endpoints, bad)
	}
	p := NewSlice(from, serviceNetwork()).Problems
	if p.Total != 1000 || len(p.First) != maxProblems || len(p.First[0].Value) != maxProblemValue {
		t.Errorf("got %d problems, %d retained, %d bytes; want 1000, %d, %d", p.Total, len(p.First), len(p.First[0].Value), maxProblems, maxProblemValue)
	}
	from = apiSlice("web-1")
	from.Ports = make([]discoveryv1.EndpointPort, 20_000)
	for i := range from.Ports {
		from.Ports[i] = apiPort("a", "TCP", int32(i+1)) //nolint:gosec // i is small
	}
	s := NewSlice(from, serviceNetwork())
	if got := kinds(s.Problems); len(s.Ports) != maxPorts || got != "TooManyPorts ports" {
		t.Errorf("got %d ports, problems %q, want %d, TooManyPorts", len(s.Ports), got, maxPorts)
	}
}

func TestSliceIsAnObjectOfCaches(t *testing.T) {
	transform := TransformSlice(serviceNetwork())
	obj, err := transform(apiSlice("web-1", endpoint("10.128.0.1 ready")))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []cache.KeyFunc{cache.MetaNamespaceKeyFunc, cache.DeletionHandlingMetaNamespaceKeyFunc} {
		if got, err := key(obj); err != nil || got != "ns/web-1" {
			t.Errorf("key: got %q, %v, want ns/web-1", got, err)
		}
	}
	if m, err := meta.Accessor(obj); err != nil || m.GetResourceVersion() != "7" || m.GetUID() != "uid" {
		t.Errorf("metadata: got %v, %v, want resource version 7 and UID uid", m, err)
	}
	ref, err := reference.GetReference(scheme.Scheme, obj.(runtime.Object))
	if err != nil || ref.Kind != "EndpointSlice" || ref.APIVersion != "discovery.k8s.io/v1" || ref.Name != "web-1" {
		t.Errorf("reference for Events: got %v, %v, want EndpointSlice web-1", ref, err)
	}
	if again, err := transform(obj); err != nil || again != obj {
		t.Errorf("transform of a Slice: got %v, %v, want the Slice", again, err)
	}
	if other, err := transform("x"); err != nil || other != "x" {
		t.Errorf("transform of another object: got %v, %v, want the object", other, err)
	}
}

func TestSlice_SameEndpoints(t *testing.T) {
	base := func() *discoveryv1.EndpointSlice {
		return apiSlice("web-1", endpoint("10.128.0.1 ready node=n1 zone=a"))
	}
	for _, c := range []struct {
		name   string
		change func(*discoveryv1.EndpointSlice)
		want   bool
	}{
		{"resource version and annotations", func(s *discoveryv1.EndpointSlice) {
			s.ResourceVersion, s.Annotations = "8", map[string]string{corev1.EndpointsLastChangeTriggerTime: "x"}
		}, true},
		{"readiness", func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].Conditions.Ready = nil
			s.Endpoints[0].Conditions.Serving = nil
		}, false},
		{"node", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0] = endpoint("10.128.0.1 ready node=n2 zone=a") }, false},
		{"hint", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0] = endpoint("10.128.0.1 ready node=n1 zone=b") }, false},
		{"port", func(s *discoveryv1.EndpointSlice) { s.Ports[0] = apiPort("http", "TCP", 8081) }, false},
		{"service", func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "other" }, false},
		{"problem", func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, endpoint("x")) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			changed := base()
			c.change(changed)
			if got := NewSlice(base(), serviceNetwork()).SameEndpoints(NewSlice(changed, serviceNetwork())); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestSlice_DeepCopyObject(t *testing.T) {
	s := NewSlice(apiSlice("web-1", endpoint("10.128.0.1 ready node=n1"), endpoint("x")), serviceNetwork())
	out := s.DeepCopyObject().(*Slice)
	if !s.SameEndpoints(out) || out.GetName() != s.GetName() || out.GetNamespace() != s.GetNamespace() {
		t.Errorf("got %+v, want %+v", out, s)
	}
	out.Endpoints[0], out.Ports[0], out.Problems.First[0] = Endpoint{}, SlicePort{}, Problem{}
	if s.Endpoints[0].Addr().String() != "10.128.0.1" || s.Endpoints[0].NodeName() != "n1" || s.Ports[0].Number != 8080 || s.Problems.First[0].Value != "x" {
		t.Errorf("a change of the copy changed the slice: %+v", s)
	}
}

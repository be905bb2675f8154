package endpoints

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func serviceNetwork() netip.Prefix { return netip.MustParsePrefix("172.30.0.0/16") }

// apiSlice returns a slice of Service ns/web with port 8080/TCP.
func apiSlice(name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: "uid", ResourceVersion: "7", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   endpoints,
		Ports:       []discoveryv1.EndpointPort{apiPort("http", corev1.ProtocolTCP, 8080)},
	}
}

func apiPort(name string, protocol corev1.Protocol, number int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number}
}

// endpoint parses an endpoint: its address, and words "ready", "serving", "terminating", "node=", "zone=" (hint) and "for=" (hint for a node). Conditions that
// are not listed are false.
func endpoint(text string) discoveryv1.Endpoint {
	words := strings.Fields(text)
	out := discoveryv1.Endpoint{Addresses: []string{words[0]}}
	var isReady, isServing, isTerminating bool
	hint := discoveryv1.EndpointHints{}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "ready":
			isReady = true
		case "serving":
			isServing = true
		case "terminating":
			isTerminating = true
		case "node":
			out.NodeName = &value
		case "zone":
			hint.ForZones = append(hint.ForZones, discoveryv1.ForZone{Name: value})
		case "for":
			hint.ForNodes = append(hint.ForNodes, discoveryv1.ForNode{Name: value})
		}
	}
	out.Conditions = discoveryv1.EndpointConditions{Ready: &isReady, Serving: &isServing, Terminating: &isTerminating}
	if len(hint.ForZones)+len(hint.ForNodes) > 0 {
		out.Hints = &hint
	}
	return out
}

// newSlice converts a slice with the endpoints, which must be valid.
func newSlice(t *testing.T, name string, texts ...string) *Slice {
	t.Helper()
	var all []discoveryv1.Endpoint
	for _, text := range texts {
		all = append(all, endpoint(text))
	}
	out := NewSlice(apiSlice(name, all...), serviceNetwork())
	if out.Problems.Total > 0 {
		t.Fatalf("slice %s: got problems %v, want none", name, out.Problems)
	}
	return out
}

// apiService returns Service ns/web with port 80/TCP.
func apiService(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid", ResourceVersion: "7"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "172.30.0.10", ClusterIPs: []string{"172.30.0.10"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

// kinds returns the kinds and fields of problems.
func kinds(p Problems) string {
	var out []string
	for _, problem := range p.First {
		out = append(out, string(problem.Kind)+" "+problem.Field)
	}
	return strings.Join(out, ", ")
}

// format returns endpoints as text, those of this node with a star.
func format(all []Target) string {
	var out []string
	for _, target := range all {
		text := target.Addr.String()
		if target.Local {
			text += "*"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

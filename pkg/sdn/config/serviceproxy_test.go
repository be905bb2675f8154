package config

import (
	"strings"
	"testing"
)

func TestServiceProxyAnnotation(t *testing.T) {
	for _, tc := range []struct {
		value *string
		want  ServiceProxy
		fault string
	}{
		{value: nil, want: ServiceProxyUnset},
		{value: ptr("external"), want: ServiceProxyExternal},
		{value: ptr("ovs"), want: ServiceProxyOVS},
		{value: ptr(""), fault: `annotation ovsdn.io/service-proxy: "" is not a service proxy: choose external (kube-proxy on the nodes) or ovs (Open vSwitch)`},
		{value: ptr("OVS"), fault: `annotation ovsdn.io/service-proxy: "OVS" is not a service proxy`},
		{value: ptr(strings.Repeat("x", 64<<10)), fault: `xxx..." is not a service proxy`},
	} {
		o := object()
		if tc.value != nil {
			o.Annotations = map[string]string{ServiceProxyAnnotation: *tc.value}
		}
		n, err := ParseNetwork(o)
		if tc.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tc.fault) {
				t.Errorf("got error %v, want %q", err, tc.fault)
			}
			continue
		}
		if err != nil || n.ServiceProxy != tc.want {
			t.Errorf("%v: got %+v, %v, want %q", tc.value, n, err, tc.want)
			continue
		}
		// AcceptedAnnotation contains it. Without it the value is that of earlier versions (TestActiveNetwork).
		value, err := n.Accepted()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Contains(value, ServiceProxyAnnotation), tc.value != nil; got != want {
			t.Errorf("%q: got the annotation in %s: %t, want %t", tc.want, value, got, want)
		}
		o.Annotations = map[string]string{AcceptedAnnotation: value}
		if again, err := ActiveNetwork(o); err != nil || again.ServiceProxy != tc.want {
			t.Errorf("active network: got %+v, %v, want service proxy %q", again, err, tc.want)
		}
	}
}

// The service proxy changes while nodes are in the network.
func TestCheckChange_serviceProxy(t *testing.T) {
	from, to := openShift(), openShift()
	to.ServiceProxy = ServiceProxyOVS
	inUse := []HostSubnet{{Node: "node1", Subnets: prefixes("10.128.0.0/23")}}
	if err := from.CheckChange(to, inUse); err != nil {
		t.Error(err)
	}
	if err := to.CheckChange(from, inUse); err != nil {
		t.Error(err)
	}
}

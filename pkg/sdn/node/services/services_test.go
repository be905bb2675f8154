package services

import (
	"net/netip"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

func TestParse(t *testing.T) {
	port := func(p corev1.Protocol, n int32) corev1.ServicePort { return corev1.ServicePort{Protocol: p, Port: n} }
	for name, tc := range map[string]struct {
		spec corev1.ServiceSpec
		want pipeline.Service
	}{
		"every protocol": {
			corev1.ServiceSpec{ClusterIPs: []string{"172.30.0.10"}, Ports: []corev1.ServicePort{
				port("", 80), port(corev1.ProtocolTCP, 81), port(corev1.ProtocolUDP, 53), port(corev1.ProtocolSCTP, 9)}},
			pipeline.Service{ClusterIPs: []netip.Addr{netip.MustParseAddr("172.30.0.10")}, Ports: []pipeline.ServicePort{
				{Protocol: goovs.ProtocolTCPv4, Port: 80}, {Protocol: goovs.ProtocolTCPv4, Port: 81},
				{Protocol: goovs.ProtocolUDPv4, Port: 53}, {Protocol: pipeline.ProtocolSCTP, Port: 9}}},
		},
		"node ports": {
			corev1.ServiceSpec{ClusterIPs: []string{"172.30.0.10"}, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}, {Port: 81}}},
			pipeline.Service{ClusterIPs: []netip.Addr{netip.MustParseAddr("172.30.0.10")},
				Ports:     []pipeline.ServicePort{{Protocol: goovs.ProtocolTCPv4, Port: 80}, {Protocol: goovs.ProtocolTCPv4, Port: 81}},
				NodePorts: []pipeline.ServicePort{{Protocol: goovs.ProtocolTCPv4, Port: 30080}}},
		},
		"headless":      {corev1.ServiceSpec{ClusterIPs: []string{corev1.ClusterIPNone}}, pipeline.Service{}},
		"external name": {corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}, pipeline.Service{}},
		"dual stack": {
			corev1.ServiceSpec{ClusterIPs: []string{"172.30.0.10", "fd02::10"}},
			pipeline.Service{ClusterIPs: []netip.Addr{netip.MustParseAddr("172.30.0.10")}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			transformed, err := Transform(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": "b"}}, Spec: tc.spec})
			if err != nil {
				t.Fatal(err)
			}
			svc, ok := transformed.(*corev1.Service)
			if !ok || len(svc.Annotations) > 0 {
				t.Fatalf("got %v, want a Service without annotations", transformed)
			}
			got := parse(svc)
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

package node

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkfake "github.com/openshift/client-go/network/clientset/versioned/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/tier"
)

// The flag overrides the cluster's service proxy. A change of it needs a new set-up of the node, unless the flag overrides it.
func TestServiceProxy(t *testing.T) {
	const auto, unset, external, ovs = ServiceProxyAuto, config.ServiceProxyUnset, config.ServiceProxyExternal, config.ServiceProxyOVS
	for _, tc := range []struct {
		flag, cluster, want config.ServiceProxy
		same                []config.ServiceProxy // of the cluster, for which the set-up does not change
	}{
		{auto, unset, external, []config.ServiceProxy{unset, external}},
		{auto, external, external, []config.ServiceProxy{unset, external}},
		{auto, ovs, ovs, []config.ServiceProxy{ovs}},
		{external, ovs, external, []config.ServiceProxy{unset, external, ovs}},
		{ovs, external, ovs, []config.ServiceProxy{unset, external, ovs}},
		{ovs, unset, ovs, []config.ServiceProxy{unset, external, ovs}},
	} {
		c := Config{ServiceProxy: tc.flag}
		network := &config.Network{MTU: 1450, ServiceProxy: tc.cluster}
		if got := c.serviceProxy(network); got != tc.want {
			t.Errorf("flag %q, cluster %q: got %q, want %q", tc.flag, tc.cluster, got, tc.want)
		}
		var same []config.ServiceProxy
		for _, changed := range []config.ServiceProxy{unset, external, ovs} {
			if c.sameSetUp(network, &config.Network{MTU: 1450, ServiceProxy: changed}) {
				same = append(same, changed)
			}
			if c.sameSetUp(network, &config.Network{MTU: 1400, ServiceProxy: changed}) {
				t.Errorf("flag %q: got the same set-up for another MTU", tc.flag)
			}
		}
		if diff := cmp.Diff(tc.same, same); diff != "" {
			t.Errorf("flag %q, cluster %q: no new set-up for (-want +got):\n%s", tc.flag, tc.cluster, diff)
		}
		if network.ServiceProxy != tc.cluster {
			t.Errorf("sameSetUp changed the network: %+v", network)
		}
	}
}

// While a controller of an earlier version leads, whose accepted configuration has no service proxy, the object's applies. A new controller's precedes.
func TestClusterNetwork_storedServiceProxy(t *testing.T) {
	for _, tc := range []struct{ accepted, object, want config.ServiceProxy }{
		{config.ServiceProxyUnset, config.ServiceProxyOVS, config.ServiceProxyOVS},
		{config.ServiceProxyUnset, config.ServiceProxyExternal, config.ServiceProxyExternal},
		{config.ServiceProxyUnset, config.ServiceProxyUnset, config.ServiceProxyUnset},
		{config.ServiceProxyUnset, "iptables", config.ServiceProxyUnset},
		{config.ServiceProxyExternal, config.ServiceProxyOVS, config.ServiceProxyExternal},
	} {
		network := &config.Network{
			Mode: config.ModeSubnet, ClusterNetworks: []config.ClusterNetwork{{Prefix: netip.MustParsePrefix("10.128.0.0/14"), HostBits: 9}},
			ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"), VXLANPort: config.DefaultVXLANPort, ServiceProxy: tc.accepted,
		}
		accepted, err := network.Accepted()
		must(t, err)
		o := network.Object()
		o.Annotations = map[string]string{config.AcceptedAnnotation: accepted}
		if tc.object != config.ServiceProxyUnset {
			o.Annotations[config.ServiceProxyAnnotation] = string(tc.object)
		}
		a := &agent{Config: Config{NodeName: "node1"}, network: networkfake.NewSimpleClientset(), kube: fake.NewClientset()}
		c := a.newCaches()
		must(t, c.Network.Network().V1().ClusterNetworks().Informer().GetStore().Add(o))
		got, err := a.clusterNetwork(c)
		must(t, err)
		if got.ServiceProxy != tc.want {
			t.Errorf("accepted %q, object %q: got %q, want %q", tc.accepted, tc.object, got.ServiceProxy, tc.want)
		}
	}
}

// A host that changes from kube-proxy to the switch, and back, has nothing left of the switch's.
func TestServiceProxy_hostChangesAndBack(t *testing.T) {
	tier.Parallel(t)
	h := newHost(t)
	h.setUpHost(t)
	external := h.state(t)
	h.balancesServices = true
	h.setUpHost(t)
	for _, want := range []string{"172.30.0.0/16 via 169.254.0.11", "169.254.0.11 dev tun0 lladdr", "-s 169.254.0.11/32 ! -o tun0"} {
		if !strings.Contains(strings.Join(h.state(t), "\n"), want) {
			t.Errorf("after the change to ovs: got no %q", want)
		}
	}
	h.balancesServices = false
	h.setUpHost(t)
	if diff := cmp.Diff(external, h.state(t)); diff != "" {
		t.Errorf("after the change back (-before +after):\n%s", diff)
	}
}

func TestAPIServerByService(t *testing.T) {
	services := netip.MustParsePrefix("172.30.0.0/16")
	for addr, want := range map[string]string{
		"192.0.2.10:6443": "",
		"172.30.0.1:443":  "172.30.0.1:443",
	} {
		err := apiServerByService([]netip.AddrPort{netip.MustParseAddrPort(addr)}, services)
		if (err != nil) != (want != "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "set kube-apiserver in network.env")) {
			t.Errorf("%s: got %v, want an error with the address and the setting: %t", addr, err, want != "")
		}
	}
	if err := apiServerByService(nil, services); err != nil {
		t.Errorf("host name: got %v, want none", err)
	}
}

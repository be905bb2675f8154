package master_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/master"
)

// Validate reports every invalid flag.
func TestConfig_Validate(t *testing.T) {
	valid := master.Defaults()
	valid.REST = &rest.Config{}
	if err := valid.Validate(); err != nil {
		t.Errorf("defaults: got error %v, want none", err)
	}
	for _, tc := range []struct {
		name string
		edit func(*master.Config)
		want string
	}{
		{"invalid namespace", func(c *master.Config) { c.LeaderElectNamespace = "ovsdn system" },
			`--leader-elect-namespace: "ovsdn system" is not a namespace name: a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', ` +
				`and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`},
		{"invalid address for metrics", func(c *master.Config) { c.Metrics.Address = "" }, `--metrics-bind-address: "" is not an address: write [HOST]:PORT, or 0 for none`},
		{"invalid address", func(c *master.Config) { c.HealthzAddress = "9410" }, `--healthz-bind-address: "9410" is not an address: write HOST:PORT, or 0 for none`},
		{"several faults", func(c *master.Config) {
			c.REST, c.Workers, c.ClusterNetworks, c.HostBits, c.VXLANPort = nil, 0, []string{"10.128.0.1/14", "10.129.0.0/16"}, 17, 0
		}, `no API server configured
0 workers: set at least 1
--cluster-network: 10.128.0.1/14 has bits set behind its mask: write 10.128.0.0/14
--host-bits: 17 host bits don't fit 10.129.0.0/16: choose 2 to 16
--cluster-network: 10.129.0.0/16 overlaps 10.128.0.0/14: ranges of the cluster network must be disjoint
--vxlan-port: 0 is not a UDP port: choose one from 1 to 65535 (4789 is usual)`},
		{"faults of other flags", func(c *master.Config) {
			c.ClusterNetworks, c.ServiceNetwork, c.Mode, c.MTU = nil, "172.30.0.0", "calico", 100
			c.ServiceProxy = "iptables"
		}, `--mode: "calico" is not a mode: choose networkpolicy, multitenant or subnet (or the full name, such as redhat/openshift-ovs-networkpolicy)
--cluster-network: no range; set at least one, such as 10.128.0.0/14
--service-network: "172.30.0.0" is not an IPv4 range: write it as ADDRESS/BITS, such as 10.128.0.0/14
--mtu: 100 bytes is out of range: choose 576 to 65485, or leave it out for the nodes' own less 50
--service-proxy: "iptables" is not a service proxy: choose external (kube-proxy on the nodes) or ovs (Open vSwitch)`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := valid
			tc.edit(&cfg)
			err := cfg.Validate()
			if err == nil {
				t.Fatal("got no error")
			}
			if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
				t.Error(diff)
			}
			if err := master.Run(t.Context(), cfg); err == nil {
				t.Error("Run: got no error, want one for an invalid configuration")
			}
		})
	}
}

package master_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/master"
)

// Every fault of the flags is reported.
func TestConfigValidate(t *testing.T) {
	good := master.Defaults()
	good.REST = &rest.Config{}
	if err := good.Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for _, tc := range []struct {
		name string
		edit func(*master.Config)
		want string
	}{
		{"a namespace that can't be", func(c *master.Config) { c.LeaderElectNamespace = "ovsdn system" },
			`--leader-elect-namespace: "ovsdn system" is no namespace: a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', ` +
				`and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`},
		{"an address that can't be", func(c *master.Config) { c.HealthzAddress = "9410" }, `--healthz-bind-address: "9410" is no address: write HOST:PORT, or 0 for none`},
		{"all at once", func(c *master.Config) {
			c.REST, c.Workers, c.ClusterNetworks, c.HostBits, c.VXLANPort = nil, 0, []string{"10.128.0.1/14", "10.129.0.0/16"}, 17, 0
		}, `no API server to talk to
0 workers do nothing: give at least 1
--cluster-network: 10.128.0.1/14 has bits set behind its mask: write 10.128.0.0/14
--host-bits: 17 host bits don't fit 10.129.0.0/16: choose 2 to 16
--cluster-network: 10.129.0.0/16 overlaps 10.128.0.0/14: ranges of the cluster network must be disjoint
--vxlan-port: 0 is no UDP port: choose one from 1 to 65535 (4789 is usual)`},
		{"and the others", func(c *master.Config) {
			c.ClusterNetworks, c.ServiceNetwork, c.Mode, c.MTU = nil, "172.30.0.0", "calico", 100
		}, `--mode: "calico" is no mode: choose networkpolicy, multitenant or subnet (or the full name, such as redhat/openshift-ovs-networkpolicy)
--cluster-network: give at least one range, such as 10.128.0.0/14
--service-network: "172.30.0.0" is no IPv4 range: write it as ADDRESS/BITS, such as 10.128.0.0/14
--mtu: 100 bytes is out of range: choose 576 to 65485, or leave it out for the nodes' own less 50`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := good
			tc.edit(&cfg)
			err := cfg.Validate()
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
				t.Error(diff)
			}
			if err := master.Run(t.Context(), cfg); err == nil {
				t.Error("Run starts with it")
			}
		})
	}
}

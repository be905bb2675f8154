package node

import (
	"strings"
	"testing"
)

func TestConfigValidate(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   []string // parts of the error; none: valid
	}{
		{"defaults", func(*Config) {}, nil},
		{"netdev", func(c *Config) { c.Datapath = "netdev" }, nil},
		{"no name", func(c *Config) { c.NodeName = "" }, []string{"--node-name"}},
		{"bad name", func(c *Config) { c.NodeName = "Node_1" }, []string{"--node-name"}},
		{"bad ip", func(c *Config) { c.NodeIP = "10.0.0" }, []string{"--node-ip"}},
		{"bad regex", func(c *Config) { c.IfaceRegex = "eth[" }, []string{"--iface-regex"}},
		{"two selectors", func(c *Config) { c.NodeIP = "10.0.0.1"; c.Iface = "eth0" }, []string{"exclude each other"}},
		{"small mtu", func(c *Config) { c.MTU = 100 }, []string{"--mtu=100"}},
		{"routable mtu", func(c *Config) { c.RoutableMTU = 1400 }, nil},
		{"small routable mtu", func(c *Config) { c.RoutableMTU = -1 }, []string{"--routable-mtu=-1"}},
		{"routable mtu above the mtu", func(c *Config) { c.MTU, c.RoutableMTU = 1400, 1450 }, []string{"--routable-mtu=1450", "--mtu=1400"}},
		{"bad datapath", func(c *Config) { c.Datapath = "kernel" }, []string{"system", "netdev"}},
		{"unknown proxy", func(c *Config) { c.ServiceProxy = "x" }, []string{"--service-proxy", "auto, external or ovs"}},
		{"proxy of the cluster", func(c *Config) { c.ServiceProxy = "auto" }, nil},
		{"no health of services", func(c *Config) { c.ServiceProxy, c.ServiceHealthzAddr = "ovs", "0" }, nil},
		{"bad address for the health of services", func(c *Config) { c.ServiceHealthzAddr = "10256" }, []string{"--service-healthz-bind-address", "HOST:PORT"}},
		{"empty address for the health of services", func(c *Config) { c.ServiceHealthzAddr = "" }, []string{"--service-healthz-bind-address", "HOST:PORT"}},
		{"node ports at ranges", func(c *Config) { c.NodePortAddresses = []string{"192.0.2.0/24", "0.0.0.0/0"} }, nil},
		{"node ports at the primary address", func(c *Config) { c.NodePortAddresses = []string{"primary"} }, nil},
		{"node ports at the primary address and a range", func(c *Config) { c.NodePortAddresses = []string{"192.0.2.0/24", "primary"} },
			[]string{`--nodeport-addresses: "primary"`, "excludes CIDRs"}},
		{"node ports at an address", func(c *Config) { c.NodePortAddresses = []string{"192.0.2.1"} }, []string{`--nodeport-addresses: "192.0.2.1"`, "192.0.2.0/24"}},
		{"node ports at two wrong ranges", func(c *Config) { c.NodePortAddresses = []string{"fd00::/64", "127.0.0.1/32"} },
			[]string{`--nodeport-addresses: "fd00::/64" is not of IPv4`, `--nodeport-addresses: "127.0.0.1/32" has no addresses`}},
		{"relative socket", func(c *Config) { c.CNISocket = "cni.sock" }, []string{"--cni-socket", "absolute"}},
		{"relative plugin directory", func(c *Config) { c.CNIBinDir = "bin" }, []string{"--cni-bin-dir", "absolute"}},
		{"relative sysctl directory", func(c *Config) { c.SysctlDir = "proc/sys" }, []string{"--sysctl-dir", "absolute"}},
		{"host networks of a cluster from 3.x", func(c *Config) { c.HostNetworkNamespaces = []string{"openshift-host-network", "default"} }, nil},
		{"no host networks", func(c *Config) { c.HostNetworkNamespaces = nil }, nil},
		{"bad host network", func(c *Config) { c.HostNetworkNamespaces = []string{"a/b"} }, []string{"--host-network-namespaces", `"a/b"`}},
		{"host access", func(c *Config) { c.HostAccess = "replies" }, nil},
		{"unknown host access", func(c *Config) { c.HostAccess = "none" }, []string{`--host-access="none"`, "replies, services or all"}},
		{"empty host access", func(c *Config) { c.HostAccess = "" }, []string{`--host-access=""`}},
		{"firewall", func(c *Config) { c.Firewall = "nftables" }, nil},
		{"unknown firewall", func(c *Config) { c.Firewall = "nft" }, []string{`--firewall="nft"`, "auto, iptables or nftables"}},
		{"empty firewall", func(c *Config) { c.Firewall = "" }, []string{`--firewall=""`}},
		{"no probes", func(c *Config) { c.HealthzAddr = "0" }, nil},
		{"bad address for probes", func(c *Config) { c.HealthzAddr = "9411" }, []string{"--healthz-bind-address", "HOST:PORT"}},
		{"bad address for metrics", func(c *Config) { c.Metrics.Address = "9447" }, []string{"--metrics-bind-address"}},
		{"certificate without key", func(c *Config) { c.Metrics.CertFile = "/tls.crt" }, []string{"--metrics-tls-private-key-file"}},
		{"all faults at once", func(c *Config) { c.MTU = -1; c.Datapath = "x"; c.NodeIP = "?" },
			[]string{"--mtu", "--datapath", "--node-ip"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := Defaults()
			c.NodeName = "node1"
			tc.change(&c)
			err := c.Validate()
			if len(tc.want) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got error %q, want %q in it", err, want)
				}
			}
		})
	}
}

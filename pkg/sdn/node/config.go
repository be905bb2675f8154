package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
)

// ServiceProxy says who balances services.
type ServiceProxy string

// ServiceProxyExternal: kube-proxy on the host.
const ServiceProxyExternal ServiceProxy = "external"

// Config is what the agent is started with.
type Config struct {
	NodeName     string       // the Node object's name
	Namespace    string       // that the agent is installed in: when it is deleted the agent takes its network off the node; empty: never
	NodeIP       string       // this node's address; empty: found out
	Iface        string       // the interface with the node's address; empty: found out
	IfaceRegex   string       // the same by a regular expression
	MTU          int          // bytes, of pods and tun0; 0: the ClusterNetwork's, else the underlay's less 50
	RoutableMTU  int          // bytes, of routes; 0: the ClusterNetwork's annotation's, else none
	Datapath     string       // OVS datapath type of br0
	ServiceProxy ServiceProxy // who balances services
	CNISocket    string       // where the CNI plugin finds the agent
	CNIConfDir   string       // where the container runtime looks for CNI configurations
	CNIBinDir    string       // where it looks for CNI plugins; empty: somebody else installs ours
	CNIPlugin    string       // the plugin's program, to install
	IPAMDir      string       // where host-local's files lie, in a folder of the network's name
	SysctlDir    string       // where the host's settings are; empty: /proc/sys
	HealthzAddr  string       // host:port of /healthz and /readyz; "0": none

	HostAccess hostnet.HostAccess // what pods reach of this node

	HostNetworkNamespaces []string // namespaces that represent the host networks of all nodes in NetworkPolicies, where they exist
}

// Defaults returns the configuration that flags change.
func Defaults() Config {
	host, _ := os.Hostname()   // without one, Validate asks for --node-name
	self, _ := os.Executable() // without it, there is nothing to install
	return Config{
		NodeName:     host,
		Datapath:     "system",
		ServiceProxy: ServiceProxyExternal,
		CNISocket:    cniserver.DefaultSocket,
		CNIConfDir:   "/etc/cni/net.d",
		CNIPlugin:    filepath.Join(filepath.Dir(self), cniserver.PluginName),
		IPAMDir:      "/var/lib/cni/networks",
		HealthzAddr:  "127.0.0.1:9411",

		HostAccess: hostnet.HostAccessAll,

		HostNetworkNamespaces: []string{"openshift-host-network"},
	}
}

// Validate returns all that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if c.NodeName == "" {
		fault("--node-name: the host has no name; give the Node object's")
	} else if msgs := validation.IsDNS1123Subdomain(c.NodeName); len(msgs) > 0 {
		fault("--node-name=%q: %s", c.NodeName, msgs[0])
	}
	if c.NodeIP != "" {
		if _, err := netip.ParseAddr(c.NodeIP); err != nil {
			fault("--node-ip: %w", err)
		}
	}
	if c.IfaceRegex != "" {
		if _, err := regexp.Compile(c.IfaceRegex); err != nil {
			fault("--iface-regex: %w", err)
		}
	}
	given := 0
	for _, s := range []string{c.NodeIP, c.Iface, c.IfaceRegex} {
		if s != "" {
			given++
		}
	}
	if given > 1 {
		fault("--node-ip, --iface and --iface-regex exclude each other: give one")
	}
	// RFC 791: every host must take 576 bytes; an IPv4 packet has at most 65,535.
	if c.MTU != 0 && (c.MTU < 576 || c.MTU > 65535) {
		fault("--mtu=%d: must be from 576 to 65535, or 0 to find it out", c.MTU)
	}
	if c.RoutableMTU != 0 && (c.RoutableMTU < 576 || c.RoutableMTU > 65535) {
		fault("--routable-mtu=%d: must be from 576 to 65535, or 0 to have none", c.RoutableMTU)
	}
	if c.MTU != 0 && c.RoutableMTU > c.MTU {
		fault("--routable-mtu=%d: must be at most --mtu=%d, which is what interfaces take", c.RoutableMTU, c.MTU)
	}
	if c.Datapath != "system" && c.Datapath != "netdev" {
		fault("--datapath=%q: must be system (the kernel's) or netdev (userspace)", c.Datapath)
	}
	switch c.ServiceProxy {
	case ServiceProxyExternal:
	case "ovs":
		fault("--service-proxy=ovs is not in this version yet: use external, with kube-proxy on the node")
	default:
		fault("--service-proxy=%q: must be external", c.ServiceProxy)
	}
	if !c.HostAccess.IsValid() {
		fault("--host-access=%q: must be replies, services or all", c.HostAccess)
	}
	for _, name := range c.HostNetworkNamespaces {
		if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
			fault("--host-network-namespaces: %q is not the name of a namespace: %s", name, msgs[0])
		}
	}
	errs = append(errs, c.ValidatePaths())
	if c.HealthzAddr != "0" {
		if _, err := net.ResolveTCPAddr("tcp", c.HealthzAddr); err != nil {
			fault("--healthz-bind-address: %q is no address: write HOST:PORT, or 0 for none", c.HealthzAddr)
		}
	}
	return errors.Join(errs...)
}

// ValidatePaths returns all that is wrong with where the host's files are, which is all that an uninstallation depends on.
func (c Config) ValidatePaths() error {
	var errs []error
	for flag, path := range map[string]string{"--cni-socket": c.CNISocket, "--cni-conf-dir": c.CNIConfDir, "--ipam-dir": c.IPAMDir} {
		if path == "" || path[0] != '/' {
			errs = append(errs, fmt.Errorf("%s=%q: must be an absolute path", flag, path))
		}
	}
	for flag, path := range map[string]string{"--cni-bin-dir": c.CNIBinDir, "--sysctl-dir": c.SysctlDir} {
		if path != "" && path[0] != '/' {
			errs = append(errs, fmt.Errorf("%s=%q: must be an absolute path, or empty", flag, path))
		}
	}
	return errors.Join(errs...)
}

// selector is how hostnet takes the flags that choose the node's address.
func (c Config) selector() (hostnet.Selector, error) {
	s := hostnet.Selector{Iface: c.Iface, IfaceRegex: c.IfaceRegex}
	if c.NodeIP != "" {
		ip, err := netip.ParseAddr(c.NodeIP)
		if err != nil {
			return s, fmt.Errorf("--node-ip: %w", err)
		}
		s.NodeIP = ip
	}
	return s, nil
}

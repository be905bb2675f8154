package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/metrics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/cnifiles"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/pinger"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/servicehealth"
)

// ServiceProxyAuto follows the ClusterNetwork.
const ServiceProxyAuto config.ServiceProxy = "auto"

// Config is the configuration of the agent.
type Config struct {
	NodeName     string              // the Node object's name
	Namespace    string              // of the installation: after its deletion the agent uninstalls the network from the node; empty: never
	NodeIP       string              // this node's address; empty: detected
	Iface        string              // the interface with the node's address; empty: detected
	IfaceRegex   string              // regular expression for the interface with the node's address
	MTU          int                 // bytes, of pods and tun0; 0: the ClusterNetwork's, else the underlay's less 50
	RoutableMTU  int                 // bytes, of routes; 0: the ClusterNetwork's annotation's, else none
	Datapath     string              // OVS datapath type of br0
	ServiceProxy config.ServiceProxy // overrides the ClusterNetwork's, unless ServiceProxyAuto
	Unidle       bool                // hold packets to idled services and report them, only while br0 balances services
	CNISocket    string              // path of the socket for requests of the CNI plugin
	CNIConfDir   string              // the container runtime's directory of CNI configurations
	CNIBinDir    string              // the container runtime's directory of CNI plugins; empty: the agent does not install the plugin
	CNIPlugin    string              // path of the plugin's executable to install
	IPAMDir      string              // directory of host-local's data, which has a subdirectory for each network
	SysctlDir    string              // directory of the host's sysctls; empty: /proc/sys
	HealthzAddr  string              // host:port of /healthz and /readyz; "0": none

	ServiceHealthzAddr string // host:port of /healthz and /livez as kube-proxy serves them, only while br0 balances services; "0": none

	// NodePortAddresses are CIDRs of the node's addresses at which node ports answer, or "primary" only: at the HostSubnet's IP. Empty: at all of its addresses. They
	// concern ServiceProxyOVS only.
	NodePortAddresses []string

	Metrics metrics.Config // of the server of metrics and profiles

	FlowExport FlowExport // by IPFIX

	PeerProbeRate int // ICMP probes of other nodes per second; 0: none

	IPMasq bool // whether packets of this node's pods to hosts outside are masqueraded

	Firewall hostnet.FirewallProgram // what has the rules of the host

	HostAccess hostnet.HostAccess // which of this node's ports pods can connect to

	HostNetworkNamespaces []string // namespaces that represent the host networks of all nodes in NetworkPolicies, where they exist
}

// Defaults returns the configuration without flags.
func Defaults() Config {
	host, _ := os.Hostname()   // without one, Validate asks for --node-name
	self, _ := os.Executable() // without it, the path of the plugin is relative
	return Config{
		NodeName:     host,
		Datapath:     ovs.DatapathSystem,
		ServiceProxy: ServiceProxyAuto,
		CNISocket:    cniserver.DefaultSocket,
		CNIConfDir:   "/etc/cni/net.d",
		CNIPlugin:    filepath.Join(filepath.Dir(self), cniserver.PluginName),
		IPAMDir:      ipam.DefaultDir,
		HealthzAddr:  "127.0.0.1:9411",
		Metrics:      metrics.Config{Address: ":9447"},

		ServiceHealthzAddr: servicehealth.DefaultAddress,

		FlowExport: FlowExport{Sampling: 400, ActiveTimeout: time.Minute, MaxFlows: 8192},

		PeerProbeRate: pinger.MaxRate,

		IPMasq: true,

		Firewall: hostnet.FirewallAuto,

		HostAccess: hostnet.HostAccessAll,

		HostNetworkNamespaces: []string{"openshift-host-network"},
	}
}

// Validate returns all errors of the configuration.
func (c Config) Validate() error {
	var errs []error
	invalid := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if c.NodeName == "" {
		invalid("--node-name: the host has no name; set that of the Node object")
	} else if msgs := validation.IsDNS1123Subdomain(c.NodeName); len(msgs) > 0 {
		invalid("--node-name=%q: %s", c.NodeName, msgs[0])
	}
	if c.NodeIP != "" {
		if _, err := netip.ParseAddr(c.NodeIP); err != nil {
			invalid("--node-ip: %w", err)
		}
	}
	if c.IfaceRegex != "" {
		if _, err := regexp.Compile(c.IfaceRegex); err != nil {
			invalid("--iface-regex: %w", err)
		}
	}
	selectors := 0
	for _, s := range []string{c.NodeIP, c.Iface, c.IfaceRegex} {
		if s != "" {
			selectors++
		}
	}
	if selectors > 1 {
		invalid("--node-ip, --iface and --iface-regex exclude each other: give one")
	}
	if c.Datapath != ovs.DatapathSystem && c.Datapath != ovs.DatapathNetdev {
		invalid("--datapath=%q: must be system (the kernel's) or netdev (userspace)", c.Datapath)
	}
	if c.ServiceProxy != ServiceProxyAuto && c.ServiceProxy != config.ServiceProxyExternal && c.ServiceProxy != config.ServiceProxyOVS {
		invalid("--service-proxy=%q: must be auto, external or ovs", c.ServiceProxy)
	}
	errs = append(errs, c.validateServiceHealthz(), c.validateNodePorts())
	if !c.HostAccess.IsValid() {
		invalid("--host-access=%q: must be replies, services or all", c.HostAccess)
	}
	if c.PeerProbeRate < 0 || c.PeerProbeRate > pinger.MaxRate {
		invalid("--peer-probe-rate=%d: must be from 0 to %d", c.PeerProbeRate, pinger.MaxRate)
	}
	for _, name := range c.HostNetworkNamespaces {
		if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
			invalid("--host-network-namespaces: %q is not the name of a namespace: %s", name, msgs[0])
		}
	}
	errs = append(errs, c.validateMTU(), c.ValidateHost(), c.Metrics.Validate(), c.FlowExport.validate())
	if c.HealthzAddr != "0" {
		if _, err := net.ResolveTCPAddr("tcp", c.HealthzAddr); err != nil {
			invalid("--healthz-bind-address: %q is not an address: write HOST:PORT, or 0 for none", c.HealthzAddr)
		}
	}
	return errors.Join(errs...)
}

// validateServiceHealthz refuses an empty address, too: it would be a port that the kernel selects.
func (c Config) validateServiceHealthz() error {
	if c.ServiceHealthzAddr == "0" {
		return nil
	}
	if _, err := net.ResolveTCPAddr("tcp", c.ServiceHealthzAddr); err != nil || c.ServiceHealthzAddr == "" {
		return fmt.Errorf("--service-healthz-bind-address: %q is not an address: write HOST:PORT, or 0 for none", c.ServiceHealthzAddr)
	}
	return nil
}

// The range of MTUs in bytes: each host must accept 576, and an IPv4 packet has at most 65,535 (RFC 791).
const (
	minMTU = 576
	maxMTU = 65535
)

func (c Config) validateMTU() error {
	var errs []error
	if c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU) {
		errs = append(errs, fmt.Errorf("--mtu=%d: must be from %d to %d, or 0 to detect it", c.MTU, minMTU, maxMTU))
	}
	if c.RoutableMTU != 0 && (c.RoutableMTU < minMTU || c.RoutableMTU > maxMTU) {
		errs = append(errs, fmt.Errorf("--routable-mtu=%d: must be from %d to %d, or 0 for none", c.RoutableMTU, minMTU, maxMTU))
	}
	if c.MTU != 0 && c.RoutableMTU > c.MTU {
		errs = append(errs, fmt.Errorf("--routable-mtu=%d: must be at most --mtu=%d, the MTU of interfaces", c.RoutableMTU, c.MTU))
	}
	return errors.Join(errs...)
}

// ValidateHost returns the errors of the paths and of the firewall. Uninstall depends on no other fields.
func (c Config) ValidateHost() error {
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
	if !c.Firewall.IsValid() {
		errs = append(errs, fmt.Errorf("--firewall=%q: must be auto, iptables or nftables", c.Firewall))
	}
	return errors.Join(errs...)
}

// selector returns the flags that select the node's address.
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

// Options returns the paths of the CNI plugin and configuration.
func (c Config) fileOptions() cnifiles.Options {
	return cnifiles.Options{ConfDir: c.CNIConfDir, BinDir: c.CNIBinDir, Plugin: c.CNIPlugin, Socket: c.CNISocket}
}

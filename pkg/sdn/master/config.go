// Package master is ovsdn-controller: it validates and accepts the ClusterNetwork, and runs the controllers of HostSubnets,
// NetNamespaces and policies.
package master

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/metrics"
)

// Config is the configuration of the controller. Its network is used only to create the ClusterNetwork of a new cluster; an existing
// ClusterNetwork takes precedence.
type Config struct {
	REST            *rest.Config // of the API server
	ClusterNetworks []string     // CIDRs from which node subnets are allocated, in this order
	HostBits        uint32       // host bits of a node's subnet
	ServiceNetwork  string       // CIDR
	Mode            string       // short or full name
	VXLANPort       uint16       // UDP
	MTU             uint32       // of pods, in bytes; 0: each node uses that of its underlay
	ServiceProxy    string       // external or ovs; of a ClusterNetwork that the controller creates, and no other
	Workers         int          // that reconcile nodes, and as many for namespaces

	HostSubnetRetention time.Duration // how long the HostSubnet of a deleted Node is retained; 0: not

	GlobalNamespaces []string // whose NetNamespaces are created with VNID 0

	Unidle bool // wake idled services

	LeaderElect          bool   // lead only while holding a Lease, so that several replicas can run
	LeaderElectNamespace string // of the Lease
	HealthzAddress       string // host:port of /healthz and /readyz; "0": none

	Metrics metrics.Config // of the server of metrics and profiles
}

// Defaults returns the default configuration, with the network of OpenShift SDN, without REST.
func Defaults() Config {
	return Config{
		ClusterNetworks: []string{"10.128.0.0/14"},
		HostBits:        9,
		ServiceNetwork:  "172.30.0.0/16",
		Mode:            config.ModeNetworkPolicy.String(),
		VXLANPort:       config.DefaultVXLANPort,
		ServiceProxy:    string(config.ServiceProxyOVS),
		Workers:         8,

		HostSubnetRetention: 10 * time.Minute,

		GlobalNamespaces: []string{metav1.NamespaceDefault, metav1.NamespaceSystem, "ovsdn-system"},

		LeaderElect:          true,
		LeaderElectNamespace: "ovsdn-system",
		HealthzAddress:       "127.0.0.1:9410",
		Metrics:              metrics.Config{Address: ":9446"},
	}
}

// Validate returns an error that joins those of all invalid fields.
func (c Config) Validate() error {
	var errs []error
	if c.REST == nil {
		errs = append(errs, errors.New("no API server configured"))
	}
	if c.Workers < 1 {
		errs = append(errs, fmt.Errorf("%d workers: set at least 1", c.Workers))
	}
	if c.HostSubnetRetention < 0 {
		errs = append(errs, fmt.Errorf("--hostsubnet-retention: %s is negative: write 0 to release the subnet of a deleted Node at once", c.HostSubnetRetention))
	}
	for _, name := range c.GlobalNamespaces {
		if faults := validation.IsDNS1123Label(name); len(faults) > 0 {
			errs = append(errs, fmt.Errorf("--global-namespaces: %q is not a namespace name: %s", name, strings.Join(faults, ", ")))
		}
	}
	if !slices.Contains(c.GlobalNamespaces, metav1.NamespaceDefault) {
		errs = append(errs, fmt.Errorf("--global-namespaces: must contain %s, whose service kubernetes is the API server", metav1.NamespaceDefault))
	}
	if c.LeaderElect {
		if faults := validation.IsDNS1123Label(c.LeaderElectNamespace); len(faults) > 0 {
			errs = append(errs, fmt.Errorf("--leader-elect-namespace: %q is not a namespace name: %s", c.LeaderElectNamespace, strings.Join(faults, ", ")))
		}
	}
	if c.HealthzAddress != "0" {
		if _, err := net.ResolveTCPAddr("tcp", c.HealthzAddress); err != nil {
			errs = append(errs, fmt.Errorf("--healthz-bind-address: %q is not an address: write HOST:PORT, or 0 for none", c.HealthzAddress))
		}
	}
	if err := c.Metrics.Validate(); err != nil {
		errs = append(errs, err)
	}
	if _, err := c.network(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// network returns the network for a new cluster.
func (c Config) network() (*config.Network, error) {
	port := uint32(c.VXLANPort)
	o := &networkv1.ClusterNetwork{PluginName: c.Mode, ServiceNetwork: c.ServiceNetwork, VXLANPort: &port}
	for _, cidr := range c.ClusterNetworks {
		o.ClusterNetworks = append(o.ClusterNetworks, networkv1.ClusterNetworkEntry{CIDR: cidr, HostSubnetLength: c.HostBits})
	}
	if c.MTU != 0 {
		o.MTU = &c.MTU
	}
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, config.ServiceProxyAnnotation, c.ServiceProxy)
	network, err := config.ParseNetwork(o)
	return network, namingFlags(err)
}

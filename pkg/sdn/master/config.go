// Package master is what runs once in a cluster: it keeps the ClusterNetwork, and runs the small controllers that give
// nodes and namespaces what they need of it.
package master

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Config is what the master is started with. The network is only the wish for a new cluster: a ClusterNetwork that
// exists is followed instead.
type Config struct {
	REST            *rest.Config // how to reach the API server
	ClusterNetworks []string     // CIDRs that nodes get their subnets from, in this order
	HostBits        uint32       // bits of address that a node's subnet leaves to its pods
	ServiceNetwork  string       // CIDR
	Mode            string       // short or full name
	VXLANPort       uint16       // in UDP
	MTU             uint32       // bytes, of pods; 0: the nodes decide
	Workers         int          // nodes that are served at the same time, and namespaces

	GlobalNamespaces []string // that get VNID 0 when their NetNamespaces are made

	LeaderElect          bool   // work only as the holder of a Lease, so that several can run
	LeaderElectNamespace string // of the Lease
	HealthzAddress       string // host:port of /healthz and /readyz; "0": none
}

// Defaults returns OpenShift's network, and all but the way to the API server.
func Defaults() Config {
	return Config{
		ClusterNetworks: []string{"10.128.0.0/14"},
		HostBits:        9,
		ServiceNetwork:  "172.30.0.0/16",
		Mode:            config.ModeNetworkPolicy.String(),
		VXLANPort:       config.DefaultVXLANPort,
		Workers:         8,

		GlobalNamespaces: []string{metav1.NamespaceDefault, metav1.NamespaceSystem, "ovsdn-system"},

		LeaderElect:          true,
		LeaderElectNamespace: "ovsdn-system",
		HealthzAddress:       "127.0.0.1:9410",
	}
}

// Validate joins all that is wrong.
func (c Config) Validate() error {
	var errs []error
	if c.REST == nil {
		errs = append(errs, errors.New("no API server to talk to"))
	}
	if c.Workers < 1 {
		errs = append(errs, fmt.Errorf("%d workers do nothing: give at least 1", c.Workers))
	}
	for _, name := range c.GlobalNamespaces {
		if faults := validation.IsDNS1123Label(name); len(faults) > 0 {
			errs = append(errs, fmt.Errorf("--global-namespaces: %q is no namespace: %s", name, strings.Join(faults, ", ")))
		}
	}
	if !slices.Contains(c.GlobalNamespaces, metav1.NamespaceDefault) {
		errs = append(errs, fmt.Errorf("--global-namespaces: must contain %s, whose service kubernetes is the API server", metav1.NamespaceDefault))
	}
	if c.LeaderElect {
		if faults := validation.IsDNS1123Label(c.LeaderElectNamespace); len(faults) > 0 {
			errs = append(errs, fmt.Errorf("--leader-elect-namespace: %q is no namespace: %s", c.LeaderElectNamespace, strings.Join(faults, ", ")))
		}
	}
	if c.HealthzAddress != "0" {
		if _, err := net.ResolveTCPAddr("tcp", c.HealthzAddress); err != nil {
			errs = append(errs, fmt.Errorf("--healthz-bind-address: %q is no address: write HOST:PORT, or 0 for none", c.HealthzAddress))
		}
	}
	if _, err := c.network(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// network returns the network that the configuration wishes for.
func (c Config) network() (*config.Network, error) {
	port := uint32(c.VXLANPort)
	o := &networkv1.ClusterNetwork{PluginName: c.Mode, ServiceNetwork: c.ServiceNetwork, VXLANPort: &port}
	for _, cidr := range c.ClusterNetworks {
		o.ClusterNetworks = append(o.ClusterNetworks, networkv1.ClusterNetworkEntry{CIDR: cidr, HostSubnetLength: c.HostBits})
	}
	if c.MTU != 0 {
		o.MTU = &c.MTU
	}
	network, err := config.ParseNetwork(o)
	return network, namingFlags(err)
}

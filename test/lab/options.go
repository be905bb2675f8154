package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Options describes the lab to start.
type Options struct {
	// Name distinguishes labs on one machine: at most 12 of a-z, 0-9 and "-". Default "lab".
	Name string
	Shape
	// BinDir holds ovsdn-lab, ovsdn-controller, ovsdn-node, ovsdn-cni and portmap. Default: the folder of the running program
	// if that is ovsdn-lab, else bin in the checkout around the working directory.
	BinDir string
	// CacheDir is the folder of built components. Default: that of package components.
	CacheDir string
	// Progress receives progress messages, a line at a time. It may be nil, and may be called concurrently.
	Progress func(format string, args ...any)
}

// Shape is what cannot be changed while a lab is up. Its JSON names are those of the flags.
type Shape struct {
	// Nodes is how many the lab starts with. Default 2.
	Nodes int `json:"nodes"`
	// Mode of the network. Default subnet.
	Mode Mode `json:"mode"`
	// ServiceProxy is the implementation of services. Default ovs, as of the product.
	ServiceProxy ServiceProxy `json:"service-proxy"`
	// Unidle makes agents hold packets to idled services. Default false.
	Unidle bool `json:"unidle"`
	// ClusterIPs makes kube-apiserver connect to webhooks and aggregated APIs by cluster IPs, from a node's network, and not to their endpoints. Default false.
	ClusterIPs bool `json:"cluster-ips"`
	// ClusterNetwork is where pods' addresses come from. Default 10.128.0.0/14.
	ClusterNetwork netip.Prefix `json:"cluster-network"`
	// HostBits is the number of host bits of each node's subnet. Default 9.
	HostBits int `json:"host-bits"`
	// ServiceNetwork is where services' addresses come from. Default 172.30.0.0/16.
	ServiceNetwork netip.Prefix `json:"service-network"`
	// DNSForward is the address and port of the DNS server for names outside of the cluster. Default none.
	DNSForward string `json:"dns-forward"`
	// Install is the way to start the product's programs. Default manifests.
	Install Install `json:"install"`
	// Datapath of Open vSwitch. Default netdev.
	Datapath Datapath `json:"datapath"`
	// Switch is the source of the nodes' Open vSwitch. Default host.
	Switch Switch `json:"switch"`
	// ControlPlaneOnly brings up etcd, kube-apiserver, kube-controller-manager and kube-scheduler, and no network.
	ControlPlaneOnly bool `json:"control-plane-only"`
}

// Mode is a short name of a network mode, see the design's table.
type Mode string

// The modes.
const (
	Subnet        Mode = "subnet"
	Multitenant   Mode = "multitenant"
	NetworkPolicy Mode = "networkpolicy"
)

// ServiceProxy is the implementation of services: kube-proxy, or the pipeline.
type ServiceProxy string

// The service proxies.
const (
	External ServiceProxy = "external"
	OVS      ServiceProxy = "ovs"
)

// Install is the way to start the product's programs.
type Install string

// The ways to install: kubelet starts the programs, from images by the manifests of deploy; the machines' supervisors start them, which needs
// no working cluster; or none, for a cluster without a network.
const (
	Manifests Install = "manifests"
	Processes Install = "processes"
	None      Install = "none"
)

// Datapath of Open vSwitch: the kernel's needs its module, the userspace one nothing.
type Datapath string

// The datapaths.
const (
	Netdev Datapath = "netdev"
	System Datapath = "system"
)

// Switch is the source of the nodes' Open vSwitch: each node's host runs one, or kubelet runs it from the image by deploy/overlays/ovs.
type Switch string

// The switches.
const (
	HostSwitch  Switch = "host"
	ImageSwitch Switch = "image"
)

// Landed lists the features of the product in this version, which the flags can choose. The first of each is the default. Add new ones here
// only.
func Landed() ([]Mode, []ServiceProxy) {
	return []Mode{Subnet, Multitenant, NetworkPolicy}, []ServiceProxy{OVS, External}
}

// DefaultName is the name of a lab that got none.
const DefaultName = "lab"

// The lab's own networks. Every lab has the same, each in namespaces of its own.
const (
	fabricNetwork  = "172.31.0.0/24"
	outsideNetwork = "192.0.2.0/24"
)

// Limits of the fabric's addresses: node i has 172.31.0.(10+i), and .254 is the outside host.
const (
	firstNodeHost = 10
	maxNodes      = 240
)

// DefaultShape is the lab without options.
func DefaultShape() Shape {
	modes, proxies := Landed()
	return Shape{
		Nodes: 2, Mode: modes[0], ServiceProxy: proxies[0], Datapath: Netdev, Switch: HostSwitch, Install: Manifests,
		ClusterNetwork: netip.MustParsePrefix("10.128.0.0/14"), HostBits: 9,
		ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"),
	}
}

func (o *Options) setDefaults() {
	if o.Name == "" {
		o.Name = DefaultName
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	o.Shape.setDefaults()
}

func (s *Shape) setDefaults() {
	d := DefaultShape()
	setDefault(&s.Nodes, d.Nodes)
	setDefault(&s.Mode, d.Mode)
	setDefault(&s.ServiceProxy, d.ServiceProxy)
	setDefault(&s.ClusterNetwork, d.ClusterNetwork)
	setDefault(&s.HostBits, d.HostBits)
	setDefault(&s.ServiceNetwork, d.ServiceNetwork)
	setDefault(&s.Datapath, d.Datapath)
	setDefault(&s.Switch, d.Switch)
	setDefault(&s.Install, d.Install)
}

func setDefault[T comparable](field *T, value T) {
	var unset T
	if *field == unset {
		*field = value
	}
}

func (o *Options) validate() error {
	return errors.Join(validateName(o.Name), o.Shape.validate())
}

// validateName limits names to the length of interfaces and sockets, and to characters that are safe in paths.
func validateName(name string) error {
	if !regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?$`).MatchString(name) {
		return fmt.Errorf("--name %q: a lab's name is 1 to 12 of a-z, 0-9 and -, with no - at its ends", name)
	}
	return nil
}

func (s *Shape) validate() error {
	modes, proxies := Landed()
	errs := []error{
		validateLanded("--mode", s.Mode, modes, Subnet, Multitenant, NetworkPolicy),
		validateLanded("--service-proxy", s.ServiceProxy, proxies, External, OVS),
	}
	if s.Datapath != Netdev && s.Datapath != System {
		errs = append(errs, fmt.Errorf("--datapath %q: want %s or %s", s.Datapath, Netdev, System))
	}
	if s.Switch != HostSwitch && s.Switch != ImageSwitch {
		errs = append(errs, fmt.Errorf("--switch %q: want %s or %s", s.Switch, HostSwitch, ImageSwitch))
	}
	if s.Switch == ImageSwitch && s.Install == Processes {
		errs = append(errs, fmt.Errorf("--switch %s: kubelet starts it, so --install must be %s or %s", ImageSwitch, Manifests, None))
	}
	if s.Install != Manifests && s.Install != Processes && s.Install != None {
		errs = append(errs, fmt.Errorf("--install %q: want %s, %s or %s", s.Install, Manifests, Processes, None))
	}
	if s.Nodes < 1 || s.Nodes > maxNodes {
		errs = append(errs, fmt.Errorf("--nodes %d: want 1 to %d", s.Nodes, maxNodes))
	}
	if server, err := netip.ParseAddrPort(s.DNSForward); s.DNSForward != "" && (err != nil || !server.Addr().Is4()) {
		errs = append(errs, fmt.Errorf("--dns-forward %q: want an IPv4 address and a port like %s:53", s.DNSForward, OutsideAddr()))
	}
	if s.ClusterIPs && s.ControlPlaneOnly {
		errs = append(errs, errors.New("--cluster-ips: without nodes no program translates cluster IPs; omit it, or --control-plane-only"))
	}
	return errors.Join(append(errs, s.validateNetworks()...)...)
}

func validateLanded[T ~string](flag string, value T, landed []T, known ...T) error {
	switch {
	case slices.Contains(landed, value):
		return nil
	case slices.Contains(known, value):
		return fmt.Errorf("%s %s: not in this version yet; there is %s", flag, value, join(landed))
	default:
		return fmt.Errorf("%s %q: want one of %s", flag, value, join(known))
	}
}

func join[T ~string](values []T) string {
	var all []string
	for _, v := range values {
		all = append(all, string(v))
	}
	return strings.Join(all, ", ")
}

func (s *Shape) validateNetworks() []error {
	networks := []struct {
		name   string
		prefix netip.Prefix
	}{
		{"--cluster-network", s.ClusterNetwork},
		{"--service-network", s.ServiceNetwork},
		{"the lab's own network", netip.MustParsePrefix(fabricNetwork)},
		{"the network of the host outside", netip.MustParsePrefix(outsideNetwork)},
	}
	var errs []error
	for i, n := range networks {
		if !n.prefix.Addr().Is4() || n.prefix != n.prefix.Masked() {
			errs = append(errs, fmt.Errorf("%s %s: want an IPv4 network like 10.128.0.0/14, with no bits set beyond its length", n.name, n.prefix))
			continue
		}
		for _, other := range networks[i+1:] {
			if n.prefix.Overlaps(other.prefix) {
				errs = append(errs, fmt.Errorf("%s %s overlaps %s %s", n.name, n.prefix, other.name, other.prefix))
			}
		}
	}
	// The API server takes service networks of /12 and smaller.
	if bits := s.ServiceNetwork.Bits(); bits < 12 || bits > 28 {
		errs = append(errs, fmt.Errorf("--service-network %s: want a length from 12 to 28", s.ServiceNetwork))
	}
	if room := 32 - s.ClusterNetwork.Bits(); s.HostBits < 2 || s.HostBits >= room {
		errs = append(errs, fmt.Errorf("--host-bits %d: want 2 to %d, so that %s holds at least two nodes", s.HostBits, room-1, s.ClusterNetwork))
	}
	return errs
}

// difference returns the flags in which a wanted shape differs from the existing one.
func (s Shape) difference(wanted Shape) ([]string, error) {
	have, err := s.fields()
	if err != nil {
		return nil, err
	}
	want, err := wanted.fields()
	if err != nil {
		return nil, err
	}
	var differing []string
	for name, value := range have {
		if string(value) != string(want[name]) {
			differing = append(differing, fmt.Sprintf("--%s is %s, not %s", name, value, want[name]))
		}
	}
	slices.Sort(differing)
	return differing, nil
}

func (s Shape) fields() (map[string]json.RawMessage, error) {
	content, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	fields := map[string]json.RawMessage{}
	return fields, json.Unmarshal(content, &fields)
}

package hostports

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// The protocols of host ports.
const (
	protocolTCP  = "tcp"
	protocolUDP  = "udp"
	protocolSCTP = "sctp"
)

// Mapping is a host port of a pod: an entry of CNI's capability portMappings. The keys are CNI's.
type Mapping struct {
	HostIP        string `json:"hostIP,omitempty"` // "", 0.0.0.0: all addresses of the node
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"` // tcp, udp or sctp
}

// String returns the mapping as the node's users see it: 192.0.2.1:53/UDP.
func (m Mapping) String() string {
	port := fmt.Sprintf("%d/%s", m.HostPort, strings.ToUpper(m.Protocol))
	if addr := m.addr(); !addr.IsUnspecified() {
		return addr.String() + ":" + port
	}
	return port
}

// addr returns the address of the node to which the mapping applies; 0.0.0.0: all.
func (m Mapping) addr() netip.Addr {
	addr, err := netip.ParseAddr(m.HostIP)
	if err != nil { // empty, since validate rejects others
		return netip.IPv4Unspecified()
	}
	return addr.Unmap()
}

// canonical returns the mapping as portmap gets it.
func (m Mapping) canonical() Mapping {
	if addr := m.addr(); addr.IsUnspecified() {
		m.HostIP = ""
	} else {
		m.HostIP = addr.String()
	}
	return m
}

// ipProtocol returns the protocol's number in the IP header.
func (m Mapping) ipProtocol() uint8 {
	switch m.Protocol {
	case protocolUDP:
		return unix.IPPROTO_UDP
	case protocolSCTP:
		return unix.IPPROTO_SCTP
	default:
		return unix.IPPROTO_TCP
	}
}

// Overlaps reports whether a packet can match both mappings, by the rule of the scheduler.
func (m Mapping) Overlaps(other Mapping) bool {
	a, b := m.addr(), other.addr()
	return m.Protocol == other.Protocol && m.HostPort == other.HostPort &&
		(a == b || a.BitLen() == b.BitLen() && (a.IsUnspecified() || b.IsUnspecified()))
}

func (m Mapping) validate(vxlanPort uint16) error {
	switch {
	case !slices.Contains([]string{protocolTCP, protocolUDP, protocolSCTP}, m.Protocol):
		return fmt.Errorf("host port %s: the protocol is neither TCP, UDP nor SCTP", m)
	case m.HostPort < 1 || m.HostPort > 65535:
		return fmt.Errorf("host port %s: it is not between 1 and 65535", m)
	case m.ContainerPort < 1 || m.ContainerPort > 65535:
		return fmt.Errorf("host port %s: the container's port %d is not between 1 and 65535", m, m.ContainerPort)
	case m.Protocol == protocolUDP && m.HostPort == int(vxlanPort):
		return fmt.Errorf("host port %s is the port of the tunnels between nodes; use another one", m)
	}
	if m.HostIP != "" {
		if addr, err := netip.ParseAddr(m.HostIP); err != nil || addr.Zone() != "" {
			return fmt.Errorf("host port %s: hostIP %q is not an address", m, m.HostIP)
		}
	}
	return nil
}

// parseMappings returns the mappings of a network configuration, which the runtime puts there for the capability portMappings.
func parseMappings(config json.RawMessage) ([]Mapping, error) {
	var c struct {
		RuntimeConfig struct {
			PortMappings []Mapping `json:"portMappings"`
		} `json:"runtimeConfig"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "runtimeConfig.portMappings does not parse", err.Error())
	}
	mappings := c.RuntimeConfig.PortMappings
	for i := range mappings {
		mappings[i].Protocol = strings.ToLower(mappings[i].Protocol)
		if mappings[i].Protocol == "" {
			mappings[i].Protocol = protocolTCP
		}
	}
	return mappings, nil
}

// validateMappings returns a CNI error for too many mappings, and for the first one that is invalid or a duplicate.
func (p *Ports) validateMappings(mappings []Mapping) error {
	invalid := func(err error) error {
		return types.NewError(types.ErrInvalidNetworkConfig, "invalid host port", err.Error())
	}
	if len(mappings) > p.attachmentLimit {
		return invalid(fmt.Errorf("the pod has %d, the maximum is %d", len(mappings), p.attachmentLimit))
	}
	for i, m := range mappings {
		if err := m.validate(p.VXLANPort); err != nil {
			return invalid(err)
		}
		if slices.ContainsFunc(mappings[:i], func(n Mapping) bool { return n.Overlaps(m) && n.addr() == m.addr() }) {
			return invalid(fmt.Errorf("host port %s: the pod declares it twice", m))
		}
	}
	return nil
}

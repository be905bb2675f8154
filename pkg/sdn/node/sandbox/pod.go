// Package sandbox is the agent's record of a pod's sandbox: the names and owners that are derived from its id, and the pod that it was attached for. The record
// is stored twice, in the external_ids of the port in OVSDB and in the alias of the host veth, from which a restarted agent reads its pods. It does no I/O.
package sandbox

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Attachment is one interface of one sandbox in the pod network. Owners and device names are derived from it.
type Attachment struct {
	Sandbox string // container id
	IfName  string // in the pod
}

// Owner returns the owner of the attachment's flows in the flow store. Its key is the sandbox id, with the interface name unless that is
// eth0, the only interface of sandboxes of Kubernetes.
func (a Attachment) Owner() pipeline.Owner {
	key := a.Sandbox
	if a.IfName != defaultIfName {
		key += "/" + a.IfName
	}
	return pipeline.Owner{Kind: pipeline.KindPod, Key: key}
}

const defaultIfName = "eth0"

// hostVethPrefix is the prefix of the names of all host veths.
const hostVethPrefix = "veth"

// HostVethPattern returns the iptables interface pattern of host veths whose packets the host's network stack receives, which are those of the
// userspace datapath. It is empty for other datapaths.
func HostVethPattern(datapath string) string {
	if datapath == ovs.DatapathNetdev {
		return hostVethPrefix + "+"
	}
	return ""
}

// IsHostVeth reports whether a device of the name can be a host veth.
func IsHostVeth(name string) bool {
	digits, ok := strings.CutPrefix(name, hostVethPrefix)
	return ok && len(digits) == hostVethDigits && strings.Trim(digits, "0123456789abcdef") == ""
}

// hostVethDigits is the number of hexadecimal digits in the name of a host veth, which is as long as Linux allows.
const hostVethDigits = 11

// HostVeth returns the name of the host's end of the veth pair, of 15 characters, the most that Linux allows. It depends on the
// attachment only, so that the device is found without any stored state.
func (a Attachment) HostVeth() string {
	sum := sha256.Sum256([]byte(a.Sandbox + "/" + a.IfName))
	return hostVethPrefix + hex.EncodeToString(sum[:])[:hostVethDigits]
}

// Pod is an attached pod, as stored in the external_ids of its port.
type Pod struct {
	Attachment

	Netns     string // path
	Namespace string
	Name      string
	UID       string       // config.PodUID
	Addrs     []netip.Addr // IPv4 first
	OFPort    int
	Macvlan   string // parent of MacvlanName; "": the pod has none

	// Not in the external_ids.
	Version      string       // resourceVersion of the pod that ADD read; "": unknown
	NamespaceUID types.UID    // of the Namespace that the pod was attached in; "": the current one of that name
	VNID         *config.VNID // instead of that of the Namespace, if that is unknown; nil: none
}

// The external_ids of a pod's interface in OVSDB. They are documented and other programs read them: never rename one.
const (
	IDSandbox   = "sandbox"       // ID of the pod's sandbox; with it the port is a pod's
	IDIfName    = "ifname"        // name of the interface in the pod
	IDNetns     = "netns"         // path of the pod's network namespace
	IDNamespace = "pod-namespace" // namespace of the pod
	IDName      = "pod-name"      // name of the pod
	IDUID       = "pod-uid"       // UID of the pod; of a static pod, not of its mirror
	IDIP        = "ip"            // addresses of the pod, separated by commas
	IDMAC       = "mac"           // MAC of the pod
	IDMacvlan   = "macvlan"       // interface of the node that is the parent of the pod's interface macvlan0; missing if the pod has none
)

// MAC is derived from the first address, and is unique as long as that is.
func (p Pod) MAC() net.HardwareAddr { return config.MAC(p.Addrs[0]) }

// MacvlanName is the name of a pod's macvlan interface, as in OpenShift SDN.
const MacvlanName = "macvlan0"

// MacvlanMAC returns the MAC of MacvlanName: locally administered, another one for each sandbox, so that the interface is recognized without any stored state.
func (a Attachment) MacvlanMAC() net.HardwareAddr {
	sum := sha256.Sum256([]byte(MacvlanName + "/" + a.Sandbox + "/" + a.IfName))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return mac
}

// HasAnyAddr reports whether the pod has one of the addresses.
func (p Pod) HasAnyAddr(addrs []netip.Addr) bool {
	return slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return slices.Contains(addrs, a) })
}

// Compare orders pods by namespace, name, sandbox and interface.
func (p Pod) Compare(other Pod) int {
	return cmp.Or(
		strings.Compare(p.Namespace, other.Namespace),
		strings.Compare(p.Name, other.Name),
		strings.Compare(p.Sandbox, other.Sandbox),
		strings.Compare(p.IfName, other.IfName),
	)
}

// Port returns the pod's port, without an OpenFlow port number.
func (p Pod) Port() ovs.Port {
	port := ovs.Port{
		Name: p.HostVeth(),
		ExternalIDs: map[string]string{
			IDSandbox:   p.Sandbox,
			IDIfName:    p.IfName,
			IDNetns:     p.Netns,
			IDNamespace: p.Namespace,
			IDName:      p.Name,
			IDUID:       p.UID,
			IDIP:        JoinAddrs(p.Addrs),
			IDMAC:       p.MAC().String(),
		},
	}
	if p.Macvlan != "" {
		port.ExternalIDs[IDMacvlan] = p.Macvlan
	}
	return port
}

// ParsePort reads a pod from its port's external_ids.
func ParsePort(port ovs.Port) (Pod, error) {
	ids := port.ExternalIDs
	p := Pod{
		Attachment: Attachment{Sandbox: ids[IDSandbox], IfName: ids[IDIfName]},
		Netns:      ids[IDNetns],
		Namespace:  ids[IDNamespace],
		Name:       ids[IDName],
		UID:        ids[IDUID],
		OFPort:     port.OFPort,
		Macvlan:    ids[IDMacvlan],
	}
	if err := utils.ValidateContainerID(p.Sandbox); err != nil {
		return Pod{}, fmt.Errorf("external_ids:%s of port %s: %w", IDSandbox, port.Name, err)
	}
	if err := utils.ValidateInterfaceName(p.IfName); err != nil {
		return Pod{}, fmt.Errorf("external_ids:%s of port %s: %w", IDIfName, port.Name, err)
	}
	if err := p.validateMacvlan(); err != nil {
		return Pod{}, fmt.Errorf("external_ids:%s of port %s: %w", IDMacvlan, port.Name, err)
	}
	if want := p.HostVeth(); port.Name != want {
		return Pod{}, fmt.Errorf("external_ids of port %s belong to port %s", port.Name, want)
	}
	var err error
	if p.Addrs, err = parseAddrs(ids[IDIP]); err != nil {
		return Pod{}, fmt.Errorf("external_ids:%s of port %s: %w", IDIP, port.Name, err)
	}
	if mac := p.MAC().String(); mac != ids[IDMAC] {
		return Pod{}, fmt.Errorf("external_ids:%s of port %s is %q, want %s for its address", IDMAC, port.Name, ids[IDMAC], mac)
	}
	return p, nil
}

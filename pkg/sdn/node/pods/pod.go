package pods

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

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Attachment is one interface of one sandbox in the pod network. All names in the system follow from it.
type Attachment struct {
	Sandbox string // container id
	IfName  string // in the pod
}

// Owner is the attachment's name in the flow store. Sandboxes have one interface, eth0, when Kubernetes calls, so the
// sandbox id does; a further interface of the same sandbox needs its name too.
func (a Attachment) Owner() pipeline.Owner {
	key := a.Sandbox
	if a.IfName != defaultIfName {
		key += "/" + a.IfName
	}
	return pipeline.Owner{Kind: pipeline.KindPod, Key: key}
}

const defaultIfName = "eth0"

// hostVethPrefix begins the names of the hosts' ends of all veth pairs.
const hostVethPrefix = "veth"

// HostDevices is the pattern of iptables for the names of the hosts' ends of pods' veth pairs whose packets the host's stack receives, too: those of the
// userspace datapath. "" is none.
func HostDevices(datapath string) string {
	if datapath == DatapathNetdev {
		return hostVethPrefix + "+"
	}
	return ""
}

// HostVeth is the name of the host's end of the veth pair, 15 characters, the most that Linux allows. It follows from the
// attachment, so that it can be found when nothing was remembered.
func (a Attachment) HostVeth() string {
	sum := sha256.Sum256([]byte(a.Sandbox + "/" + a.IfName))
	return hostVethPrefix + hex.EncodeToString(sum[:])[:11]
}

// Pod is an attached pod, as its port's external_ids remember it.
type Pod struct {
	Attachment

	Netns     string // path
	Namespace string
	Name      string
	UID       string
	Addrs     []netip.Addr // IPv4 first
	OFPort    int
}

// The external_ids of a pod's interface in OVSDB. They are documented and other programs read them: never rename one.
const (
	IDSandbox   = "sandbox"       // container id; its presence makes the port a pod's
	IDIfName    = "ifname"        // the interface's name in the pod
	IDNetns     = "netns"         // path
	IDNamespace = "pod-namespace" //
	IDName      = "pod-name"      //
	IDUID       = "pod-uid"       //
	IDIP        = "ip"            // addresses, separated by commas
	IDMAC       = "mac"           //
)

// MAC follows from the first address, and is unique as long as that is.
func (p Pod) MAC() net.HardwareAddr { return config.MAC(p.Addrs[0]) }

func (p Pod) policyKey() policy.PodKey { return policy.PodKey{Namespace: p.Namespace, Name: p.Name} }

func (p Pod) hasAny(addrs []netip.Addr) bool {
	return slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return slices.Contains(addrs, a) })
}

func (p Pod) compare(other Pod) int {
	return cmp.Or(
		strings.Compare(p.Namespace, other.Namespace),
		strings.Compare(p.Name, other.Name),
		strings.Compare(p.Sandbox, other.Sandbox),
		strings.Compare(p.IfName, other.IfName),
	)
}

func (p Pod) port() ovs.Port {
	return ovs.Port{
		Name: p.HostVeth(),
		ExternalIDs: map[string]string{
			IDSandbox:   p.Sandbox,
			IDIfName:    p.IfName,
			IDNetns:     p.Netns,
			IDNamespace: p.Namespace,
			IDName:      p.Name,
			IDUID:       p.UID,
			IDIP:        joinAddrs(p.Addrs),
			IDMAC:       p.MAC().String(),
		},
	}
}

// podOf reads a pod from its port.
func podOf(port ovs.Port) (Pod, error) {
	ids := port.ExternalIDs
	p := Pod{
		Attachment: Attachment{Sandbox: ids[IDSandbox], IfName: ids[IDIfName]},
		Netns:      ids[IDNetns],
		Namespace:  ids[IDNamespace],
		Name:       ids[IDName],
		UID:        ids[IDUID],
		OFPort:     port.OFPort,
	}
	if err := utils.ValidateContainerID(p.Sandbox); err != nil {
		return Pod{}, fmt.Errorf("external_ids:%s of port %s: %w", IDSandbox, port.Name, err)
	}
	if err := utils.ValidateInterfaceName(p.IfName); err != nil {
		return Pod{}, fmt.Errorf("external_ids:%s of port %s: %w", IDIfName, port.Name, err)
	}
	if want := p.HostVeth(); port.Name != want {
		return Pod{}, fmt.Errorf("external_ids of port %s are those of port %s", port.Name, want)
	}
	var err error
	if p.Addrs, err = parseAddrs(ids[IDIP]); err != nil {
		return Pod{}, fmt.Errorf("external_ids:%s of port %s: %w", IDIP, port.Name, err)
	}
	if mac := p.MAC().String(); mac != ids[IDMAC] {
		return Pod{}, fmt.Errorf("external_ids:%s of port %s is %q, its address asks for %s", IDMAC, port.Name, ids[IDMAC], mac)
	}
	return p, nil
}

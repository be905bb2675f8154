package sandbox

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The alias of a host veth (IFLA_IFALIAS) holds the pod, so that the port can be rebuilt when OVSDB has lost it. It has seven
// fields, separated by one space, and an eighth for a pod with a macvlan interface; "-" is an empty field:
//
//	ovsdn1 NAMESPACE/NAME UID SANDBOX IFNAME ADDRESS[,ADDRESS] NETNS [MACVLAN-PARENT]
//
// Only root on the node can write it. It is validated as any other input.
const (
	aliasVersion = "ovsdn1"
	aliasFields  = 7 // without that of a macvlan interface
	emptyField   = "-"

	// maxAlias is the longest alias in bytes (IFALIASZ in linux/if.h, less the terminating zero).
	maxAlias = 255
)

// Alias returns the pod's alias, at most maxAlias bytes. If not all fields fit, NETNS is left out first, then NAMESPACE/NAME,
// which the Kubernetes API has for the UID. If that does not fit either, the alias is empty, and the lease identifies the sandbox.
func (p Pod) Alias() string {
	noNetns := p
	noNetns.Netns = ""
	noName := noNetns
	noName.Namespace, noName.Name = "", ""
	for _, fitting := range []Pod{p, noNetns, noName} {
		if text := fitting.aliasText(); len(text) <= maxAlias {
			return text
		}
	}
	return ""
}

func (p Pod) aliasText() string {
	name := ""
	if p.Name != "" {
		name = p.Namespace + "/" + p.Name
	}
	fields := []string{aliasVersion, field(name), field(p.UID), field(p.Sandbox), field(p.IfName), JoinAddrs(p.Addrs), field(p.Netns)}
	if macvlan := field(p.Macvlan); macvlan != emptyField {
		fields = append(fields, macvlan)
	}
	return strings.Join(fields, " ")
}

// field returns text as a field, or emptyField if text is empty or not printable ASCII without spaces.
func field(text string) string {
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' {
			return emptyField
		}
	}
	if text == "" {
		return emptyField
	}
	return text
}

// ParseAlias reads the alias of the device. Only the exact form that Alias writes is accepted. OFPort is 0.
func ParseAlias(device, text string) (Pod, error) {
	fields := strings.Split(text, " ")
	if len(fields) < aliasFields || len(fields) > aliasFields+1 || fields[0] != aliasVersion {
		return Pod{}, fmt.Errorf("alias of %s is not an %s alias", device, aliasVersion)
	}
	for i, f := range fields {
		if f == emptyField {
			fields[i] = ""
		}
	}
	p := Pod{Attachment: Attachment{Sandbox: fields[3], IfName: fields[4]}, UID: fields[2], Netns: fields[6]}
	if len(fields) > aliasFields {
		p.Macvlan = fields[aliasFields]
	}
	var err error
	if p.Addrs, err = parseAddrs(fields[5]); err != nil {
		return Pod{}, fmt.Errorf("addresses in the alias of %s: %w", device, err)
	}
	if fields[1] != "" {
		p.Namespace, p.Name, _ = strings.Cut(fields[1], "/")
		if faults := append(validation.IsDNS1123Label(p.Namespace), validation.IsDNS1123Subdomain(p.Name)...); len(faults) > 0 {
			return Pod{}, fmt.Errorf("pod %q in the alias of %s: %s", fields[1], device, faults[0])
		}
	}
	if err := errors.Join(p.validate(), p.validateMacvlan()); err != nil {
		return Pod{}, fmt.Errorf("alias of %s: %w", device, err)
	}
	if want := p.HostVeth(); device != want {
		return Pod{}, fmt.Errorf("alias of %s belongs to %s", device, want)
	}
	if p.aliasText() != text {
		return Pod{}, fmt.Errorf("alias of %s is not in canonical form", device)
	}
	return p, nil
}

// validate validates the sandbox and the interface by the rules of CNI.
func (a Attachment) validate() error {
	if err := utils.ValidateContainerID(a.Sandbox); err != nil {
		return fmt.Errorf("sandbox %q: %w", a.Sandbox, err)
	}
	if err := utils.ValidateInterfaceName(a.IfName); err != nil {
		return fmt.Errorf("interface %q: %w", a.IfName, err)
	}
	return nil
}

func (p Pod) validateMacvlan() error {
	if p.Macvlan == "" {
		return nil
	}
	if err := utils.ValidateInterfaceName(p.Macvlan); err != nil {
		return fmt.Errorf("parent %q of %s: %w", p.Macvlan, MacvlanName, err)
	}
	return nil
}

// JoinAddrs returns the addresses, separated by commas.
func JoinAddrs(addrs []netip.Addr) string {
	texts := make([]string, len(addrs))
	for i, a := range addrs {
		texts[i] = a.String()
	}
	return strings.Join(texts, ",")
}

func parseAddrs(text string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for t := range strings.SplitSeq(text, ",") {
		addr, err := netip.ParseAddr(t)
		if err != nil {
			return nil, err
		}
		if addr.Zone() != "" || addr.Is4In6() {
			return nil, fmt.Errorf("%s is not a valid pod address", addr)
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

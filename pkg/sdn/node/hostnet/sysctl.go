package hostnet

import (
	"errors"
	"fmt"
	"io/fs"

	cnisysctl "github.com/containernetworking/plugins/pkg/utils/sysctl"
)

// sysctl is a setting below /proc/sys.
type sysctl struct {
	name, value string
}

// ipv4Sysctls are what pods' traffic through tun0 needs. For settings that are both per interface and for all, how
// the two combine is in the kernel's Documentation/networking/ip-sysctl.rst.
func ipv4Sysctls() []sysctl {
	return []sysctl{
		// The host routes between pods and the world.
		{"net/ipv4/ip_forward", "1"},
		// Loose: what comes in by tun0 may have a source that is routed elsewhere. Not 0: in force is the larger one of
		// this and `all`, so that 0 would leave a host's strict 1 in force.
		{"net/ipv4/conf/" + Tun0Name + "/rp_filter", "2"},
		// Ask for pods' MACs with the gateway's address whatever source the packet has: the bridge drops ARP from
		// tun0 with any other sender, since pods could be told lies by it.
		{"net/ipv4/conf/" + Tun0Name + "/arp_announce", "2"},
		// A packet to a service comes in by tun0 and leaves by tun0 to its endpoint. The kernel would tell the pod to send to the
		// endpoint directly, and the service would be dead for that pod. Either of the two settings turns
		// redirects on, so both are off; other interfaces have their own and keep it.
		{"net/ipv4/conf/all/send_redirects", "0"},
		{"net/ipv4/conf/" + Tun0Name + "/send_redirects", "0"},
	}
}

// noIPv6 keeps router solicitations and duplicate address detection out of a pod network without IPv6.
func noIPv6() sysctl {
	return sysctl{"net/ipv6/conf/" + Tun0Name + "/disable_ipv6", "1"}
}

// ensure sets what differs, and says what it changed. A setting that is right is not written: /proc/sys may be
// read-only, and writing ip_forward resets other settings.
func (s sysctl) ensure() (change string, err error) {
	have, err := cnisysctl.Sysctl(s.name)
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", s.name, err)
	}
	if have == s.value {
		return "", nil
	}
	if _, err := cnisysctl.Sysctl(s.name, s.value); err != nil {
		return "", fmt.Errorf("sysctl %s is %s and cannot be changed to %s: make /proc/sys writable for the agent, or set it on the host (/etc/sysctl.d): %w",
			s.name, have, s.value, err)
	}
	return fmt.Sprintf("sysctl %s=%s (was %s)", s.name, s.value, have), nil
}

// ensureIfThere is for settings of what a kernel may be built without.
func (s sysctl) ensureIfThere() (change string, err error) {
	change, err = s.ensure()
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return change, err
}

package ovs

import (
	"fmt"
	"net"
	"strings"
	"unicode/utf8"
)

// Validate rejects values that OVSDB cannot store, or not unchanged.
func (p Port) Validate() error {
	if p.Name == "" || strings.HasPrefix(p.Name, "-") || len(p.Name) > maxInterfaceName {
		return fmt.Errorf("port: %q is not an interface name of 1 to %d bytes", p.Name, maxInterfaceName)
	}
	if p.OFPort < 0 || p.OFPort > maxPort {
		return fmt.Errorf("port %s: OpenFlow port %d is not in the range 1 to %d", p.Name, p.OFPort, maxPort)
	}
	if p.MAC != "" {
		if _, err := parseMAC(p.MAC); err != nil {
			return fmt.Errorf("port %s: %w", p.Name, err)
		}
	}
	for _, m := range []map[string]string{{"name": p.Name, "type": p.Type}, p.Options, p.ExternalIDs} {
		for k, v := range m {
			if !isText(k) || !isText(v) {
				return fmt.Errorf("port %s: %q=%q: OVSDB accepts only UTF-8 without NUL", p.Name, k, v)
			}
		}
	}
	return nil
}

// CanonicalMAC returns a valid address in the form of Open vSwitch, and any other string unchanged.
func CanonicalMAC(s string) string {
	mac, err := parseMAC(s)
	if err != nil {
		return s // Validate returns the error
	}
	return mac.String()
}

func parseMAC(s string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(s)
	if err != nil {
		return nil, err
	}
	if len(mac) != 6 {
		return nil, fmt.Errorf("%q is not an Ethernet address", s)
	}
	return mac, nil
}

func isText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

// MustRecreate reports whether an existing port cannot be corrected in place. A system device may have been replaced by another of the same
// name: vswitchd then retains the number, on the userspace datapath even the closed device, and OVSDB shows no difference.
func MustRecreate(is, want Port) bool {
	return want.Type == "" || is.Type != want.Type || is.OFPort < 0 || is.Error != ""
}

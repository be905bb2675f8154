package ovs

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// validate refuses what Open vSwitch could not store as it is.
func (p Port) validate() error {
	if p.Name == "" || strings.HasPrefix(p.Name, "-") || len(p.Name) > maxInterfaceName {
		return fmt.Errorf("port: %q is not an interface name of 1 to %d bytes", p.Name, maxInterfaceName)
	}
	if p.OFPort < 0 || p.OFPort > maxPort {
		return fmt.Errorf("port %s: OpenFlow port %d is not in 1 to %d", p.Name, p.OFPort, maxPort)
	}
	if p.MAC != "" {
		if _, err := parseMAC(p.MAC); err != nil {
			return fmt.Errorf("port %s: %w", p.Name, err)
		}
	}
	for _, m := range []map[string]string{{"name": p.Name, "type": p.Type}, p.Options, p.ExternalIDs} {
		for k, v := range m {
			if !isText(k) || !isText(v) {
				return fmt.Errorf("port %s: %q=%q: OVSDB takes only UTF-8 without NUL", p.Name, k, v)
			}
		}
	}
	return nil
}

// canonicalMAC writes a valid address as Open vSwitch does.
func canonicalMAC(s string) string {
	mac, err := parseMAC(s)
	if err != nil {
		return s // validate refuses it
	}
	return mac.String()
}

func isText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

// mustRemake reports whether an existing port can't be corrected in place. A system device may have been replaced under its
// name: vswitchd then keeps the number, and on the userspace datapath the closed device too, and nothing in OVSDB tells.
func mustRemake(is, want Port) bool {
	return want.Type == "" || is.Type != want.Type || is.OFPort < 0 || is.Error != ""
}

// refusal is vswitchd's reason not to set the wanted port up as it was asked to, nil if it did. The port got is what it made of it.
func refusal(want, got Port) *PortError {
	switch {
	case got.OFPort < 0 || got.Error != "":
		return &PortError{Port: want.Name, Reason: got.Error}
	case got.OFPort == 0:
		return &PortError{Port: want.Name, Reason: "vswitchd gave it no OpenFlow port number"}
	case want.OFPort != 0 && got.OFPort != want.OFPort:
		return &PortError{Port: want.Name, Reason: fmt.Sprintf("it got OpenFlow port %d, since %d is taken", got.OFPort, want.OFPort)}
	}
	return nil
}

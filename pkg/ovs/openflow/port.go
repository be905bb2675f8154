package openflow

import (
	"fmt"
	"strconv"
	"strings"
)

// Port is an OpenFlow port number or reserved port (OpenFlow 1.4.1, 7.2.1, ofp_port_no).
type Port uint32

// Reserved ports.
const (
	PortInPort     Port = 0xfffffff8 // the port on which the packet arrived
	PortTable      Port = 0xfffffff9
	PortNormal     Port = 0xfffffffa
	PortFlood      Port = 0xfffffffb
	PortAll        Port = 0xfffffffc
	PortController Port = 0xfffffffd
	PortLocal      Port = 0xfffffffe // the bridge's internal port
	PortAny        Port = 0xffffffff // no port; in requests any port
)

// maxPort16 is the lowest reserved number of a 16-bit port (OFPP_MAX of OpenFlow 1.0), as in Nicira actions. Open vSwitch has only ports
// below it.
const maxPort16 = 0xff00

// port16 converts a 16-bit port number.
func port16(n uint16) Port {
	if n >= maxPort16 {
		return Port(n) | 0xffff0000
	}
	return Port(n)
}

// check returns an error for port numbers that Open vSwitch does not support.
func (p Port) check() error {
	if p >= maxPort16 && p < PortInPort {
		return fmt.Errorf("port %d: Open vSwitch has ports below %d", uint32(p), maxPort16)
	}
	return nil
}

// portNames returns the names of the reserved ports, beginning with PortInPort.
func portNames() [8]string {
	return [...]string{"IN_PORT", "TABLE", "NORMAL", "FLOOD", "ALL", "CONTROLLER", "LOCAL", "ANY"}
}

func (p Port) String() string { return string(appendPort(nil, p)) }

func appendPort(b []byte, p Port) []byte {
	if p >= PortInPort {
		return append(b, portNames()[p-PortInPort]...)
	}
	return strconv.AppendUint(b, uint64(p), 10)
}

// ParsePort parses a port number or the name of a reserved port in upper or lower case.
func ParsePort(s string) (Port, error) {
	if s != "" && s[0] >= '0' && s[0] <= '9' {
		n, err := parseUint(s, 32)
		if err != nil {
			return 0, err
		}
		p := Port(n)
		if p >= maxPort16 && p <= 0xffff {
			p = port16(uint16(p))
		}
		return p, p.check()
	}
	for i, name := range portNames() {
		if strings.EqualFold(s, name) {
			return PortInPort + Port(i), nil
		}
	}
	if strings.EqualFold(s, "NONE") {
		return PortAny, nil
	}
	return 0, fmt.Errorf("%q is not a port", s)
}

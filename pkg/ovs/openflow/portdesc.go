package openflow

import (
	"fmt"
	"net"
)

// PortDescRequest asks for PortDescReply.
type PortDescRequest struct{}

// PortDescReply are the bridge's ports.
type PortDescReply struct {
	Part
	Ports []PortDesc
}

// PortDesc is a port of the bridge (OpenFlow 1.4.1, 7.2.1, ofp_port). Its properties, such as speeds, are left out.
type PortDesc struct {
	Port   Port
	Name   string // at most 15 bytes
	MAC    net.HardwareAddr
	Config uint32 // OFPPC_*
	State  uint32 // OFPPS_*
}

const (
	portDescLen = 40
	portNameLen = 16
)

func (*PortDescRequest) messageType() uint8 { return typeMultipart }

func (*PortDescRequest) appendBody(b []byte, v Version) ([]byte, error) {
	b = appendRequest(b, multipartPortDesc)
	if v >= Version15 {
		b = zeros(put32(b, anyPort), 4)
	}
	return b, nil
}

func (m *PortDescReply) appendBody(b []byte, _ Version) ([]byte, error) {
	b = m.append(b, multipartPortDesc)
	for _, p := range m.Ports {
		if len(p.MAC) != 6 || len(p.Name) >= portNameLen {
			return b, fmt.Errorf("port %s: an address has 6 bytes, a name at most %d", p.Port, portNameLen-1)
		}
		b = zeros(put16(put32(b, uint32(p.Port)), portDescLen), 2)
		b = zeros(append(b, p.MAC...), 2)
		b = zeros(append(b, p.Name...), portNameLen-len(p.Name))
		b = put32(put32(b, p.Config), p.State)
	}
	return b, nil
}

func decodePortDescReply(p Part, b []byte) (Message, error) {
	m := &PortDescReply{Part: p}
	err := entries("port description", b, 4, portDescLen, func(e []byte) error {
		m.Ports = append(m.Ports, PortDesc{
			Port: Port(u32(e)), MAC: clone(e[8:14]), Name: cString(e[16 : 16+portNameLen]), Config: u32(e[32:]), State: u32(e[36:]),
		})
		return nil
	})
	return m, err
}

package ovs

import (
	"context"
	"fmt"
)

// ControllerID is the controller ID of ToController. Packets of other programs have ID 0, the default, or an ID of their own.
const ControllerID = 1

// NumRegisters is the number of 32-bit registers of Open vSwitch (FLOW_N_REGS).
const NumRegisters = 16

// PacketIn is a packet that a flow sent with ToController, with its metadata in the flow's table.
type PacketIn struct {
	Table     int
	Cookie    uint64 // of the flow
	InPort    int    // OpenFlow number of the port by which it entered the bridge; 0: none, as for the bridge's own port
	Registers [NumRegisters]uint32
	Packet    []byte // the whole packet from the Ethernet header on
}

// ToController sends a copy of the packet to the caller of WatchPackets. Every such packet goes through vswitchd: a flow that many packets
// match must limit them with ThroughMeter first.
func ToController() Action { return toController{} }

type toController struct{}

func (toController) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "controller(id=%d)", ControllerID), nil
}

func (toController) GoString() string { return "ovs.ToController()" }

// Injector passes packets through the bridge (part of Interface).
type Injector interface {
	// Inject makes the bridge process a packet as if it had arrived at the port with that OpenFlow number, from table 0 on. It returns after vswitchd has processed the
	// packet. The port need not exist: flows decide. Until AwaitDatapath has returned, packets that are looked up in conntrack may be handled by earlier flows.
	Inject(ctx context.Context, inPort int, packet []byte) error
}

// Bounds of an injected packet: an Ethernet header, and what a message of OpenFlow has room for.
const (
	minInjected = 14
	maxInjected = 1<<16 - 1 - 64
)

// ValidateInjection returns an error for packets that Inject does not accept.
func ValidateInjection(inPort int, packet []byte) error {
	if inPort < 1 || inPort > maxPort {
		return fmt.Errorf("inject packet: port %d is not from 1 to %d", inPort, maxPort)
	}
	if len(packet) < minInjected || len(packet) > maxInjected {
		return fmt.Errorf("inject packet: %d bytes, want %d to %d", len(packet), minInjected, maxInjected)
	}
	return nil
}

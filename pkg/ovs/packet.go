package ovs

import "fmt"

// ControllerID is the controller ID of ToController. Packets of other programs have ID 0, the default, or an ID of their own.
const ControllerID = 1

// NumRegisters is the number of 32-bit registers of Open vSwitch (FLOW_N_REGS).
const NumRegisters = 16

// PacketIn is a packet that a flow sent with ToController, with its metadata in the flow's table.
type PacketIn struct {
	Table     int
	Cookie    uint64 // of the flow
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

package ovs

import "fmt"

// controllerID tells the agent's packets from those that are sent to everybody else, whose id is 0 unless they choose another.
const controllerID = 1

// numRegisters is how many 32-bit registers Open vSwitch has (FLOW_N_REGS).
const numRegisters = 16

// PacketIn is a packet that a flow sent by ToController, as it was in the flow's table.
type PacketIn struct {
	Table     int
	Cookie    uint64 // of the flow
	Registers [numRegisters]uint32
	Packet    []byte // from the Ethernet header on, whole
}

// ToController sends a copy of the packet to who watches packets. What comes from the datapath passes by vswitchd, so that a flow
// which many packets may meet goes ThroughMeter first.
func ToController() Action { return toController{} }

type toController struct{}

func (toController) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "controller(id=%d)", controllerID), nil
}

func (toController) GoString() string { return "ovs.ToController()" }

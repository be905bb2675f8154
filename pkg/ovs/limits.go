package ovs

// Limits of Open vSwitch.
const (
	maxTable    = 253   // 254 is hidden (TBL_INTERNAL), 255 means "all tables" (OFPTT_ALL)
	maxReg      = 15    // reg0 to reg15 (FLOW_N_REGS)
	maxPriority = 65535 // 16 bits in a flow_mod
	maxPort     = 65279 // above lie OpenFlow 1.0's reserved ports (OFPP_MAX)

	maxInterfaceName = 15 // bytes (IFNAMSIZ without its NUL)
)

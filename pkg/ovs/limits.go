package ovs

// Limits of Open vSwitch.
const (
	maxTable    = 253   // 254 is hidden (TBL_INTERNAL), 255 selects all tables (OFPTT_ALL)
	maxReg      = 15    // reg0 to reg15 (FLOW_N_REGS)
	maxPriority = 65535 // 16 bits in a flow_mod
	maxTimeout  = 65535 // seconds, 16 bits in a flow_mod
	maxPort     = 65279 // higher numbers are reserved in OpenFlow 1.0 (OFPP_MAX)

	maxGroup   = 0xffffff00 // OFPG_MAX
	maxBuckets = 512        // OVS 3.1 miscounts above 1,023 and closes the connection at 2,000
	maxWeight  = 65535      // 16 bits in a bucket
	maxMeter   = 0xffff0000 // OFPM_MAX

	maxInterfaceName = 15 // bytes (IFNAMSIZ without its NUL)
)

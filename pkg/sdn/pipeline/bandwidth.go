package pipeline

import (
	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// The bandwidth of a pod is limited by two meters: table 20 passes its packets through one, and table 133, which outputs packets, those to it through the
// other. Each packet passes the two tables once: a reply through the host's proxy passes table 70 twice (docs/decisions/0015-bandwidth.md).

// A pod's meters of bandwidth have its port's number and one of these bits; denied.go has those of other meters.
const (
	meterEgressBandwidth  = 1 << 18
	meterIngressBandwidth = 1 << 19

	meterPort = 1<<16 - 1 // the bits of the port's number
)

const bitsPerKilobit = 1000

// The burst of a limit, in kilobits. A meter drops what exceeds it: the burst has to hold what a TCP connection may send after it has waited for the
// retransmission timer, 0.2 s or more. The shortest burst lets packets of 64 KiB pass, which the kernel segments behind the switch.
const (
	burstsPerSecond   = 2
	minBandwidthBurst = 525
	maxBandwidthBurst = 1e6 // the kernel's datapath before 5.8 counts the bucket in 32 bits
)

// maxBandwidthRate is the highest rate, in kilobits per second. Both datapaths fill a bucket for at most burst/rate whole milliseconds: never, if that is less than
// one.
const maxBandwidthRate = 100e6

// bandwidthMeter returns the meter of a limit in bits per second, with a whole number of kilobits.
func bandwidthMeter(id uint32, limit uint64) ovs.Meter {
	rate := min((limit+bitsPerKilobit-1)/bitsPerKilobit, maxBandwidthRate)
	burst := min(max(rate/burstsPerSecond, minBandwidthBurst), maxBandwidthBurst)
	return ovs.Meter{ID: id, Unit: ovs.Kilobits, Rate: uint32(rate), Burst: uint32(burst)} //nolint:gosec // at most maxBandwidthRate
}

// limited returns the actions for a packet of the pod, after its meter if it has a limit.
func (p Pod) limited(actions []ovs.Action) []ovs.Action {
	if p.Bandwidth.Egress == 0 {
		return actions
	}
	return append([]ovs.Action{ovs.ThroughMeter(meterEgressBandwidth | uint32(p.OFPort))}, actions...) //nolint:gosec // a port's number
}

// limitBandwidth compiles the meters of the pod's limits, and the output of packets to the pod.
func (n Node) limitBandwidth(s *State, p Pod) {
	port := uint32(p.OFPort) //nolint:gosec // a port's number
	if p.Bandwidth.Egress > 0 {
		// meter=262147,kbps,burst,band=type=drop,rate=10000,burst_size=5000
		s.Meters = append(s.Meters, bandwidthMeter(meterEgressBandwidth|port, p.Bandwidth.Egress))
	}
	if p.Bandwidth.Ingress == 0 {
		return
	}
	m := bandwidthMeter(meterIngressBandwidth|port, p.Bandwidth.Ingress)
	// meter=524291,kbps,burst,band=type=drop,rate=20000,burst_size=10000
	s.Meters = append(s.Meters, m)
	if n.BalancesServices {
		// table=133,priority=130,ip,reg2=0x3,reg4=0x8000/0x8000,actions=meter:524291,in_port
		s.add(tableOutput, 130, ip(ovs.Reg(2, port), isHairpin()), ovs.ThroughMeter(m.ID), goovs.InPort())
	}
	// table=133,priority=120,reg2=0x3,actions=meter:524291,output:NXM_NX_REG2[]
	s.add(tableOutput, 120, match{fields: []ovs.Match{ovs.Reg(2, port)}}, ovs.ThroughMeter(m.ID), goovs.OutputField(regOutput))
}

// BandwidthOf returns the limits of the pod with the OpenFlow port that the meters of the switch enforce.
func BandwidthOf(meters []ovs.Meter, port int) (b config.Bandwidth) {
	for _, m := range meters {
		if m.Unit != ovs.Kilobits || int(m.ID&meterPort) != port {
			continue
		}
		limit := uint64(m.Rate) * bitsPerKilobit
		switch m.ID &^ meterPort {
		case meterEgressBandwidth:
			b.Egress = limit
		case meterIngressBandwidth:
			b.Ingress = limit
		}
	}
	return b
}

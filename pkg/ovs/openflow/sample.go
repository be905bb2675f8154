package openflow

import (
	"fmt"
	"strconv"
)

// Sample sends a part of the packets to the IPFIX exporter of a collector set, and has no effect on the packet (NXAST_SAMPLE). The forms with a port
// (NXAST_SAMPLE2, NXAST_SAMPLE3) are UnknownAction.
type Sample struct {
	Probability  uint16 // of maxProbability; not 0
	CollectorSet uint32 // the id of a row of Flow_Sample_Collector_Set
	Domain       uint32 // observationDomainId of IPFIX
	Point        uint32 // observationPointId of IPFIX
}

// maxProbability samples each packet.
const maxProbability = 65535

// Kind implements Action.
func (Sample) Kind() Kind { return KindSample }

func (a Sample) check() error {
	if a.Probability == 0 {
		return fmt.Errorf("sample: the probability must be from 1 to %d", maxProbability)
	}
	return nil
}

func (a Sample) appendWire(b []byte) ([]byte, error) {
	b = put16(appendNicira(b, nxSample, 24), a.Probability)
	return put32(put32(put32(b, a.CollectorSet), a.Domain), a.Point), a.check()
}

func decodeSample(b []byte) (Action, bool) {
	if len(b) != 24 {
		return nil, false
	}
	a := Sample{Probability: u16(b[10:]), CollectorSet: u32(b[12:]), Domain: u32(b[16:]), Point: u32(b[20:])}
	return a, a.check() == nil
}

func (a Sample) appendText(b []byte) []byte {
	b = strconv.AppendUint(append(b, "sample(probability="...), uint64(a.Probability), 10)
	b = strconv.AppendUint(append(b, ",collector_set_id="...), uint64(a.CollectorSet), 10)
	b = strconv.AppendUint(append(b, ",obs_domain_id="...), uint64(a.Domain), 10)
	b = strconv.AppendUint(append(b, ",obs_point_id="...), uint64(a.Point), 10)
	return append(b, ')')
}

// parseSample parses sample(…). Only the probability is required, as in ovs-ofctl.
func parseSample(s string) (Action, error) {
	var a Sample
	err := eachWord(s, func(w word) error {
		bits := 32
		if w.key == "probability" {
			bits = 16
		}
		n, err := w.uint(bits)
		switch w.key {
		case "probability":
			a.Probability = uint16(n)
		case "collector_set_id":
			a.CollectorSet = uint32(n)
		case "obs_domain_id":
			a.Domain = uint32(n)
		case "obs_point_id":
			a.Point = uint32(n)
		default:
			return fmt.Errorf("sample: unsupported argument %q", excerpt(w.key))
		}
		return err
	})
	if err != nil {
		return a, err
	}
	return a, a.check()
}

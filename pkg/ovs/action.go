package ovs

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// GotoTable continues with the given table, 1 to 254. OpenFlow allows only a table above the flow's own, and goto_table as the last
// element of the action list.
func GotoTable(table int) Action {
	return gotoTable(table)
}

type gotoTable int

func (a gotoTable) MarshalText() ([]byte, error) {
	if a < 1 || a > maxTable {
		return nil, fmt.Errorf("goto_table:%d: the table must be 1 to %d", int(a), maxTable)
	}
	return fmt.Appendf(nil, "goto_table:%d", int(a)), nil
}

func (a gotoTable) GoString() string {
	return fmt.Sprintf("ovs.GotoTable(%d)", int(a))
}

// noteUnit and noteFirst are sizes in bytes: a note fills a Nicira action that is a multiple of noteUnit long, of which the header
// leaves noteFirst in the first unit (struct nx_action_note in OVS's ofp-actions.c).
const (
	noteFirst = 6
	noteUnit  = 8
)

// Note contains bytes for people and programs that read the flow, and has no effect on the packet. OVS pads them with zeros to 6, 14,
// 22 … bytes; the text is that of the padded note, as in a dump.
func Note(b []byte) Action {
	n := noteFirst
	for n < len(b) {
		n += noteUnit
	}
	padded := make([]byte, n)
	copy(padded, b)
	return note(padded)
}

type note []byte

func (a note) MarshalText() ([]byte, error) {
	octets := make([]string, len(a))
	for i := range a {
		octets[i] = hex.EncodeToString(a[i : i+1])
	}
	return []byte("note:" + strings.Join(octets, ".")), nil
}

func (a note) GoString() string {
	return fmt.Sprintf("ovs.Note(%#v)", []byte(a))
}

// CTClear removes the conntrack state of the packet (NXAST_CT_CLEAR).
func CTClear() Action { return ctClear{} }

type ctClear struct{}

func (ctClear) MarshalText() ([]byte, error) { return []byte("ct_clear"), nil }

func (ctClear) GoString() string { return "ovs.CTClear()" }

// Recirculate returns actions that make Open vSwitch recirculate the packet: the next action that reads or changes more than the Ethernet
// header is done by a separate datapath flow. The datapath does the actions before it even if those after it need ovs-vswitchd. The
// actions push and pop an MPLS label, after which Open vSwitch has to parse the packet again; the packet itself does not change.
// etherType must be that of the packet.
func Recirculate(etherType uint16) []Action {
	return []Action{mplsAction{"push_mpls", etherTypeMPLS}, mplsAction{"pop_mpls", etherType}}
}

const etherTypeMPLS = 0x8847

type mplsAction struct {
	name      string
	etherType uint16
}

func (a mplsAction) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%s:0x%04x", a.name, a.etherType), nil
}

func (a mplsAction) GoString() string {
	return fmt.Sprintf("ovs.mplsAction{%q, %#04x}", a.name, a.etherType)
}

// Sample sends a part of the packets to the IPFIX exporter of a collector set and has no effect on the packet (NXAST_SAMPLE).
type Sample struct {
	Probability  uint16 // of 65535; not 0
	CollectorSet uint32 // the id of a row of Flow_Sample_Collector_Set
	Domain       uint32 // observationDomainId of IPFIX
	Point        uint32 // observationPointId of IPFIX
}

// MarshalText implements Action.
func (a Sample) MarshalText() ([]byte, error) {
	if a.Probability == 0 {
		return nil, errors.New("sample: the probability is 0")
	}
	return fmt.Appendf(nil, "sample(probability=%d,collector_set_id=%d,obs_domain_id=%d,obs_point_id=%d)", a.Probability, a.CollectorSet, a.Domain, a.Point), nil
}

// GoString implements Action.
func (a Sample) GoString() string {
	return fmt.Sprintf("ovs.Sample{Probability: %d, CollectorSet: %d, Domain: %#x, Point: %d}", a.Probability, a.CollectorSet, a.Domain, a.Point)
}

package ovs

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// GotoTable continues with the given table, 1 to 254. OpenFlow allows only tables above the flow's own, and nothing
// behind it in the action list.
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

// noteUnit and noteFirst: a note's bytes fill an 8-byte aligned Nicira action whose header leaves 6 bytes in the first unit
// (struct nx_action_note in OVS's ofp-actions.c).
const (
	noteFirst = 6
	noteUnit  = 8
)

// Note does nothing with the packet: it carries bytes for whoever reads the flow. OVS pads them with zeros to 6, 14,
// 22 … bytes; the text is that of the padded note, so that it equals what the switch gives back.
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

// CTClear makes the packet untracked: what the connection tracker knows of it is forgotten (NXAST_CT_CLEAR).
func CTClear() Action { return ctClear{} }

type ctClear struct{}

func (ctClear) MarshalText() ([]byte, error) { return []byte("ct_clear"), nil }

func (ctClear) GoString() string { return "ovs.CTClear()" }

// Recirculate ends the packet's pass through the datapath: what follows, with the first action that reads or changes more than Ethernet, is a
// datapath flow of its own. What comes before is done by the datapath even if what follows takes ovs-vswitchd. The actions add and remove an MPLS
// label, behind which Open vSwitch has to parse the packet again; the packet itself stays as it is. It is of the Ethernet type.
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

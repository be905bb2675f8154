package openflow

import (
	"fmt"
	"strconv"
)

// CTNoTable in CT.Table does not recirculate the packet after conntrack (NX_CT_RECIRC_NONE).
const CTNoTable = 0xff

// CT sends the packet to conntrack (NXAST_CT).
type CT struct {
	Commit   bool
	Force    bool     // with Commit: replace an entry of the opposite direction
	Table    uint8    // where the tracked packet continues; CTNoTable: nowhere
	Zone     uint16   // unless ZoneFrom is set
	ZoneFrom Subfield // 16 bits that contain the zone
	ALG      uint16   // 21 for FTP, 69 for TFTP
	Exec     []Action // applied to the connection: NAT; load, set_field and move of ct_mark and ct_label
}

// Flags of struct nx_action_conntrack.
const (
	ctCommit = 1
	ctForce  = 2

	algFTP  = 21
	algTFTP = 69

	ctLen = 24 // without Exec
)

// Kind implements Action.
func (CT) Kind() Kind { return KindCT }

func (a CT) flags() uint16 {
	var flags uint16
	if a.Commit {
		flags |= ctCommit
	}
	if a.Force {
		flags |= ctForce
	}
	return flags
}

func (a CT) check() error {
	if a.Force && !a.Commit {
		return fmt.Errorf("force needs commit")
	}
	if !a.ZoneFrom.isNone() {
		if err := a.ZoneFrom.check(); err != nil {
			return err
		}
		if a.ZoneFrom.Width != 16 || a.Zone != 0 {
			return fmt.Errorf("the zone is either a number or 16 bits of a field")
		}
	}
	for _, e := range a.Exec {
		switch e.(type) {
		case NAT, Load, SetField, Move, UnknownAction:
		default:
			return fmt.Errorf("%s is not allowed in ct(exec(…))", e.Kind())
		}
	}
	return nil
}

func (a CT) appendWire(b []byte) ([]byte, error) {
	if err := a.check(); err != nil {
		return b, err
	}
	start := len(b)
	b = a.appendFixed(b)
	b, err := appendActions(b, a.Exec)
	if err != nil {
		return b, err
	}
	return endAction(b, start)
}

// appendFixed appends the action without Exec.
func (a CT) appendFixed(b []byte) []byte {
	b = put16(appendNicira(b, nxCT, ctLen), a.flags())
	if a.ZoneFrom.isNone() {
		b = put16(put32(b, 0), a.Zone)
	} else {
		packed, _ := a.ZoneFrom.packed() // 16 bits always fit
		b = put16(put32(b, a.ZoneFrom.header()), packed)
	}
	b = append(b, a.Table, 0, 0, 0)
	return put16(b, a.ALG)
}

func decodeCT(b []byte) (Action, bool) {
	if len(b) < ctLen || u16(b[10:])&^(ctCommit|ctForce) != 0 || !allZero(b[19:22]) {
		return nil, false
	}
	flags := u16(b[10:])
	a := CT{Commit: flags&ctCommit != 0, Force: flags&ctForce != 0, Table: b[18], ALG: u16(b[22:])}
	if from := u32(b[12:]); from == 0 {
		a.Zone = u16(b[16:])
	} else {
		var ok bool
		if a.ZoneFrom, ok = packedSubfield(from, u16(b[16:])); !ok {
			return nil, false
		}
	}
	if nestsCT(b[ctLen:]) {
		return nil, false // Open vSwitch refuses nested ct; it would be unbounded recursion
	}
	a.Exec = decodeActions(b[ctLen:])
	return a, a.check() == nil
}

// nestsCT reports whether a list of actions contains ct.
func nestsCT(b []byte) bool {
	for {
		element, rest, ok := tlv(b, 2, actionHeader)
		if !ok {
			return false
		}
		if u16(element) == actionExperimenter && len(element) >= niciraHeader && u16(element[8:]) == nxCT {
			return true
		}
		b = rest
	}
}

func (a CT) appendText(b []byte) []byte {
	b = append(b, "ct("...)
	empty := len(b)
	if a.Commit {
		b = append(b, "commit,"...)
	}
	if a.Force {
		b = append(b, "force,"...)
	}
	if a.Table != CTNoTable {
		b = append(strconv.AppendUint(append(b, "table="...), uint64(a.Table), 10), ',')
	}
	if !a.ZoneFrom.isNone() {
		b = append(a.ZoneFrom.appendText(append(b, "zone="...)), ',')
	} else if a.Zone != 0 {
		b = append(strconv.AppendUint(append(b, "zone="...), uint64(a.Zone), 10), ',')
	}
	exec := a.Exec
	if len(exec) > 0 && exec[0].Kind() == KindNAT { // Open vSwitch prints the first nat outside of exec(…)
		b = append(exec[0].appendText(b), ',')
		exec = exec[1:]
	}
	if len(exec) > 0 {
		b = append(appendActionsText(append(b, "exec("...), exec), "),"...)
	}
	switch a.ALG {
	case 0:
	case algFTP:
		b = append(b, "alg=ftp,"...)
	case algTFTP:
		b = append(b, "alg=tftp,"...)
	default:
		b = append(strconv.AppendUint(append(b, "alg="...), uint64(a.ALG), 10), ',')
	}
	if len(b) > empty {
		b = b[:len(b)-1]
	}
	return append(b, ')')
}

// parseCT parses the arguments of ct(…).
func parseCT(s string) (Action, error) {
	a := CT{Table: CTNoTable}
	err := eachWord(s, func(w word) error { return a.argument(w) })
	if err == nil {
		err = a.check()
	}
	if err != nil {
		return nil, fmt.Errorf("ct(%s): %w", excerpt(s), err)
	}
	return a, nil
}

func (a *CT) argument(w word) error {
	switch w.key {
	case "commit":
		a.Commit = true
		return w.plain()
	case "force":
		a.Force = true
		return w.plain()
	case "table":
		n, err := w.uint(8)
		if err == nil && n == CTNoTable {
			err = fmt.Errorf("table %d does not exist", n)
		}
		a.Table = uint8(n)
		return err
	case "zone":
		if w.value == "" || w.value[0] < '0' || w.value[0] > '9' { // nearly all
			var err error
			a.ZoneFrom, err = ParseSubfield(w.value)
			return err
		}
		n, err := w.uint(16)
		a.Zone = uint16(n)
		return err
	case "nat":
		nat, err := parseNAT(w)
		a.Exec = append(a.Exec, nat)
		return err
	case "exec":
		exec, err := parseExec(w.value)
		a.Exec = append(a.Exec, exec...)
		return err
	case "alg":
		switch w.value {
		case "ftp":
			a.ALG = algFTP
			return nil
		case "tftp":
			a.ALG = algTFTP
			return nil
		}
		n, err := w.uint(16)
		a.ALG = uint16(n)
		return err
	}
	return fmt.Errorf("%q is not an argument of ct", w.key)
}

// CTClear removes the conntrack state of the packet (NXAST_CT_CLEAR).
type CTClear struct{}

// Kind implements Action.
func (CTClear) Kind() Kind { return KindCTClear }

func (CTClear) appendWire(b []byte) ([]byte, error) {
	return zeros(appendNicira(b, nxCTClear, 16), 6), nil
}

func (CTClear) appendText(b []byte) []byte { return append(b, "ct_clear"...) }

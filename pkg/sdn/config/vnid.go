package config

import (
	"fmt"
	"strconv"
)

// VNID is the ID of a virtual network, in VXLAN headers and in reg0: 24 bits (VNI in RFC 7348).
type VNID uint32

// Valid VNIDs are GlobalVNID, and MinVNID to MaxVNID for tenants. OpenShift SDN reserves 1 to 9.
const (
	GlobalVNID VNID = 0 // is not isolated from any other VNID
	MinVNID    VNID = 10
	MaxVNID    VNID = 1<<24 - 1
)

// IsGlobal reports whether the VNID is GlobalVNID.
func (v VNID) IsGlobal() bool { return v == GlobalVNID }

// String returns the decimal number, as in netid. (ovs-ofctl prints hexadecimal numbers.)
func (v VNID) String() string { return strconv.FormatUint(uint64(v), 10) }

// ParseVNID parses a decimal VNID.
func ParseVNID(s string) (VNID, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a VNID: write 0, or a number from %d to %d", Shorten(s), MinVNID, MaxVNID)
	}
	return CheckVNID(uint32(n))
}

// CheckVNID returns the number as a VNID, or an error if it is not a valid one.
func CheckVNID(n uint32) (VNID, error) {
	if v := VNID(n); v.IsGlobal() || MinVNID <= v && v <= MaxVNID {
		return v, nil
	}
	return 0, fmt.Errorf("%d is not a VNID: write 0 (global), or a number from %d to %d", n, MinVNID, MaxVNID)
}

package config

import (
	"fmt"
	"strconv"
)

// VNID is the number of a virtual network, as VXLAN and reg0 carry it: 24 bits (RFC 7348 calls it VNI).
type VNID uint32

// The VNIDs that there are: GlobalVNID, and MinVNID to MaxVNID for tenants. OpenShift SDN reserves those between.
const (
	GlobalVNID VNID = 0 // reaches all, and all reach it
	MinVNID    VNID = 10
	MaxVNID    VNID = 1<<24 - 1
)

// IsGlobal says whether the VNID reaches all others.
func (v VNID) IsGlobal() bool { return v == GlobalVNID }

// String is decimal, as people write VNIDs. (OpenFlow shows them in hexadecimal.)
func (v VNID) String() string { return strconv.FormatUint(uint64(v), 10) }

// ParseVNID reads a decimal VNID.
func ParseVNID(s string) (VNID, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is no VNID: write 0, or a number from %d to %d", s, MinVNID, MaxVNID)
	}
	return CheckVNID(uint32(n))
}

// CheckVNID returns the number as a VNID if it is one.
func CheckVNID(n uint32) (VNID, error) {
	if v := VNID(n); v.IsGlobal() || MinVNID <= v && v <= MaxVNID {
		return v, nil
	}
	return 0, fmt.Errorf("%d is no VNID: write 0 (global), or a number from %d to %d", n, MinVNID, MaxVNID)
}

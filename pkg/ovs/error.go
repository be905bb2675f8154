package ovs

import (
	"errors"
	"fmt"
	"strings"
)

// FlowError reports that Open vSwitch, or the client for it, rejected a flow. No change of the transaction was applied.
type FlowError struct {
	Flow   string // the text of the flow, see FlowText and Key.String
	Key    Key    // of that flow
	Reason string // an OpenFlow error such as OFPBAC_BAD_OUT_GROUP, or a sentence
}

func (e *FlowError) Error() string {
	return fmt.Sprintf("Open vSwitch rejected flow %s: %s", shorten(e.Flow), e.Reason)
}

// maxTextLen is the maximum length of a flow or group in an error message in bytes. Flows may have 100 KB.
const maxTextLen = 500

// shorten truncates an ASCII text and appends its full length.
func shorten(text string) string {
	if len(text) <= maxTextLen {
		return text
	}
	return fmt.Sprintf("%s… (%d bytes in all)", text[:maxTextLen], len(text))
}

// GroupError reports that Open vSwitch rejected a group. No change of the transaction was applied.
type GroupError struct {
	ID     uint32
	Group  string // the text of the group, see GroupText
	Reason string // an OpenFlow error or a sentence
}

func (e *GroupError) Error() string {
	return fmt.Sprintf("Open vSwitch rejected group %s: %s", shorten(e.Group), e.Reason)
}

// MeterError reports that Open vSwitch rejected a meter. No change of the transaction was applied.
type MeterError struct {
	ID     uint32
	Meter  string // the text of the meter, see MeterText
	Reason string // an OpenFlow error or a sentence
}

func (e *MeterError) Error() string {
	return fmt.Sprintf("Open vSwitch rejected meter %s: %s", e.Meter, e.Reason)
}

// PortError reports that vswitchd failed to set up the interface of a port.
type PortError struct {
	Port   string
	Reason string // from vswitchd, such as "could not open network device … (No such device)"
}

func (e *PortError) Error() string {
	return fmt.Sprintf("Open vSwitch rejected port %s: %s", e.Port, e.Reason)
}

// IsPortError reports whether err contains a PortError. Retry only after the cause in Reason has changed.
func IsPortError(err error) bool {
	var e *PortError
	return errors.As(err, &e)
}

type datapathMismatchError struct {
	bridge    string
	got, want string
}

func (e *datapathMismatchError) Error() string {
	return fmt.Sprintf("bridge %s has datapath type %q, wanted is %q: changing it would drop every port; drain the node, "+
		"remove the bridge with `ovs-vsctl del-br %s` and start again", e.bridge, e.got, e.want, e.bridge)
}

// NewDatapathMismatch returns an error that satisfies IsDatapathMismatch.
func NewDatapathMismatch(bridge, got, want string) error {
	return &datapathMismatchError{bridge: bridge, got: got, want: want}
}

// IsDatapathMismatch reports whether the bridge exists with another datapath type than the wanted one.
func IsDatapathMismatch(err error) bool {
	var e *datapathMismatchError
	return errors.As(err, &e)
}

type foreignBridgeError struct {
	bridge string
	ports  []string
}

func (e *foreignBridgeError) Error() string {
	return fmt.Sprintf("bridge %s has ports of another owner and was not changed: %s. The pod network needs bridge %s for itself; "+
		"move these ports to a bridge of another name, and the agent adopts %s", e.bridge, shorten(strings.Join(e.ports, ", ")), e.bridge, e.bridge)
}

// IsForeignBridge reports whether the bridge has ports of another owner and was therefore neither changed nor deleted.
func IsForeignBridge(err error) bool {
	var e *foreignBridgeError
	return errors.As(err, &e)
}

// noBridgeError reports that the bridge does not exist.
type noBridgeError struct{ bridge string }

func (e *noBridgeError) Error() string {
	return fmt.Sprintf("bridge %s does not exist; EnsureBridge creates it", e.bridge)
}

// NewNoBridge returns an error that satisfies IsNoBridge.
func NewNoBridge(bridge string) error { return &noBridgeError{bridge} }

// IsNoBridge reports whether the bridge does not exist.
func IsNoBridge(err error) bool {
	var e *noBridgeError
	return errors.As(err, &e)
}

// unavailableError reports that Open vSwitch does not run or does not answer.
type unavailableError struct {
	err error
}

func (e *unavailableError) Error() string {
	return fmt.Sprintf("Open vSwitch does not answer (check that ovsdb-server and ovs-vswitchd run): %v", e.err)
}

func (e *unavailableError) Unwrap() error {
	return e.err
}

// NewUnavailable returns an error that wraps err and satisfies IsUnavailable.
func NewUnavailable(err error) error { return &unavailableError{err} }

// IsUnavailable reports whether Open vSwitch did not run or did not answer in time. The change may or may not have been made; the
// caller may retry.
func IsUnavailable(err error) bool {
	var e *unavailableError
	return errors.As(err, &e)
}

// NeededVersion returns the first Open vSwitch version that can flush single connections for a controller (NXT_CT_FLUSH).
func NeededVersion() [2]int { return [2]int{3, 1} }

// versionError reports that the version of Open vSwitch is not supported.
type versionError struct {
	is string
}

func (e *versionError) Error() string {
	need := NeededVersion()
	return fmt.Sprintf("Open vSwitch is %s, but %d.%d or newer is needed: upgrade it and restart ovs-vswitchd", e.is, need[0], need[1])
}

// NewTooOld returns an error that satisfies IsTooOld. is is the version that the switch reports.
func NewTooOld(is string) error { return &versionError{is: is} }

// IsTooOld reports whether the running Open vSwitch is too old. A retry does not help.
func IsTooOld(err error) bool {
	var e *versionError
	return errors.As(err, &e)
}

// IsRefusal reports whether Open vSwitch, or the client for it, rejected a part of a transaction.
func IsRefusal(err error) bool {
	var flow *FlowError
	var group *GroupError
	var meter *MeterError
	return errors.As(err, &flow) || errors.As(err, &group) || errors.As(err, &meter)
}

package ovs

import (
	"errors"
	"fmt"
	"strings"
)

// FlowError says that the switch, or the program that talks to it, refused a flow. Nothing of the transaction that
// held it was applied.
type FlowError struct {
	Flow   string // the flow's text, as FlowText or Key.String gives it
	Key    Key    // of that flow
	Reason string // Open vSwitch's: OFPBAC_BAD_OUT_GROUP, or a sentence
}

func (e *FlowError) Error() string {
	return fmt.Sprintf("Open vSwitch refused the flow %s: %s", readable(e.Flow), e.Reason)
}

// mostText is how much of a flow's or a group's text a person reads, in bytes: the match, and what the actions begin with. There are flows of 100 KB.
const mostText = 500

// readable leaves out the end of a text that nobody would read, and says how long it was. Such texts are ASCII.
func readable(text string) string {
	if len(text) <= mostText {
		return text
	}
	return fmt.Sprintf("%s… (%d bytes in all)", text[:mostText], len(text))
}

// GroupError says that the switch refused a group. Nothing of the transaction that held it was applied.
type GroupError struct {
	ID     uint32
	Group  string // the group's text, as Group.String gives it
	Reason string // Open vSwitch's, or a sentence
}

func (e *GroupError) Error() string {
	return fmt.Sprintf("Open vSwitch refused the group %s: %s", readable(e.Group), e.Reason)
}

// MeterError says that the switch refused a meter. Nothing of the transaction that held it was applied.
type MeterError struct {
	ID     uint32
	Meter  string // the meter's text, as Meter.String gives it
	Reason string // Open vSwitch's, or a sentence
}

func (e *MeterError) Error() string {
	return fmt.Sprintf("Open vSwitch refused the meter %s: %s", e.Meter, e.Reason)
}

// PortError says that vswitchd could not set up a port's interface.
type PortError struct {
	Port   string
	Reason string // vswitchd's, such as "could not open network device … (No such device)"
}

func (e *PortError) Error() string {
	return fmt.Sprintf("Open vSwitch refused the port %s: %s", e.Port, e.Reason)
}

// IsPortError reports whether vswitchd refused a port. A retry helps only after what it names has changed.
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

// IsDatapathMismatch reports whether a bridge exists with another datapath type than the wanted one.
func IsDatapathMismatch(err error) bool {
	var e *datapathMismatchError
	return errors.As(err, &e)
}

type foreignBridgeError struct {
	bridge string
	ports  []string
}

func (e *foreignBridgeError) Error() string {
	return fmt.Sprintf("bridge %s is somebody else's and stays as it is, since it has ports that are not the pod network's: %s. The pod network needs %s for itself: "+
		"move these ports to a bridge of another name, and it takes %s over", e.bridge, readable(strings.Join(e.ports, ", ")), e.bridge, e.bridge)
}

// IsForeignBridge reports whether the bridge is another's, so that it was neither changed nor deleted.
func IsForeignBridge(err error) bool {
	var e *foreignBridgeError
	return errors.As(err, &e)
}

// noBridgeError reports that the bridge does not exist.
type noBridgeError struct{ bridge string }

func (e *noBridgeError) Error() string {
	return fmt.Sprintf("bridge %s does not exist; EnsureBridge makes it", e.bridge)
}

// IsNoBridge reports whether the bridge does not exist.
func IsNoBridge(err error) bool {
	var e *noBridgeError
	return errors.As(err, &e)
}

// unavailableError says that Open vSwitch does not run or does not answer.
type unavailableError struct {
	err error
}

func (e *unavailableError) Error() string {
	return fmt.Sprintf("Open vSwitch does not answer (check that ovsdb-server and ovs-vswitchd run): %v", e.err)
}

func (e *unavailableError) Unwrap() error {
	return e.err
}

// IsUnavailable reports whether Open vSwitch was not there or did not answer in time, so that the same call may succeed
// later. Whether the change was made is then unknown.
func IsUnavailable(err error) bool {
	var e *unavailableError
	return errors.As(err, &e)
}

// versionError says that Open vSwitch is too old.
type versionError struct {
	is string
}

func (e *versionError) Error() string {
	need := neededVersion()
	return fmt.Sprintf("Open vSwitch is %s, but %d.%d or newer is needed: upgrade it and restart ovs-vswitchd", e.is, need[0], need[1])
}

// IsTooOld reports whether the running Open vSwitch lacks something that is needed. Waiting does not help.
func IsTooOld(err error) bool {
	var e *versionError
	return errors.As(err, &e)
}

// isRefusal reports whether the switch, or the way to it, has refused a part of a transaction.
func isRefusal(err error) bool {
	var flow *FlowError
	var group *GroupError
	var meter *MeterError
	return errors.As(err, &flow) || errors.As(err, &group) || errors.As(err, &meter)
}

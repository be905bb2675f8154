// Package ovs is everything that touches Open vSwitch: one bridge, its ports in OVSDB and its flows in OpenFlow.
//
// The flow model and its text form are those of github.com/digitalocean/go-openvswitch; what that lacks is added here
// by implementing its Match and Action interfaces.
package ovs

import (
	"context"
	"fmt"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
)

// The flow model.
type (
	Flow   = goovs.Flow
	Match  = goovs.Match
	Action = goovs.Action
)

// Interface programs one bridge. Implementations are safe for concurrent use. Every call ends when its
// context does, with an error that wraps the context's. When Open vSwitch does not run or does not answer, the error
// satisfies IsUnavailable.
type Interface interface {
	// EnsureBridge creates the bridge in fail mode secure when it is missing, and corrects what differs. Nothing is written
	// when nothing does. Flows stay, unless the fail mode had to be corrected: vswitchd flushes them then. A bridge that
	// somebody else made is taken over if it has no ports but Bridge.Ports and those marked with Bridge.PortID, else the error names the
	// others (IsForeignBridge) and nothing is changed. It never deletes a bridge: a datapath type other than the wanted one is an
	// error (IsDatapathMismatch), since changing it would drop every port.
	EnsureBridge(ctx context.Context, b Bridge) error

	// ListPorts returns the bridge's ports, the bridge's own local port excepted, sorted by name.
	ListPorts(ctx context.Context) ([]Port, error)

	// AddPort adds the port, or corrects an existing one of that name, and returns it once vswitchd has given it an
	// OpenFlow port number. Options and external IDs replace the former ones. The existing port of a system device is made
	// anew, perhaps with another number: the device may have been replaced under its name, which vswitchd does not notice.
	// When vswitchd refuses the interface, or gives it another number than the wanted one, the port is removed again
	// and the error says why (IsPortError). When vswitchd does not answer in time, a new port is taken back.
	AddPort(ctx context.Context, p Port) (Port, error)

	// DeletePort removes the port. A port that is not there is no error.
	DeletePort(ctx context.Context, name string) error

	// NewTransaction returns an empty transaction for Run.
	NewTransaction() *Transaction

	// Run applies the transaction in its phases: meters are set; one atomic bundle changes groups and flows; meters are deleted and
	// connections forgotten. A flow, group or meter that the switch refuses is named in the error (*FlowError, *GroupError,
	// *MeterError), and nothing of the transaction is there then. After any other error, the end of the context included, any part of it
	// may have been applied.
	Run(ctx context.Context, tx *Transaction) error

	// Replace makes the bridge's flows, groups and meters equal to the wanted ones, with one transaction that holds only the
	// difference, and says what that was. Flows that are already there keep their counters. Two of one key are an error
	// (*FlowError, *GroupError, *MeterError). Errors are as Run's.
	Replace(ctx context.Context, want State) (Difference, error)

	// ListConnections calls each for every connection that the switch tracks in the zones, none of which may be 0, in no order. Those
	// that come and go meanwhile may be missing, and so are those that Transaction.Forget refuses: ICMPv6. each must not block:
	// vswitchd keeps what was not read yet. After an error some connections have been listed, after one about a line that nobody
	// understands all others.
	ListConnections(ctx context.Context, zones Zones, each func(Connection)) error
}

// State is everything that OpenFlow puts on a bridge.
type State struct {
	Flows  []*Flow
	Groups []Group
	Meters []Meter
	// Learned flows are the switch's own: they are neither wanted nor foreign, so that Replace leaves them.
	Learned []Learned
}

// Learned stands for the flows that `learn` actions add to the table with the cookie.
type Learned struct {
	Table  int
	Cookie uint64
}

// Difference is what Replace had to change: flows, groups and meters together.
type Difference struct {
	Missing int // wanted, and not there
	Altered int // there, but not as wanted
	Foreign int // there, and not wanted
	// Examples are the texts of some that were altered or foreign, as they were; what the codec does not know is unknown(0x…) in it.
	Examples []string
}

// maxExamples bounds Difference.Examples: enough to recognize who writes to the bridge.
const maxExamples = 10

func (d *Difference) example(object fmt.Stringer) {
	if len(d.Examples) < maxExamples {
		d.Examples = append(d.Examples, object.String())
	}
}

// Changes returns how many flows, groups and meters differed.
func (d Difference) Changes() int {
	return d.Missing + d.Altered + d.Foreign
}

// Bridge is the wanted state of the bridge.
type Bridge struct {
	Name         string
	DatapathType string         // "system" or "netdev"
	TableNames   map[int]string // shown by `ovs-ofctl --names`; must be unique, or OVS shows none

	// What tells a bridge that an earlier version made from somebody else's:
	Ports  []string // names of ports that the caller adds
	PortID string   // key in the external IDs of all other ports that it adds; "": there are none
}

// Port is a port with its one interface.
type Port struct {
	Name        string
	Type        string            // interface type: "" for a system device such as a veth, "internal", "vxlan"
	Options     map[string]string // interface options, such as remote_ip=flow
	OFPort      int               // wanted number in AddPort (0: any); given number in results, -1 if vswitchd could not open the device
	MTURequest  int               // bytes; 0: leave alone
	MAC         string            // pinned address of an internal port; "": leave alone
	ExternalIDs map[string]string // what the agent remembers of the port
	Error       string            // vswitchd's reason when OFPort is -1
}

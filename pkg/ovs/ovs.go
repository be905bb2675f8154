// Package ovs is the model of one Open vSwitch bridge: its ports, flows, groups, meters and connections, the Interface that programs them,
// and a fake of it for tests. It does no I/O; package native connects to Open vSwitch.
//
// The flow model and its text form are those of github.com/digitalocean/go-openvswitch. This package adds further Match and Action
// implementations.
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

// Interface programs one bridge. Implementations are safe for concurrent use. A call ends when its context does, with an error that wraps
// the context's error. If Open vSwitch does not run or does not answer, the error satisfies IsUnavailable.
type Interface interface {
	// EnsureBridge creates the bridge with fail mode secure if it does not exist, and corrects properties that differ; otherwise it writes
	// nothing. Flows are retained, except if the fail mode has to be corrected: vswitchd then flushes them. It adopts a bridge that it did
	// not create if the bridge has no ports but Bridge.Ports and those marked with Bridge.PortID. Otherwise it changes nothing and
	// returns an error with the names of the other ports (IsForeignBridge). It never deletes a bridge: a different datapath type is an
	// error (IsDatapathMismatch), because changing it would drop every port.
	EnsureBridge(ctx context.Context, b Bridge) error

	// ListPorts returns the bridge's ports except the local port, sorted by name.
	ListPorts(ctx context.Context) ([]Port, error)

	// AddPort adds a port, or corrects the existing port of that name, and returns it once vswitchd has assigned an OpenFlow port number.
	// Options and external IDs replace the existing ones. It re-creates the port of a system device, perhaps with another number: the
	// device may have been replaced by another of the same name, which vswitchd does not notice. If vswitchd rejects the interface or
	// assigns another number than the wanted one, AddPort removes the port and returns the reason (IsPortError). If vswitchd does not
	// answer in time, AddPort removes a port that it has added. A system device that replaces another of its name may be down afterwards.
	AddPort(ctx context.Context, p Port) (Port, error)

	// DeletePort removes the port. It is not an error if the port does not exist.
	DeletePort(ctx context.Context, name string) error

	// NewTransaction returns an empty transaction for Run.
	NewTransaction() *Transaction

	// Run applies the transaction in phases: it sets meters; changes groups and flows in one atomic bundle; deletes meters and flushes
	// connections. It may return before meters are deleted; later calls are applied after it. If Open vSwitch rejects a flow, group or meter, the error identifies
	// it (*FlowError, *GroupError, *MeterError), and no change of the transaction is applied. After any other error, that of the context included, any part of it
	// may have been applied.
	Run(ctx context.Context, tx *Transaction) error

	// Replace makes the flows, groups and meters of the bridge equal to the wanted ones, with one transaction that contains only the
	// differences, and returns these. Unchanged flows retain their counters. Two wanted elements with the same key are an error
	// (*FlowError, *GroupError, *MeterError). Other errors are those of Run.
	Replace(ctx context.Context, want State) (Difference, error)

	// AwaitDatapath returns when the datapath uses the flows of all previous transactions. Until vswitchd has revalidated the datapath flows,
	// packets may be handled, and connections committed, by earlier flows.
	AwaitDatapath(ctx context.Context) error

	// AwaitEvents returns when the receivers of events know of all flows that Open vSwitch deleted by itself before the call, while it was
	// connected (native.FlowsLost). A dump of the flows may precede the event about them.
	AwaitEvents(ctx context.Context) error

	// ListConnections calls each for the connections in the zones, in no particular order; zone 0 is not allowed. It may miss connections
	// that begin or end during the call, and it omits those that Transaction.Flush rejects (ICMPv6). each must not block: vswitchd
	// buffers the output that was not read. An error means that some connections may be missing; after a line that cannot be parsed, all
	// other connections were listed.
	ListConnections(ctx context.Context, zones Zones, each func(Connection)) error

	Injector
}

// State is the wanted flows, groups and meters of a bridge.
type State struct {
	Flows  []*Flow
	Texts  []TextFlow // more flows
	Groups []Group
	Meters []Meter

	// Learned are the flows that learn actions add. Replace retains those that are not wanted.
	Learned LearnedFlows
}

// NumFlows returns the number of flows.
func (s State) NumFlows() int { return len(s.Flows) + len(s.Texts) }

// Flow returns the flow with an index less than NumFlows.
func (s State) Flow(i int) *Flow {
	if i < len(s.Flows) {
		return s.Flows[i]
	}
	return s.Texts[i-len(s.Flows)].Flow()
}

// LearnedFlows are the flows of a table whose cookies equal Cookie in the bits of CookieMask. The zero value is none. Other flows of the table were not learned: those of an
// earlier version, in which it had another purpose, or of another program.
type LearnedFlows struct {
	Table              int
	Cookie, CookieMask uint64
}

// Include reports whether a flow with the cookie in the table is one of them.
func (l LearnedFlows) Include(table int, cookie uint64) bool {
	return l.Table > 0 && table == l.Table && cookie&l.CookieMask == l.Cookie
}

// Difference counts the flows, groups and meters that Replace changed.
type Difference struct {
	Missing int // wanted, but not on the switch
	Altered int // on the switch, but different from the wanted ones
	Foreign int // on the switch, but not wanted
	// Examples are the texts of some altered or foreign elements before the change; parts that the codec does not support are unknown(0x…).
	Examples []string
}

// maxExamples bounds Difference.Examples: enough to recognize the program that writes to the bridge.
const maxExamples = 10

// AddExample adds the text of an object that was altered or foreign, up to maxExamples of them.
func (d *Difference) AddExample(object fmt.Stringer) {
	if len(d.Examples) < maxExamples {
		d.Examples = append(d.Examples, object.String())
	}
}

// Add adds the differences of a later comparison. Examples are those of the last comparison that has some.
func (d *Difference) Add(later Difference) {
	d.Missing += later.Missing
	d.Altered += later.Altered
	d.Foreign += later.Foreign
	if len(later.Examples) > 0 {
		d.Examples = later.Examples
	}
}

// Changes returns the number of flows, groups and meters that differed.
func (d Difference) Changes() int {
	return d.Missing + d.Altered + d.Foreign
}

// Bridge is the wanted state of the bridge.
type Bridge struct {
	Name         string
	DatapathType string         // DatapathSystem or DatapathNetdev
	TableNames   map[int]string // names for `ovs-ofctl --names`; OVS shows none of them unless they are unique

	// Ports and PortID distinguish a bridge that an earlier version created from that of another owner.
	Ports  []string // names of ports of the pod network
	PortID string   // key in the external IDs of all other ports of the pod network; "": none
}

// Port is a port with one interface.
type Port struct {
	Name        string
	Type        string            // interface type: "" for a system device such as a veth, "internal", "vxlan"
	Options     map[string]string // interface options, such as remote_ip=flow
	OFPort      int               // in AddPort the wanted number (0: any); in results the assigned number, -1 if vswitchd could not open the device
	MTURequest  int               // bytes; 0: unchanged
	MAC         string            // address of an internal port; "": unchanged
	ExternalIDs map[string]string // the agent's metadata of the port
	Error       string            // vswitchd's error if OFPort is -1
}

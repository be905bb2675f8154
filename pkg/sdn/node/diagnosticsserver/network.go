package diagnosticsserver

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podcapture"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podprobe"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Network has the sources of the answers about one set-up of the node's network.
type Network struct {
	Mode       config.Mode
	HostSubnet *config.HostSubnet
	Store      *flowstore.Store
	Switch     Switch
	// SwitchHealthy returns why Open vSwitch does not answer, nil if it does. It reports what the last check found.
	SwitchHealthy func() error
	Pods          func() []sandbox.Pod // sorted
	Addrs         func() ipam.Usage
	Drops         func() []diagnostics.NodeDrop
	Peers         func(most int) (problems []diagnostics.PeerProblem, nodes, answering int) // as pinger.Problems

	EgressIPsNotPlaced func() []diagnostics.EgressIPNotPlaced // nil in mode subnet

	HasEgressPolicy func(namespace, name string) bool // whether the EgressNetworkPolicy exists
	EgressPolicies  func(namespace string) []string   // the EgressNetworkPolicies of a namespace
	// UnresolvedNames are DNS names of a namespace's EgressNetworkPolicies without an address, and the number of those beyond most.
	UnresolvedNames func(namespace string, most int) (names []string, more int)

	Node         pipeline.Node
	HostSubnetOf func(node string) (*config.HostSubnet, bool) // of another node
	NodeOf       func(hostIP netip.Addr) (node string, ok bool)

	Policies Policies // nil in mode subnet

	Host    func(context.Context, hostnet.HostPacket) (hostnet.HostPath, error) // as Firewall.Path
	Probe   func(context.Context, podprobe.Probe) (diagnostics.ProbeStatus, error)
	Capture func(podcapture.Capture) (CaptureSession, error)
}

// CaptureSession is a capture that has begun (*podcapture.Session).
type CaptureSession interface {
	Run(context.Context, podcapture.Output) error
	Close() error
}

// Switch reads the flows and the ports' counters of the bridge, and traces packets through them (*native.Native).
type Switch interface {
	DumpFlows(context.Context) ([]ovs.DumpedFlow, error)
	PortStats(context.Context) ([]openflow.PortStats, error)
	Trace(context.Context, ovs.TracePacket) (string, error)
	Traces(context.Context, []ovs.TracePacket) ([]ovs.TraceReport, error)
}

// Policies identifies the flows of policies (*networkpolicy.Policies).
type Policies interface {
	RuleIDs(namespace, name string) (ids []uint32, isolates, ok bool)
	RuleNames(ids []uint32) []string
	Isolators(pod netip.Addr, egress bool, most int) (names []string, more int)
	NameOf(addr netip.Addr) (namespace, name string, ok bool)
}

// ready returns the network, or the reason why there is none.
func (h *Handler) ready() (*Network, error) {
	n := h.network.Load()
	if n != nil && !n.Store.Statistics().LastWrite.IsZero() {
		return n, nil
	}
	if err := h.options.Ready(); err != nil {
		return nil, failf(http.StatusServiceUnavailable, "the network of node %s is not set up: %w", h.options.NodeName, err)
	}
	return nil, failf(http.StatusServiceUnavailable, "the network of node %s is being set up; retry", h.options.NodeName)
}

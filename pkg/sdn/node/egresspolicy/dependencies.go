package egresspolicy

import (
	"context"
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressstatus"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/dnsresolver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Options are the dependencies of the feature. All are required but Events and OutsideEndpoints.
type Options struct {
	Node     pipeline.Node
	Policies cache.SharedIndexInformer // EgressNetworkPolicies of all namespaces
	Store    *flowstore.Store
	Bridge   Bridge
	Servers  dnsresolver.Servers

	// HostSubnets has the addresses of nodes, which DNS names do not allow.
	HostSubnets cache.SharedIndexInformer

	// RulesDir stores the last valid rules with DNS names over a restart. It must be on a file system that a reboot clears, as it clears the flows.
	RulesDir string

	NodeName string // of this node, as in the status of policies
	Status   Status
	Events   Events // nil: none

	// OutsideEndpoints returns the endpoints by which packets to an address and port of a service are evaluated; nil: none has any. The zero address stands for
	// node ports.
	OutsideEndpoints func(addr netip.Addr, protocol goovs.Protocol, port uint16) pipeline.OutsideEndpoints
}

// Bridge reads flows (*native.Native).
type Bridge interface {
	DumpFlows(ctx context.Context) ([]ovs.DumpedFlow, error)
}

// Status reads and writes the status of policies (egressstatus.Client).
type Status interface {
	Get(ctx context.Context, namespace, name string) (*egressstatus.Status, error)
	Patch(ctx context.Context, namespace, name string, status egressstatus.Status) (*egressstatus.Status, error)
}

// Events writes Events (*nodestatus.Reporter).
type Events interface {
	WarnEgressNetworkPolicy(o *networkv1.EgressNetworkPolicy, reason, message string)
}

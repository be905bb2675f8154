// Package egressips gives pods of namespaces with egress IPs their source address outside of the cluster. It publishes the egress IPs of the namespaces that have pods
// on this node, installs the flows of all egress IPs in use, and hands those that this node hosts to the host. Modes multitenant and networkpolicy. Docs:
// docs/egress-ips.md.
package egressips

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressip"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// workers bounds how many changes wait for the switch at once; the store sends them in one bundle.
const workers = 16

// Options are the dependencies of the feature. All are required.
type Options struct {
	Node     pipeline.Node
	NodeName string

	NetNamespaces cache.SharedIndexInformer
	HostSubnets   cache.SharedIndexInformer
	Get           func(ctx context.Context, name string) (*networkv1.NetNamespace, error) // from the API server

	Store     *flowstore.Store
	Initial   *flowstore.Commit // of a change before the first write, with which the flows of the previous agent are replaced
	Bridge    Bridge            // that of Store
	Addresses Addresses

	// NamespaceOf returns the namespace of the pod in the cluster with the address; false if there is none.
	NamespaceOf func(addr netip.Addr) (namespace string, known bool)

	WarnNode func(reason, message string) // writes an Event on this node's Node
}

// Bridge reads the flows of the previous agent (*native.Native).
type Bridge interface {
	DumpFlows(ctx context.Context) ([]ovs.DumpedFlow, error)
}

// Addresses makes the host forward packets of the egress IPs that this node hosts (*egressaddress.Addresses). Before the first Set it retains those of the previous
// agent.
type Addresses interface{ Set(ips []netip.Addr) }

// EgressIPs is the feature.
type EgressIPs struct {
	options        Options
	node           pipeline.Node
	store          *flowstore.Store
	namespaceLoop  *reconcile.Loop
	hostSubnetLoop *reconcile.Loop
	addresses      *addresses

	mu         sync.Mutex // held during Store.Update, so that the store gets changes in their order
	table      *egressip.Table
	ips        map[netip.Addr]hosting // those with flows
	namespaces map[string]namespace   // those that ask for egress IPs, and those whose input was read
	vteps      map[string]netip.Addr  // last valid addresses of HostSubnets
	previous   map[uint64]bool        // pods that had an egress IP in the flows of the previous agent, by cookie
	primed     bool
	hosted     bool // this node has hosted an egress IP since the agent started
}

// hosting is an egress IP that one namespace uses and one node hosts.
type hosting struct {
	namespace string
	vtep      netip.Addr // of the node
	local     bool       // this node hosts it
	reachable bool
}

// namespace is what a NetNamespace asks for.
type namespace struct {
	object types.UID // of the NetNamespace
	uid    types.UID // of the Namespace; "" if unknown
	asks   bool
}

// New returns the feature. The informers need not have synced.
func New(o Options) (*EgressIPs, error) {
	e := &EgressIPs{
		options: o, node: o.Node, store: o.Store,
		table: egressip.New(append(slices.Clone(o.Node.ClusterNetworks), o.Node.ServiceNetwork)),
		ips:   map[netip.Addr]hosting{}, namespaces: map[string]namespace{}, vteps: map[string]netip.Addr{},
	}
	e.addresses = newAddresses(o)
	o.Store.Source(inputs.KindEgressIPs, flowstore.Source{Resolve: e.resolve, Missing: e.missing})
	o.Store.EvaluateConnections(pipeline.EgressIPZones(), e.evaluateConnections)
	e.namespaceLoop = reconcile.New("egress-ip-namespaces", e.reconciler(e.namespaceChange))
	e.hostSubnetLoop = reconcile.New("egress-ip-nodes", e.reconciler(e.hostSubnetChange))
	return e, errors.Join(e.namespaceLoop.Watch(o.NetNamespaces), e.hostSubnetLoop.Watch(o.HostSubnets))
}

// Prime stores the flows of all egress IPs without waiting for the switch, which must still have the flows of the previous agent. It waits for the informers: with a
// part of the objects, packets would leave with another source.
func (e *EgressIPs) Prime(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), e.options.NetNamespaces.HasSynced, e.options.HostSubnets.HasSynced) {
		return fmt.Errorf("wait for the caches of NetNamespaces and HostSubnets: %w", ctx.Err())
	}
	flows, err := e.options.Bridge.DumpFlows(ctx)
	if err != nil {
		return fmt.Errorf("read egress IPs of pods from the switch: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.previous = pipeline.WithEgressIP(flows)
	c := e.newChange()
	for _, name := range e.options.HostSubnets.GetIndexer().ListKeys() {
		e.hostSubnetChange(c, name)
	}
	for _, name := range e.options.NetNamespaces.GetIndexer().ListKeys() {
		e.namespaceChange(c, name)
	}
	c.send()
	c.log(ctx)
	e.primed = true
	return nil
}

// Run handles changes until the context ends.
func (e *EgressIPs) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { e.namespaceLoop.Run(ctx, workers) })
	parts.Go(func() { e.hostSubnetLoop.Run(ctx, workers) })
	parts.Go(func() { e.addresses.run(ctx) })
	parts.Wait()
}

// reconciler returns the function that applies the current state of an object, and returns when its flows are installed.
func (e *EgressIPs) reconciler(apply func(*change, string)) reconcile.Func {
	return func(ctx context.Context, name string) error {
		e.mu.Lock()
		c := e.newChange()
		apply(c, name)
		commits := c.send()
		e.mu.Unlock()
		c.log(ctx)
		if err := flowstore.WaitAll(ctx, commits); err != nil && ctx.Err() == nil {
			// The store tries again, and the Node's condition reports it.
			klog.FromContext(ctx).Error(err, "Switch rejected flows of egress IPs")
		}
		return nil
	}
}

// log reports entries that were ignored. The controller reports them to users.
func (c *change) log(ctx context.Context) {
	if err := errors.Join(c.faults...); err != nil {
		klog.FromContext(ctx).Info("Ignored invalid egress IPs", "err", err.Error())
	}
}

// Hosted returns the number of egress IPs that this node hosts, and of those that the host can't place.
func (e *EgressIPs) Hosted() (hosted, notPlaced int) { return e.addresses.count() }

// NotPlaced returns the egress IPs that this node hosts and the host can't place, sorted, with the causes.
func (e *EgressIPs) NotPlaced() []diagnostics.EgressIPNotPlaced { return e.addresses.notPlaced() }

// ReportPlacement reports why this host can't place an egress IP, in an Event for each new cause; nil: it is placed (egressaddress.Options.Report).
func (e *EgressIPs) ReportPlacement(ip netip.Addr, err error) { e.addresses.report(ip, err) }

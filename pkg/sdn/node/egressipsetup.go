package node

import (
	"context"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/egressaddress"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/egressips"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
)

// newEgressIPs creates the feature of egress IPs, except in mode subnet, and the part of the host that forwards packets of those that this node hosts.
func (n *nodeNetwork) newEgressIPs() (err error) {
	a, objects := n.agent, n.caches.Network.Network().V1()
	n.egressAddrs = egressaddress.New(egressaddress.Options{
		Uplink: n.underlay.Name, Reserved: append(slices.Clone(n.node.ClusterNetworks), n.node.ServiceNetwork), RouteMTU: n.mtu.Routes,
		Set: n.firewall.EgressIPs(), SetUplink: n.tun0.SetEgressUplink,
		Report: func(ip netip.Addr, err error) { n.egressIPs.ReportPlacement(ip, err) },
	})
	n.runs = append(n.runs, n.egressAddrs.Run)
	if n.policies == nil {
		n.store.Source(inputs.KindEgressIPs, flowstore.Source{Default: inputs.EgressIPs{}})
		n.egressAddrs.Set(nil) // removes those of another mode
		return nil
	}
	n.egressIPs, err = egressips.New(egressips.Options{
		Node: n.node, NodeName: a.NodeName, NetNamespaces: objects.NetNamespaces().Informer(), HostSubnets: objects.HostSubnets().Informer(), Get: a.getNetNamespace,
		Store: n.store, Initial: n.staticFlows, Bridge: a.bridge, Addresses: n.egressAddrs, NamespaceOf: n.policies.NamespaceOf, WarnNode: a.reporter.WarnNode,
	})
	if err != nil {
		return err
	}
	n.primes, n.runs = append(n.primes, n.egressIPs.Prime), append(n.runs, n.egressIPs.Run)
	return nil
}

func (a *agent) getNetNamespace(ctx context.Context, name string) (*networkv1.NetNamespace, error) {
	return a.network.NetworkV1().NetNamespaces().Get(ctx, name, metav1.GetOptions{})
}

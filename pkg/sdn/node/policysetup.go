package node

import (
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/discovery"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressstatus"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/caches"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/dnsresolver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/egresspolicy"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/networkpolicy"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// newPolicies creates the feature of network policies, except in mode subnet.
func (n *nodeNetwork) newPolicies(outside networkpolicy.OutsideEndpoints) (err error) {
	a, c := n.agent, n.caches
	if c.Policies == nil {
		n.store.Source(inputs.KindPodPolicies, flowstore.Source{Default: pipeline.PodPolicies{}})
		return nil
	}
	core, network := c.Policies.Core().V1(), c.Network.Network().V1()
	cluster := networkpolicy.Cluster{
		Pods:            core.Pods().Informer(),
		Namespaces:      core.Namespaces().Informer(),
		Nodes:           core.Nodes().Informer(),
		NetNamespaces:   network.NetNamespaces().Informer(),
		HostSubnets:     network.HostSubnets().Informer(),
		NetworkPolicies: c.Policies.Networking().V1().NetworkPolicies().Informer(),
		GetNamespace: func(ctx context.Context, name string) (*corev1.Namespace, error) {
			return a.kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		},

		OutsideEndpoints:      outside,
		HostNetworkNamespaces: a.HostNetworkNamespaces,
	}
	if c.ClusterPolicies != nil {
		cluster.ClusterPolicies = c.ClusterPolicies.Policy().V1alpha2().ClusterNetworkPolicies().Informer()
	}
	if n.policies, err = networkpolicy.New(n.node, cluster, n.store, a.bridge, a.reporter); err != nil {
		return err
	}
	n.podHandlers = append(n.podHandlers, n.policies)
	n.primes = append(n.primes, n.policies.Prime)
	n.runs = append(n.runs, n.policies.Run)
	return nil
}

// resolvConf has the DNS servers of the node, which pods with the DNS policy Default have, too.
const resolvConf = "/etc/resolv.conf"

// egressRulesDir is a directory next to the CNI socket with rules of EgressNetworkPolicies: /run is cleared when the machine restarts, as are flows.
const egressRulesDir = "egress-rules"

func (c Config) egressRulesDir() string {
	return filepath.Join(filepath.Dir(c.CNISocket), egressRulesDir)
}

// newEgressPolicies creates the feature of EgressNetworkPolicies.
func (n *nodeNetwork) newEgressPolicies(outside networkpolicy.OutsideEndpoints) (err error) {
	objects := n.caches.Network.Network().V1()
	n.egress, err = egresspolicy.New(egresspolicy.Options{
		NodeName: n.agent.NodeName, Status: egressstatus.Client{Network: n.agent.network},
		Node: n.node, Policies: objects.EgressNetworkPolicies().Informer(), HostSubnets: objects.HostSubnets().Informer(), Store: n.store, Bridge: n.agent.bridge,
		Servers: dnsresolver.ServersOf(resolvConf), OutsideEndpoints: outside, Events: n.agent.reporter,
		RulesDir: n.agent.egressRulesDir(),
	})
	if err != nil {
		return err
	}
	n.podHandlers = append(n.podHandlers, n.egress)
	n.primes, n.runs = append(n.primes, n.egress.Prime), append(n.runs, n.egress.Run)
	return nil
}

// awaitClusterPolicies returns errChanged once the API server has ClusterNetworkPolicies.
func (a *agent) awaitClusterPolicies(ctx context.Context, c *caches.Set) error {
	if c.Policies == nil || c.ClusterPolicies != nil {
		return nil
	}
	if err := discovery.AwaitClusterNetworkPolicies(ctx, a.policies); err != nil {
		return nil // the context has ended
	}
	return fmt.Errorf("%w: the API server has ClusterNetworkPolicies now", errChanged)
}

package node

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/balancer"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/idling"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/nodeports"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/servicehealth"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/servicenat"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// newBalancer creates the features of the mode in which the flows of br0 balance services: the balancer, the host's translation of external addresses, the
// health checks of load balancers, and with --unidle the packets that are held for idled services.
func (n *nodeNetwork) newBalancer(ctx context.Context) error {
	a := n.agent
	host, err := n.newServiceNAT(ctx)
	if err != nil {
		return err
	}
	options := balancer.Options{
		Node: n.node, NodeName: a.NodeName, Services: n.caches.Services.Core().V1().Services().Informer(), Slices: n.caches.EndpointSlices, Nodes: n.caches.OwnNode,
		Reserved: a.apiServers, Store: n.store, Events: a.reporter,
	}
	var rules servicehealth.Rules
	if host != nil {
		nodePorts := nodeports.New(nodeports.Options{Addresses: n.node.NodePortAddresses, WarnNode: a.reporter.WarnNode})
		options.Host, rules = hostServices{host, nodePorts}, host
		n.runs = append(n.runs, nodePorts.Run)
	}
	checks := servicehealth.New(servicehealth.Options{NodeName: a.NodeName, Flows: n.store, Rules: rules, Events: a.reporter})
	options.Follow = checks.SetService
	n.holdIdled(&options)
	b, err := balancer.New(options)
	if err != nil {
		return err
	}
	ports := newClientPortCheck(sysctl.Dir(a.SysctlDir), a.reporter.Warn)
	n.proxyCheck = newKubeProxyCheck(hostnet.KubeProxyRules, a.reporter.Warn)
	n.primes, n.runs = append(n.primes, b.Prime), append(n.runs, b.Run, checks.Run, ports.run, n.proxyCheck.run)
	if err := apiServerByService(a.apiServers, n.node.ServiceNetwork); err != nil {
		klog.FromContext(ctx).Error(err, "API server address is in the service network")
		a.reporter.Warn(eventreason.APIServerByService, err)
	}
	if host != nil {
		n.runs = append(n.runs, host.Run)
	}
	if a.ServiceHealthzAddr == "0" {
		return nil
	}
	server, err := servicehealth.NewNodeServer(servicehealth.NodeServerOptions{
		Address: a.ServiceHealthzAddr, NodeName: a.NodeName, Nodes: n.caches.OwnNode, Flows: n.store, Rules: rules, Events: a.reporter,
	})
	if err != nil {
		return err
	}
	n.runs = append(n.runs, server.Run)
	return nil
}

// holdIdled makes the balancer hold packets to idled services, with --unidle.
func (n *nodeNetwork) holdIdled(o *balancer.Options) {
	if !n.node.HoldsIdled {
		return
	}
	n.idling = idling.New(idling.Options{Bridge: n.agent.bridge, Events: n.agent.reporter, MTU: n.mtu.Link})
	o.Idling = n.idling
	n.runs = append(n.runs, n.idling.Run)
}

// hostServices are the parts that node ports and external addresses of services concern at the host. It is a balancer.Host.
type hostServices []interface {
	Set(service string, frontends []servicenat.Frontend)
}

// Set replaces the frontends of a service in all parts.
func (h hostServices) Set(service string, frontends []servicenat.Frontend) {
	for _, part := range h {
		part.Set(service, frontends)
	}
}

// newServiceNAT returns the host's translation of external addresses of services; nil if the host lacks what it needs.
func (n *nodeNetwork) newServiceNAT(ctx context.Context) (*servicenat.Translator, error) {
	err := servicenat.Supported(ctx)
	switch {
	case errors.Is(err, servicenat.ErrUnsupported):
		err = fmt.Errorf("node ports, external IPs and addresses of load balancers work for pods only, and node ports at the pod's own node only; programs bound to the "+
			"node's own IP reach no pods of other nodes by services; health checks of load balancers get 503: %w", err)
		klog.FromContext(ctx).Error(err, "Host does not support service rules")
		n.agent.reporter.Warn(eventreason.ServiceLimited, err)
		return nil, servicenat.Remove(ctx) // those of a previous agent
	case err != nil:
		return nil, fmt.Errorf("find out whether the host supports rules of services: %w", err)
	}
	return servicenat.New(servicenat.Options{
		Interface: hostnet.Tun0Name, ServiceNetwork: n.node.ServiceNetwork, ClusterNetworks: n.node.ClusterNetworks, Gateway: config.Gateway(n.node.Subnets[0]),
		FirstClientPort: pipeline.FirstClientPort, NodePortAddresses: n.node.NodePortAddresses, ForwardedDSCP: pipeline.ForwardedDSCP, WarnNode: n.agent.reporter.WarnNode,
	}), nil
}

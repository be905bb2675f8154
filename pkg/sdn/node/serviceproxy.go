package node

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"reflect"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// serviceProxy returns the program that balances services on this node: that of the flags, else the cluster's.
func (c Config) serviceProxy(network *config.Network) config.ServiceProxy {
	switch c.ServiceProxy {
	case config.ServiceProxyExternal, config.ServiceProxyOVS:
		return c.ServiceProxy
	}
	return clusterServiceProxy(network)
}

func clusterServiceProxy(network *config.Network) config.ServiceProxy {
	return cmp.Or(network.ServiceProxy, config.ServiceProxyExternal)
}

// logServiceProxy logs the service proxy of a set-up, and whether the flags override the cluster's.
func (a *agent) logServiceProxy(ctx context.Context, network *config.Network) {
	log, node, cluster := klog.FromContext(ctx), a.serviceProxy(network), clusterServiceProxy(network)
	if node == cluster {
		log.Info("Service proxy selected", "serviceProxy", node)
		return
	}
	log.Info("Flag --service-proxy overrides the ClusterNetwork", "serviceProxy", node, "cluster", cluster,
		"action", "remove --service-proxy when this node is to follow the ClusterNetwork")
}

// sameSetUp reports whether the networks need the same set-up of this node: they differ at most in what masquerade applies, or in a service proxy that the flags
// override.
func (c Config) sameSetUp(a, b *config.Network) bool {
	x, y := *a, *b
	x.NonMasqueradeCIDRs, y.NonMasqueradeCIDRs = nil, nil
	x.ServiceProxy, y.ServiceProxy = c.serviceProxy(a), c.serviceProxy(b)
	return reflect.DeepEqual(x, y)
}

// apiServerByService returns an error if the agent reaches the API server by an address of a service, for which br0 has flows only after the agent has read the cluster.
func apiServerByService(addrs []netip.AddrPort, services netip.Prefix) error {
	for _, a := range addrs {
		if services.Contains(a.Addr()) {
			return fmt.Errorf("the agent reaches the API server at %s, an address of the service network: without kube-proxy it does not answer after a restart of the "+
				"node; set kube-apiserver in network.env (--kube-apiserver) to the URL of the API server itself, and apply again", a)
		}
	}
	return nil
}

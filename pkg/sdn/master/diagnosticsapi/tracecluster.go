package diagnosticsapi

import (
	"context"
	"fmt"
	"net/netip"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/tracing"
)

// Limits of the EndpointSlices of a service that a trace reads. A slice has up to 1,000 endpoints, and annotations of any tenant.
const (
	maxSlices    = 100
	slicePage    = 4 // that are in memory at a time
	maxEndpoints = 1000
)

// traceCluster implements tracing.Cluster for one trace. It reads objects with the controller's own rights: no informer has all pods of the cluster.
type traceCluster struct {
	server *Server
	nodes  []Node // of all HostSubnets; nil: not read yet
}

// Network implements tracing.Cluster.
func (c *traceCluster) Network(ctx context.Context) (*config.Network, error) {
	o, err := c.server.Network.NetworkV1().ClusterNetworks().Get(ctx, networkv1.ClusterNetworkDefault, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get ClusterNetwork: %v", err) //nolint:errorlint // a missing ClusterNetwork is not a missing object of the user
	}
	return config.ActiveNetwork(o)
}

// Pod implements tracing.Cluster.
func (c *traceCluster) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return c.server.Kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Service implements tracing.Cluster.
func (c *traceCluster) Service(ctx context.Context, namespace, name string) (*corev1.Service, error) {
	return c.server.Kube.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Slices implements tracing.Cluster. One trace at a time reads slices.
func (c *traceCluster) Slices(ctx context.Context, namespace, service string, each func(*discoveryv1.EndpointSlice)) (isTruncated bool, err error) {
	select {
	case c.server.slices <- struct{}{}:
		defer func() { <-c.server.slices }()
	case <-ctx.Done():
		return false, fmt.Errorf("list EndpointSlices: %w", ctx.Err())
	}
	options := metav1.ListOptions{LabelSelector: labels.Set{discoveryv1.LabelServiceName: service}.String(), Limit: slicePage}
	for count, left := 0, maxEndpoints; ; {
		list, err := c.server.Kube.DiscoveryV1().EndpointSlices(namespace).List(ctx, options)
		if err != nil {
			return false, fmt.Errorf("list EndpointSlices: %w", err)
		}
		for i := range list.Items {
			slice := &list.Items[i]
			if count++; count > maxSlices || len(slice.Endpoints) > left {
				slice.Endpoints, isTruncated = slice.Endpoints[:min(left, len(slice.Endpoints))], true
			}
			left -= len(slice.Endpoints)
			each(slice)
			if isTruncated {
				return true, nil
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return false, nil
		}
	}
}

// Zone implements tracing.Cluster.
func (c *traceCluster) Zone(ctx context.Context, node string) string {
	o, err := c.server.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return o.Labels[corev1.LabelTopologyZone]
}

// Node implements tracing.Cluster.
func (c *traceCluster) Node(name string) (tracing.Node, error) {
	n, ok := c.server.nodes.Get(name)
	if !ok {
		return tracing.Node{}, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
	}
	return tracingNode(n), nil
}

// NodeAt implements tracing.Cluster.
func (c *traceCluster) NodeAt(addr netip.Addr) (tracing.Node, bool) {
	if c.nodes == nil {
		c.nodes = c.server.nodes.List()
	}
	for _, n := range c.nodes {
		if found := tracingNode(n); found.HostIP == addr || found.Subnet.Contains(addr) {
			return found, true
		}
	}
	return tracing.Node{}, false
}

// tracingNode returns the node for a trace. One with an invalid HostSubnet has no agent.
func tracingNode(n Node) tracing.Node {
	out := tracing.Node{Name: n.Name, HostIP: n.HostIP, NoAgent: n.NoAgent}
	if prefix, err := netip.ParsePrefix(n.Subnet); err == nil {
		out.Subnet = prefix
	} else if out.NoAgent == "" {
		out.NoAgent = "invalid HostSubnet: its subnet is not one"
	}
	return out
}

package datapath_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// cluster is a network whose nodes have the pipeline.
type cluster struct {
	*datapath.Network
	pipelines []*pipeline
}

// newCluster creates a cluster with the given numbers of pods on its nodes.
func newCluster(t *testing.T, pods ...int) *cluster {
	t.Helper()
	c := &cluster{Network: datapath.New(t, len(pods))}
	for i, n := range pods {
		for range n {
			c.Nodes[i].AddPod(t)
		}
		c.pipelines = append(c.pipelines, &pipeline{node: c.Nodes[i], nodes: c.Nodes})
	}
	c.apply(t)
	c.warmUp(t)
	return c
}

// warmUp makes everybody known to everybody, or the first packets would wait for an answer to ARP until a test has
// changed the flows.
func (c *cluster) warmUp(t *testing.T) {
	t.Helper()
	var all []*datapath.Socket
	for _, node := range c.Nodes {
		all = append(all, node.UDP(t, 0))
		for _, pod := range node.Pods {
			all = append(all, pod.UDP(t, 0))
		}
	}
	for i, a := range all {
		for _, b := range all[:i] {
			a.MustReach(t, b.Addr(), b)
			b.MustReach(t, a.Addr(), a)
		}
	}
}

// reset takes away all policies, services, VNIDs and connections.
func (c *cluster) reset(t *testing.T) {
	t.Helper()
	for _, p := range c.pipelines {
		*p = pipeline{node: p.node, nodes: p.nodes}
	}
	c.apply(t)
	for _, node := range c.Nodes {
		node.AppCtl(t, "dpctl/flush-conntrack")
	}
}

// apply puts the pipelines on the switches.
func (c *cluster) apply(t *testing.T) {
	t.Helper()
	for _, p := range c.pipelines {
		// Without it first fragments have no ports. ovs-vswitchd does not persist it.
		p.node.Switch.OFCtl(t, "set-frags", ovstest.Bridge, "nx-match")
		p.node.SetFlows(t, p.flows())
	}
}

// pod is a pod by the numbers of its node and of itself there, from 0.
func (c *cluster) pod(node, pod int) *datapath.Pod { return c.Nodes[node].Pods[pod] }

// isolate makes policies isolate the pods and no others, in both directions.
func (c *cluster) isolate(pods ...*datapath.Pod) {
	for _, p := range c.pipelines {
		p.isolated = pods
	}
}

// allow lets packets from an address to a port of another pass the policies of both.
func (c *cluster) allow(proto string, from netip.Addr, to netip.AddrPort) {
	c.allowOut(proto, from, to)
	c.allowIn(proto, from, to)
}

func (c *cluster) allowOut(proto string, from netip.Addr, to netip.AddrPort) {
	for _, p := range c.pipelines {
		p.allowOut = append(p.allowOut, c.matches(proto, from, to)...)
	}
}

func (c *cluster) allowIn(proto string, from netip.Addr, to netip.AddrPort) {
	for _, p := range c.pipelines {
		p.allowIn = append(p.allowIn, c.matches(proto, from, to)...)
	}
}

func (c *cluster) matches(proto string, from netip.Addr, to netip.AddrPort) []string {
	pair := fmt.Sprintf("%s,nw_src=%s,nw_dst=%s", proto, from, to.Addr())
	all := []string{fmt.Sprintf("%s,tp_dst=%d", pair, to.Port())}
	if c.Type == ovstest.DatapathNetdev {
		// The kernel's tracker hands on a whole packet. Userspace hands on its fragments, of which only the first has ports, and
		// without which the others are worth nothing.
		all = append(all, pair+",ip_frag=later")
	}
	return all
}

// forbid takes back all that was allowed.
func (c *cluster) forbid() {
	for _, p := range c.pipelines {
		p.allowIn, p.allowOut = nil, nil
	}
}

// serve makes services known to all nodes.
func (c *cluster) serve(services ...service) {
	for _, p := range c.pipelines {
		p.services = services
	}
}

// eachPlace runs a test with the server on the node of the client, which is the first pod of the first node, and
// with it on another one. The short tier has only the other one.
func (c *cluster) eachPlace(t *testing.T, test func(t *testing.T, client, server *datapath.Pod)) {
	t.Helper()
	t.Run("same node", func(t *testing.T) {
		if testing.Short() {
			t.Skip("complete tier: another place")
		}
		c.reset(t)
		test(t, c.pod(0, 0), c.pod(0, 1))
	})
	t.Run("other node", func(t *testing.T) {
		c.reset(t)
		test(t, c.pod(0, 0), c.pod(1, 0))
	})
}

// flush flushes the connections from a pod to an address, on all nodes, with the OpenFlow message NXT_CT_FLUSH.
func (c *cluster) flush(t *testing.T, opener *datapath.Pod, proto int, to netip.AddrPort) {
	t.Helper()
	for _, node := range c.Nodes {
		zone := kindTarget.zone(to.Addr())
		if slices.Contains(node.Pods, opener) {
			zone = kindLocal.zone(opener.Addr)
		}
		node.Switch.OFCtl(t, "ct-flush", ovstest.Bridge, fmt.Sprintf("zone=%d", zone),
			fmt.Sprintf("ct_nw_src=%s,ct_nw_dst=%s,ct_nw_proto=%d,ct_tp_dst=%d", opener.Addr, to.Addr(), proto, to.Port()))
	}
}

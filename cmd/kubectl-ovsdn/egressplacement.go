package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressip"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// placementReads is the number of nodes that are asked at the same time.
const placementReads = 8

// placements are the answers of nodes that host egress IPs, by the node's name.
type placements map[string]placement

type placement struct {
	notPlaced map[string]string // causes by egress IP
	partial   bool              // the node may have more
	err       error             // the node did not answer
}

// readPlacements asks the nodes of egress IPs without a known problem whether their hosts forward packets with these. It prints one line if some do not answer.
func (c *egress) readPlacements(ctx context.Context, kube kubernetes.Interface, ips []netip.Addr, errOut io.Writer) {
	c.placements = placements{}
	if len(ips) == 0 {
		ips = c.table.IPs()
	}
	for _, a := range ips {
		if ip := c.table.IP(a); ip.Problem == "" && len(ip.Nodes) == 1 {
			c.placements[ip.Nodes[0]] = placement{}
		}
	}
	var mu sync.Mutex
	var reads errgroup.Group
	reads.SetLimit(placementReads)
	nodes := slices.Sorted(maps.Keys(c.placements))
	for _, node := range nodes {
		reads.Go(func() error {
			p := readPlacement(ctx, kube, node)
			mu.Lock()
			defer mu.Unlock()
			c.placements[node] = p
			return nil
		})
	}
	_ = reads.Wait() // each node has its own error
	var silent []string
	for _, node := range nodes {
		if c.placements[node].err != nil {
			silent = append(silent, node)
		}
	}
	if len(silent) > 0 {
		fmt.Fprintf(errOut, "can't read for %d of %d nodes whether their hosts forward packets with egress IPs: %s: %s; check that the agents run, and that you may get nodestatuses.diagnostics.ovsdn.io\n",
			len(silent), len(nodes), silent[0], reconcile.OneLine(c.placements[silent[0]].err))
	}
}

func readPlacement(ctx context.Context, kube kubernetes.Interface, node string) placement {
	var status diagnostics.NodeStatus
	if err := readDiagnostics(ctx, kube, &status, nil, "nodestatuses", node); err != nil {
		return placement{err: err}
	}
	if text := status.Status.Error; text != "" {
		return placement{err: errors.New(text)}
	}
	p := placement{notPlaced: map[string]string{}, partial: len(status.Status.EgressIPsNotPlaced) >= diagnostics.MaxEgressIPsNotPlaced}
	for _, ip := range status.Status.EgressIPsNotPlaced {
		p.notPlaced[ip.IP] = cmp.Or(ip.Problem, "unknown cause")
	}
	return p
}

// stateOf returns the state of an IP in one word, and a note; "": there is none.
func (c *egress) stateOf(ip egressip.IP) (state, note string) {
	note = string(ip.Problem)
	switch {
	case ip.IsConflict():
		return "Conflict", note
	case ip.Problem == egressip.Unhosted:
		return "Unhosted", note
	case ip.Problem == egressip.NotReachable:
		return "Unreachable", note
	case ip.Problem == egressip.Unused:
		return "Unused", note
	}
	for _, node := range ip.Nodes {
		p := c.placements[node]
		if cause := p.notPlaced[ip.Addr.String()]; cause != "" {
			return "NotPlaced", fmt.Sprintf("%s drops packets with it: %s", node, cause)
		}
		if p.partial {
			return "Unknown", fmt.Sprintf("%s reports only the first %d egress IPs that its host can't forward", node, diagnostics.MaxEgressIPsNotPlaced)
		}
		if p.err != nil {
			return "Unknown", fmt.Sprintf("%s did not answer whether its host forwards packets with this IP", node)
		}
	}
	return "Active", note
}

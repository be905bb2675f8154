package pinger

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// PathStats are those of a path to a node.
type PathStats struct {
	Node string
	Path Path
	Loss float64       // of the last probes, 0 to 1
	RTT  time.Duration // an average
}

// Worst returns at most so many paths, those with the highest loss first, then those with the highest latency.
func (p *Pinger) Worst(most int) []PathStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	var worst []PathStats // sorted: all paths of 5,000 nodes would take some milliseconds to sort
	for _, known := range p.order {
		for path, s := range known.stats {
			candidate := PathStats{known.name, path, s.loss(), s.smoothed}
			i, _ := slices.BinarySearchFunc(worst, candidate, compareWorst)
			if s.probes == 0 || i == most {
				continue
			}
			worst = slices.Insert(worst, i, candidate)
			worst = worst[:min(most, len(worst))]
		}
	}
	return worst
}

func compareWorst(a, b PathStats) int {
	return cmp.Or(cmp.Compare(b.Loss, a.Loss), cmp.Compare(b.RTT, a.RTT), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Path, b.Path))
}

// Problems returns at most so many nodes that a path does not reach, sorted, the number of nodes that are probed, 0 if none can be, and of those whose overlay answered
// the last probe. A node that has answered on no path is not a problem: a firewall may drop ICMP.
func (p *Pinger) Problems(most int) (problems []diagnostics.PeerProblem, nodes, answering int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.probing {
		return nil, 0, 0
	}
	for _, known := range p.order {
		if known.stats[Overlay].isUp() {
			answering++
		}
		if problem := known.problem(p.MTU, time.Now()); problem != "" {
			problems = append(problems, diagnostics.PeerProblem{Node: known.name, Problem: problem})
		}
	}
	slices.SortFunc(problems, func(a, b diagnostics.PeerProblem) int { return cmp.Compare(a.Node, b.Node) })
	return slices.Clip(problems[:min(most, len(problems))]), len(p.order), answering
}

func (k *peer) problem(mtu int, now time.Time) string {
	overlay, large, underlay := k.stats[Overlay], k.stats[OverlayMTU], k.stats[Underlay]
	switch {
	case overlay.isBroken() && underlay.isUp() && (overlay.everUp || now.Sub(k.added) > startTime):
		return "the overlay does not answer, the underlay does: check that firewalls admit VXLAN between the nodes, and br0 of both"
	case overlay.isBroken() && underlay.isBroken() && overlay.everUp && underlay.everUp:
		return "neither the overlay nor the underlay answers: the node is down or unreachable or, with the userspace datapath, its ovs-vswitchd does not run: check both"
	case overlay.isBroken() && underlay.isBroken() && overlay.everUp:
		return "the overlay does not answer any longer, and the underlay has never answered: check VXLAN between the nodes, and the node"
	case large.isBroken() && overlay.isUp():
		return fmt.Sprintf("the overlay loses packets of %d bytes, and not small ones: the MTU of the underlay is too small (docs/mtu.md)", mtu)
	}
	return ""
}

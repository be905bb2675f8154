package pinger

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Peer is what is known of a path to a node.
type Peer struct {
	Node string
	Path Path
	Loss float64       // of the last probes, 0 to 1
	RTT  time.Duration // an average
}

// Worst returns at most so many paths, those with the highest loss first, then those with the highest latency.
func (p *Pinger) Worst(most int) []Peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	var worst []Peer // sorted: all paths of 5,000 nodes would take some milliseconds to sort
	for _, known := range p.order {
		for path, s := range known.stats {
			candidate := Peer{known.name, path, s.loss(), s.smoothed}
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

func compareWorst(a, b Peer) int {
	return cmp.Or(cmp.Compare(b.Loss, a.Loss), cmp.Compare(b.RTT, a.RTT), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Path, b.Path))
}

// Problems returns a sentence for each node that a path does not reach, at most so many, sorted, and the number of nodes that are probed. A node that has
// answered on no path is not among them: a firewall may drop ICMP.
func (p *Pinger) Problems(most int) (sentences []string, nodes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, known := range p.order {
		if problem := known.problem(p.MTU); problem != "" {
			sentences = append(sentences, known.name+": "+problem)
		}
	}
	slices.Sort(sentences)
	if more := len(sentences) - most; more > 0 {
		sentences = append(sentences[:most:most], fmt.Sprintf("and %d other nodes", more))
	}
	return sentences, len(p.order)
}

func (k *peer) problem(mtu int) string {
	overlay, large, underlay := k.stats[Overlay], k.stats[OverlayMTU], k.stats[Underlay]
	switch {
	case overlay.isBroken() && underlay.works():
		return "packets of the overlay are lost, those of the underlay are not: check that firewalls admit VXLAN between the nodes, and the node's br0"
	case overlay.isBroken() && underlay.isBroken() && (overlay.everOK || underlay.everOK):
		return "neither the overlay nor the underlay answers"
	case large.isBroken() && overlay.works():
		return fmt.Sprintf("packets of the overlay with %d bytes are lost, small ones are not: the MTU of the underlay is too small", mtu)
	}
	return ""
}

package node

import (
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/agentmetrics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/pinger"
)

// newPinger creates the feature that probes other nodes.
func (n *nodeNetwork) newPinger() *pinger.Pinger {
	a := n.agent
	return pinger.New(pinger.Options{
		Rate: a.PeerProbeRate, MTU: n.mtu.Link, Open: pinger.OpenICMP,
		Observe: func(path pinger.Path, rtt time.Duration, answered bool) {
			a.metrics.ObservePeer(string(path), rtt, answered)
		},
	})
}

// worstPeers returns the worst paths to other nodes for metrics.
func (n *nodeNetwork) worstPeers(most int) []agentmetrics.PeerPath {
	var all []agentmetrics.PeerPath
	for _, p := range n.pinger.Worst(most) {
		all = append(all, agentmetrics.PeerPath{Node: p.Node, Path: string(p.Path), Loss: p.Loss, RTT: p.RTT})
	}
	return all
}

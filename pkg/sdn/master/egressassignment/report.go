package egressassignment

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ovsdn/ovsdn/pkg/sdn/egressip"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

const (
	// unhostedGrace is the time after which a wanted IP that no node hosts is reported: NetNamespaces and HostSubnets are written one after the other.
	unhostedGrace = 30 * time.Second

	// maxNames bounds the objects that a message lists.
	maxNames = 8
)

// findings collects the problems of objects.
type findings map[string]*notice

// add adds a sentence to the Event of that reason about an object.
func (f findings) add(key string, about runtime.Object, reason, sentence string) {
	key += "/" + reason
	if f[key] == nil {
		f[key] = &notice{about: about, eventType: corev1.EventTypeWarning, reason: reason}
	}
	if n := f[key]; n.message == "" {
		n.message = sentence
	} else if len(n.message) < reconcile.MaxMessage {
		n.message += "; " + sentence
	}
}

// report reports the problems that remain after the writes.
func (c *Controller) report(wanted map[netip.Addr]string) {
	f := findings{}
	for name, n := range c.namespaces {
		if n.fault != nil {
			f.add(namespaceKey+name, n.object, eventreason.InvalidEgressIP, reconcile.OneLine(n.fault))
		}
	}
	for name, h := range c.hosts {
		if h.fault != nil {
			f.add(hostSubnetKey+name, h.object, eventreason.InvalidEgressIP, reconcile.OneLine(h.fault))
		}
		if h.isProbed() {
			c.reportProbe(f, name, h)
		}
	}
	seen, ranges := map[netip.Addr]bool{}, c.ranges()
	for _, a := range c.table.IPs() {
		ip := c.table.IP(a)
		switch {
		case ip.IsConflict():
			c.reportConflict(f, ip)
		case ip.Problem == egressip.Unhosted && len(ip.Namespaces) == 1:
			seen[a] = true
			c.reportUnhosted(f, ip, ranges)
		}
	}
	for a := range c.unhosted {
		if !seen[a] {
			delete(c.unhosted, a)
		}
	}
	c.reports.set(f)
	c.reportMoves(wanted)
}

func (c *Controller) reportProbe(f findings, name string, h *hostSubnet) {
	switch state := c.prober.State(name); {
	case state.Unreachable:
		f.add(hostSubnetKey+name, h.object, eventreason.EgressNodeUnreachable,
			fmt.Sprintf("node %s does not answer ovsdn-controller: egress IPs of its egressCIDRs move to other nodes, and namespaces use their other egress IPs", name))
	case state.Unanswered:
		f.add(hostSubnetKey+name, h.object, eventreason.EgressProbeUnanswered,
			fmt.Sprintf("node %s is Ready and answers no probe of ovsdn-controller: its condition Ready decides, which takes longer; allow TCP port 9 of %s from the nodes with controllers in its firewall, no program needs to listen", name, h.addr))
	}
}

func (c *Controller) reportConflict(f findings, ip egressip.IP) {
	detail := string(ip.Problem)
	switch ip.Problem {
	case egressip.ManyNodes:
		detail += ": " + reconcile.FirstNames(ip.Nodes, maxNames)
	case egressip.ManyNames:
		detail += ": " + reconcile.FirstNames(ip.Namespaces, maxNames)
	}
	sentence := fmt.Sprintf("egress IP %s is not used, since %s; remove it", ip.Addr, detail)
	for _, name := range ip.Namespaces {
		f.add(namespaceKey+name, c.namespaces[name].object, eventreason.EgressIPConflict, sentence)
	}
	for _, name := range ip.Nodes {
		f.add(hostSubnetKey+name, c.hosts[name].object, eventreason.EgressIPConflict, sentence)
	}
}

// ranges returns the egressCIDRs of all nodes, without duplicates: most nodes have the same.
func (c *Controller) ranges() []netip.Prefix {
	ranges := map[netip.Prefix]bool{}
	for _, h := range c.hosts {
		for _, p := range h.CIDRs {
			ranges[p] = true
		}
	}
	return slices.Collect(maps.Keys(ranges))
}

// reportUnhosted reports an IP that no node hosts, after the grace.
func (c *Controller) reportUnhosted(f findings, ip egressip.IP, ranges []netip.Prefix) {
	if _, known := c.unhosted[ip.Addr]; !known {
		c.unhosted[ip.Addr] = time.Now()
	}
	if remaining := unhostedGrace - time.Since(c.unhosted[ip.Addr]); remaining > 0 {
		c.loop.AddAfter(planKey, remaining)
		return
	}
	cause := "no HostSubnet has it in its egressIPs or egressCIDRs"
	switch {
	case len(ip.Nodes) > 0:
		cause = "HostSubnet " + ip.Nodes[0] + " is invalid"
	case slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip.Addr) }):
		cause = "the nodes with it in their egressCIDRs are not reachable, or have no room for it"
	}
	name := ip.Namespaces[0]
	f.add(namespaceKey+name, c.namespaces[name].object, eventreason.EgressIPNotHosted, fmt.Sprintf("no node hosts egress IP %s: %s", ip.Addr, cause))
}

// reportMoves reports the IPs that another node hosts than before.
func (c *Controller) reportMoves(wanted map[netip.Addr]string) {
	for a := range c.placed {
		if _, isWanted := wanted[a]; !isWanted {
			delete(c.placed, a)
		}
	}
	for a, name := range wanted {
		nodes := c.table.IP(a).Nodes
		if len(nodes) != 1 {
			continue
		}
		from, now := c.placed[a], nodes[0]
		c.placed[a] = now
		n := c.namespaces[name]
		if from == "" || from == now || n == nil {
			continue
		}
		c.reports.once(namespaceKey+name+"/"+a.String(), &notice{
			about: n.object, eventType: corev1.EventTypeNormal, reason: eventreason.EgressIPMoved,
			message: fmt.Sprintf("egress IP %s moved from node %s to node %s", a, from, now),
		})
	}
}

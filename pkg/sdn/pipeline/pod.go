package pipeline

import (
	"net"
	"net/netip"
	"slices"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Pod is a local pod, as its port shows it.
type Pod struct {
	OFPort int
	MAC    net.HardwareAddr
	Addrs  []netip.Addr
	VNID   config.VNID

	Policies PodPolicies
}

// Pod compiles a local pod: what it may send, and how to reach it.
func (n Node) Pod(p Pod) State {
	var s State
	mac := p.MAC.String()
	vnid := loadVNID(p.VNID, regSourceVNID)
	asSource, asTarget := n.bits(p)
	for _, addr := range p.Addrs {
		source := []ovs.Match{goovs.DataLinkSource(mac), ovs.IPSource(single(addr))}
		toService := []ovs.Match{goovs.DataLinkSource(mac), ovs.IPSource(single(addr)), ovs.IPDestination(n.ServiceNetwork)}

		s.add(tablePodIngress, 110, ip(toService...).from(p.OFPort), slices.Concat(n.keep(addr), []ovs.Action{vnid}, asSource, []ovs.Action{ovs.GotoTable(tableService)})...)
		s.add(tablePodIngress, 100, ip(source...).from(p.OFPort), append(append([]ovs.Action{vnid}, asSource...), n.fromPod())...)

		s.add(tableServiceReturn, 100, ip(ovs.IPSource(single(addr))), slices.Concat(n.keep(addr), []ovs.Action{vnid}, asSource, []ovs.Action{n.fromPod()})...)
		s.add(tableLocalPod, 100, ip(ovs.IPDestination(single(addr))),
			slices.Concat([]ovs.Action{loadVNID(p.VNID, regDestVNID), loadPort(p.OFPort)}, asTarget, []ovs.Action{n.toIsolation(addr)})...)
	}
	n.podARP(&s, p)
	n.logDenied(&s, p)
	n.among(&s, p.VNID)
	return s
}

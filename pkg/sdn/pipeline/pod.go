package pipeline

import (
	"net"
	"net/netip"
	"slices"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Pod is a local pod, with its port.
type Pod struct {
	OFPort int
	MAC    net.HardwareAddr
	Addrs  []netip.Addr
	VNID   config.VNID

	Policies  PodPolicies
	Bandwidth config.Bandwidth

	EgressFirewall EgressFirewallID
	EgressIP       netip.Addr // the source of its packets to outside; invalid: that of its node
}

// Pod compiles a local pod: the check of its source addresses, its routes, and its VNID.
func (n Node) Pod(p Pod) State {
	var s State
	mac := p.MAC.String()
	vnid := loadVNID(p.VNID, regSourceVNID)
	asSource, asTarget := n.bits(p)
	for _, addr := range p.Addrs {
		source := []ovs.Match{goovs.DataLinkSource(mac), ovs.IPSource(single(addr))}
		loads := append([]ovs.Action{vnid}, asSource...)
		if n.BalancesServices {
			// table=20,priority=100,ip,in_port=3,dl_src=0a:58:0a:80:00:05,nw_src=10.128.0.5,actions=load:0x4005->NXM_NX_REG3[],load:0xabcdef->NXM_NX_REG0[],goto_table:21
			s.add(tablePodIngress, 100, ip(source...).from(p.OFPort),
				p.limited(slices.Concat([]ovs.Action{loadNATZone(addr)}, loads, []ovs.Action{ovs.GotoTable(tableServiceAddress)}))...)
		} else {
			toService := append(slices.Clone(source), ovs.IPDestination(n.ServiceNetwork))
			// table=20,priority=110,ip,in_port=3,dl_src=0a:58:0a:80:00:05,nw_src=10.128.0.5,nw_dst=172.30.0.0/16,
			//     actions=load:0x6005->NXM_NX_REG3[],load:0x0->NXM_NX_REG0[],load:0x3->NXM_NX_REG4[0..2],goto_table:60
			s.add(tablePodIngress, 110, ip(toService...).from(p.OFPort), p.limited(slices.Concat(n.loadLocalZone(addr), loads, []ovs.Action{ovs.GotoTable(tableService)}))...)
			// table=20,priority=100,ip,in_port=3,dl_src=0a:58:0a:80:00:05,nw_src=10.128.0.5,
			//     actions=load:0x0->NXM_NX_REG0[],load:0x3->NXM_NX_REG4[0..2],goto_table:26
			s.add(tablePodIngress, 100, ip(source...).from(p.OFPort), p.limited(append(slices.Clone(loads), n.fromPod()))...)
		}
		// table=25,priority=100,ip,nw_src=10.128.0.5,
		//     actions=load:0x6005->NXM_NX_REG3[],load:0x0->NXM_NX_REG0[],load:0x3->NXM_NX_REG4[0..2],goto_table:26
		s.add(tableServiceReturn, 100, ip(ovs.IPSource(single(addr))), slices.Concat(n.loadLocalZone(addr), loads, []ovs.Action{n.fromPod()})...)
		// table=70,priority=100,ip,nw_dst=10.128.0.5,
		//     actions=load:0x0->NXM_NX_REG1[],load:3->NXM_NX_REG2[],load:0x3->NXM_NX_REG4[3..5],ct(table=80,zone=24581)
		s.add(tableLocalPod, 100, ip(ovs.IPDestination(single(addr))),
			slices.Concat([]ovs.Action{loadVNID(p.VNID, regDestVNID), loadPort(p.OFPort)}, asTarget, []ovs.Action{n.toIsolation(addr)})...)
	}
	n.balanceFor(&s, p, asSource)
	n.idledFrom(&s, p.OFPort, idledPodRate, idledPodBurst)
	n.podARP(&s, p)
	n.logDenied(&s, p)
	n.limitBandwidth(&s, p)
	n.withinVNID(&s, p.VNID)
	return s
}

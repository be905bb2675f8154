package datapath_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/test/datapath"
)

// kind is what a zone of the connection tracker is for. A zone is a kind and the low bits of the address of a pod of this node, or of the
// node itself. Zones below the first kind, the host's zone 0 among them, are not ours.
type kind uint16

const (
	kindHairpin kind = 0x2000 // the other source address of pods that reach themselves through a service
	kindService kind = 0x4000 // the endpoints of connections to services, opened by this node's pods and by itself
	kindLocal   kind = 0x6000 // allowed connections, opened by this node's pods and by itself
	kindTarget  kind = 0x8000 // allowed connections to the address, opened outside of the node
)

// zoneBits is how many bits of an address zones have.
const zoneBits = 13

func (k kind) zone(a netip.Addr) uint16 {
	b := a.As4()
	return uint16(k) | binary.BigEndian.Uint16(b[2:])&(1<<zoneBits-1)
}

// The fields that a zone's address may be in.
const (
	source      = "NXM_OF_IP_SRC"
	destination = "NXM_OF_IP_DST"
)

// load puts the zone of a packet's source or destination into reg3, from where ct takes it.
func (k kind) load(field string) string {
	const n = zoneBits
	return fmt.Sprintf("move:%s[0..%d]->NXM_NX_REG3[0..%d],load:%#x->NXM_NX_REG3[%d..31]", field, n-1, n-1, int(k)>>n, n)
}

const (
	reg3Zone = "zone=NXM_NX_REG3[0..15]"
	noZone   = "load:0->NXM_NX_REG3[]" // with 0 in reg3 nothing is committed
)

// The source addresses of clients that reach themselves through a service: of a pod the first, of the node the second.
const (
	hairpin     = "169.254.0.10"
	nodeHairpin = "169.254.0.11"
)

// world is the VNID of what the node routes for others. No namespace can have it.
const world = 1

// viaHost is the ct_mark of a connection that the host's service proxy has translated.
const viaHost = 1

// service is a port of a service, with one endpoint. An external proxy has its own list of those.
type service struct {
	proto    string // tcp or udp
	vip      netip.AddrPort
	endpoint netip.AddrPort
	vnid     uint32
}

// pipeline is as much of a node's tables as conntrack concerns, with the product's numbers; docs/decisions/0001-conntrack.md
// explains them. Registers: reg0 and reg1 are the source's and destination's VNID, reg2 the output port, reg3 a zone.
type pipeline struct {
	node     *datapath.Node
	nodes    []*datapath.Node
	services []service
	external bool                  // the host has the service proxy
	vnids    map[netip.Addr]uint32 // by pod; not nil in mode multitenant
	isolated []*datapath.Pod       // by policies, in both directions
	allowIn  []string              // matches of what isolated pods may get
	allowOut []string              // matches of what isolated pods may send

	text strings.Builder
}

func (p *pipeline) flows() string {
	p.text.Reset()
	p.classify()
	p.egress()
	p.route()
	p.service()
	p.ingress()
	p.output()
	return p.text.String()
}

func (p *pipeline) add(table, priority int, match, format string, args ...any) {
	fmt.Fprintf(&p.text, "table=%d,priority=%d,%s actions=%s\n", table, priority, match, fmt.Sprintf(format, args...))
}

// sent and to are matches.
func sent(pod *datapath.Pod) string { return fmt.Sprintf("ip,nw_src=%s", pod.Addr) }
func to(pod *datapath.Pod) string   { return fmt.Sprintf("ip,reg2=%d", pod.OFPort) }

// local are the pods of the list that are on this node.
func (p *pipeline) local(pods []*datapath.Pod) []*datapath.Pod {
	return slices.DeleteFunc(slices.Clone(p.node.Pods), func(pod *datapath.Pod) bool { return !slices.Contains(pods, pod) })
}

// classify. On the kernel's datapath packets from tun0 have the state of the host's own tracker.
func (p *pipeline) classify() {
	gateway, subnet := p.node.Addr, p.node.Subnet
	p.add(0, 400, fmt.Sprintf("in_port=2,ip,nw_src=%s,nw_dst=%s", gateway, datapath.ServiceNetwork), "ct_clear,load:%#x->NXM_NX_REG3[],goto_table:60", kindService.zone(gateway))
	p.add(0, 400, "in_port=2,ip,nw_dst="+nodeHairpin, "ct_clear,ct(zone=%d,nat,table=30)", kindHairpin.zone(gateway))
	p.add(0, 350, fmt.Sprintf("in_port=2,ip,nw_src=%s", gateway), "ct_clear,goto_table:30")
	p.add(0, 300, fmt.Sprintf("in_port=2,ip,nw_src=%s,nw_dst=%s", subnet, datapath.ClusterNetwork), "ct_clear,goto_table:25")
	p.add(0, 200, "in_port=2,ip", "ct_clear,load:%d->NXM_NX_REG0[],goto_table:30", world)
	mac := datapath.MAC(netip.MustParsePrefix(datapath.ServiceNetwork).Addr())
	p.add(0, 210, "in_port=2,arp,arp_op=1,arp_tpa="+datapath.ServiceNetwork, "move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],set_field:%s->eth_src,set_field:2->arp_op,"+
		"move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[],set_field:%s->arp_sha,push:NXM_OF_ARP_TPA[],move:NXM_OF_ARP_SPA[]->NXM_OF_ARP_TPA[],pop:NXM_OF_ARP_SPA[],in_port", mac, mac)
	p.add(0, 200, "in_port=1", "move:NXM_NX_TUN_ID[0..31]->NXM_NX_REG0[],goto_table:30")
	p.add(0, 150, "arp", "goto_table:30")
	p.add(0, 100, "ip", "goto_table:20")
	for _, pod := range p.node.Pods {
		vnid, from := p.vnids[pod.Addr], fmt.Sprintf("in_port=%d,%s", pod.OFPort, sent(pod))
		zone := kindService.zone(pod.Addr)
		if p.external {
			zone = kindLocal.zone(pod.Addr)
		}
		p.add(20, 110, from+",nw_dst="+datapath.ServiceNetwork, "load:%d->NXM_NX_REG0[],load:%#x->NXM_NX_REG3[],goto_table:60", vnid, zone)
		p.add(20, 110, from+",nw_dst="+hairpin, "ct(zone=%d,nat,table=70)", kindHairpin.zone(pod.Addr))
		p.add(20, 100, from, "load:%d->NXM_NX_REG0[],goto_table:26", vnid)
		p.add(25, 100, sent(pod), "load:%d->NXM_NX_REG0[],goto_table:26", vnid)
	}
}

// service sets an endpoint as the destination. A connection without a reply is still new, so only the destination shows whether it is
// translated, not the state.
func (p *pipeline) service() {
	for _, s := range p.services {
		match := fmt.Sprintf("%s,nw_dst=%s,tp_dst=%d", s.proto, s.vip.Addr(), s.vip.Port())
		if p.external {
			p.add(60, 100, match, "load:%d->NXM_NX_REG1[],load:2->NXM_NX_REG2[],goto_table:80", s.vnid)
		} else {
			p.add(60, 100, match, "ct(commit,%s,nat(dst=%s),table=26)", reg3Zone, s.endpoint)
		}
	}
	if !p.external {
		p.add(60, 200, "ip,ct_state=-trk", "ct(%s,nat,table=60)", reg3Zone)
		p.add(60, 50, "ip,nw_dst="+datapath.ServiceNetwork, "drop")
		p.add(60, 0, "ip", "resubmit(,26)")
	}
}

// egress evaluates packets from pods. A reply is looked up in the zone of the opener, which is its destination, if that is on this node, else in
// the zone of connections to the pod.
func (p *pipeline) egress() {
	for _, pod := range p.node.Pods {
		p.add(26, 200, fmt.Sprintf("%s,nw_dst=%s", sent(pod), pod.Addr), "ct(commit,zone=%d,nat(src=%s),table=70)", kindHairpin.zone(pod.Addr), hairpin)
	}
	// The tracker had no room for the translation.
	p.add(26, 300, "ip,nw_dst="+datapath.ServiceNetwork, "drop")
	// The node comes here with what it sends to services only. What goes back to it must not come from itself.
	own := fmt.Sprintf("in_port=2,ip,nw_src=%s", p.node.Addr)
	p.add(26, 210, fmt.Sprintf("%s,nw_dst=%s", own, datapath.ClusterNetwork), "ct_clear,goto_table:27")
	p.add(26, 200, own, "set_field:%s->eth_dst,ct(commit,zone=%d,nat(src=%s),table=28)",
		datapath.MAC(p.node.Addr), kindHairpin.zone(p.node.Addr), nodeHairpin)
	p.add(26, 0, "ip", "ct_clear,goto_table:27")
	for _, pod := range p.local(p.isolated) {
		p.add(26, 110, fmt.Sprintf("%s,nw_dst=%s", sent(pod), p.node.Subnet), "%s,ct(%s,table=27)", kindLocal.load(destination), reg3Zone)
		p.add(26, 100, sent(pod), "%s,ct(%s,table=27)", kindTarget.load(source), reg3Zone)
		p.add(27, 300, sent(pod)+",ct_state=+trk+rpl", "%s,goto_table:30", noZone)
		p.add(27, 50, sent(pod), "drop")
		// Without the state, it would get no reply.
		p.add(28, 100, sent(pod), "load:%#x->NXM_NX_REG3[],goto_table:30", kindLocal.zone(pod.Addr))
	}
	for _, match := range p.allowOut {
		p.add(27, 100, match, "goto_table:28")
	}
	p.add(27, 0, "ip", "goto_table:28")
	if p.external {
		p.add(28, 90, "ip,in_port=2", "%s,goto_table:30", kindLocal.load(source))
	}
	p.add(28, 0, "ip", "%s,goto_table:30", noZone)
}

func (p *pipeline) route() {
	gateway, subnet := p.node.Addr, p.node.Subnet
	p.add(30, 300, fmt.Sprintf("arp,arp_tpa=%s", gateway), "output:2")
	p.add(30, 300, fmt.Sprintf("ip,nw_dst=%s", gateway), "set_field:%s->eth_dst,load:2->NXM_NX_REG2[],goto_table:130", datapath.MAC(gateway))
	p.add(30, 200, fmt.Sprintf("arp,arp_tpa=%s", subnet), "goto_table:40")
	p.add(30, 200, fmt.Sprintf("ip,nw_dst=%s", subnet), "goto_table:70")
	for _, pod := range p.node.Pods {
		p.add(40, 100, fmt.Sprintf("arp,arp_tpa=%s", pod.Addr), "output:%d", pod.OFPort)
		p.add(70, 100, fmt.Sprintf("ip,nw_dst=%s", pod.Addr), "set_field:%s->eth_dst,load:%d->NXM_NX_REG1[],load:%d->NXM_NX_REG2[],goto_table:80", pod.MAC, p.vnids[pod.Addr], pod.OFPort)
	}
	for _, peer := range p.nodes {
		if peer != p.node {
			tunnel := fmt.Sprintf("move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],set_field:%s->tun_dst", peer.VTEP)
			p.add(30, 100, fmt.Sprintf("arp,arp_tpa=%s", peer.Subnet), "%s,output:1", tunnel)
			p.add(30, 100, fmt.Sprintf("ip,nw_dst=%s", peer.Subnet), "%s,load:1->NXM_NX_REG2[],goto_table:130", tunnel)
		}
	}
	load := ""
	if p.vnids != nil {
		// The world has no VNID that could let its replies in.
		load = kindLocal.load(source) + ","
	}
	p.add(30, 1, "ip", "%sload:2->NXM_NX_REG2[],goto_table:130", load)
}

// ingress evaluates packets to pods. A reply is looked up in the pod's own zone, unless egress has looked it up there.
func (p *pipeline) ingress() {
	p.add(80, 400, "ip,nw_src="+hairpin, "%s,goto_table:130", noZone)
	for _, pod := range p.node.Pods {
		asks := ""
		switch {
		case slices.Contains(p.isolated, pod), p.external:
			asks = to(pod)
		case p.vnids != nil:
			asks = fmt.Sprintf("%s,reg0=%d", to(pod), world)
		default:
			continue
		}
		p.add(80, 350, asks+",ct_state=-trk", "ct(zone=%d,table=80)", kindLocal.zone(pod.Addr))
		p.add(80, 320, to(pod)+fmt.Sprintf(",ct_state=+trk+rpl,ct_mark=%d", viaHost), "%s,set_field:%s->eth_dst,load:2->NXM_NX_REG2[],goto_table:130", noZone, datapath.MAC(p.node.Addr))
		p.add(80, 310, to(pod)+",ct_state=+trk+rpl", "%s,goto_table:130", noZone)
	}
	p.add(80, 300, fmt.Sprintf("ip,reg0=0,nw_src=%s", p.node.Addr), "goto_table:81")
	// A router reports that a packet was too large. The connection can't be looked up by the router's address.
	p.add(80, 290, fmt.Sprintf("icmp,reg0=%d,icmp_type=3,icmp_code=4", world), "goto_table:81")
	for _, match := range p.allowIn {
		p.add(80, 100, match, "goto_table:81")
	}
	for _, pod := range p.local(p.isolated) {
		p.add(80, 50, to(pod), "drop")
		// Without the state, it could not reply.
		p.add(81, 110, fmt.Sprintf("%s,nw_src=%s", to(pod), p.node.Subnet), "%s,goto_table:130", kindLocal.load(source))
		p.add(81, 100, to(pod), "%s,goto_table:130", kindTarget.load(destination))
	}
	p.add(81, 0, "ip", "goto_table:130")
	if p.vnids == nil {
		p.add(80, 0, "ip", "goto_table:81")
		return
	}
	vnids := map[uint32]bool{}
	for _, vnid := range p.vnids {
		vnids[vnid] = true
	}
	for vnid := range vnids {
		p.add(80, 20, fmt.Sprintf("ip,reg0=%d,reg1=%d", vnid, vnid), "goto_table:81")
	}
	p.add(80, 20, "ip,reg1=0", "goto_table:81")
	p.add(80, 20, "ip,reg0=0", "goto_table:81")
}

// output commits the connections that all verdicts allow, and restores the service's address in replies.
func (p *pipeline) output() {
	p.add(130, 200, "ip,reg3=0", "goto_table:131")
	p.add(130, 150, fmt.Sprintf("ip,in_port=2,nw_src=%s", p.node.Subnet), "ct(commit,%s,exec(load:%d->NXM_NX_CT_MARK[])),goto_table:131", reg3Zone, viaHost)
	p.add(130, 100, "ip", "ct(commit,%s),goto_table:131", reg3Zone)
	if !p.external {
		for _, pod := range p.node.Pods {
			p.add(131, 100, to(pod), "ct(zone=%d,nat,table=132)", kindService.zone(pod.Addr))
		}
		p.add(131, 110, fmt.Sprintf("ip,reg2=2,nw_dst=%s", p.node.Addr), "ct(zone=%d,nat,table=132)", kindService.zone(p.node.Addr))
	}
	p.add(131, 0, "ip", "goto_table:132")
	for _, pod := range p.node.Pods {
		p.add(132, 100, fmt.Sprintf("in_port=%d,%s", pod.OFPort, to(pod)), "in_port")
	}
	p.add(132, 100, "in_port=2,ip,reg2=2", "in_port")
	p.add(132, 0, "ip", "output:NXM_NX_REG2[]")
}

package pipeline

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// PeerOf returns the peer that a remote node's flows were compiled from, in any mode of this version or the previous one. It returns false
// when they do not show all of it, or have a form that neither version compiles.
func PeerOf(flows []ovs.DumpedFlow) (Peer, bool) {
	var p Peer
	for _, f := range flows {
		ok := true
		switch f.Key.Table {
		case tableTunnelIngress:
			ok = p.readSource(f)
		case tableRemote:
			ok = p.readSubnet(f)
		}
		if !ok {
			return Peer{}, false
		}
	}
	slices.SortFunc(p.Subnets, netip.Prefix.Compare)
	p.Subnets = slices.Compact(p.Subnets) // a machine has more than one flow for each
	return p, p.VTEP.IsValid() && len(p.Subnets) > 0 && (p.FixedVNID == nil || !p.IsNode)
}

// readSource reads a flow of table 10. Without its actions, a machine with a fixed VNID would look like a node, whose VNIs are trusted.
func (p *Peer) readSource(f ovs.DumpedFlow) bool {
	_, actions, _ := strings.Cut(f.Text, ",actions=")
	fields := fieldsOf(f.Key)
	switch {
	case f.Key.Priority == 100 && isPeersSource(fields):
		return p.readEntry(fields["tun_src"], actions)
	case f.Key.Priority == 110 && fields["reg4"] != "": // foreign sources
		return true
	case f.Key.Priority == 50 && len(fields) == 1 && fields["tun_src"] != "": // sources outside of the peer's subnets
		return true
	case f.Key.Priority == 130 && fields["dl_src"] != "": // a node's own packets
		p.IsNode = true
		return true
	}
	return false
}

// isPeersSource reports whether a match is of packets that the peer may send: by source address for IP and ARP, or, in flows of the previous
// version, of all its packets.
func isPeersSource(fields map[string]string) bool {
	_, isIP := fields["ip"]
	_, isARP := fields["arp"]
	switch len(fields) {
	case 1:
		return fields["tun_src"] != ""
	case 3:
		return fields["tun_src"] != "" && (isIP && fields["nw_src"] != "" || isARP && fields["arp_spa"] != "")
	}
	return false
}

// readEntry reads the VTEP and the actions of a flow of packets that the peer may send. All such flows of a peer have the same.
func (p *Peer) readEntry(tunnelSource, actions string) bool {
	vtep, err := netip.ParseAddr(tunnelSource)
	if err != nil {
		return false
	}
	var fixed *config.VNID
	if actions != "goto_table:"+strconv.Itoa(tableRoute) {
		load, ok := strings.CutSuffix(actions, "->"+regSourceVNID+",goto_table:"+strconv.Itoa(tableRoute))
		vnid, valid := loadedVNID(load)
		if !ok || !valid {
			return false
		}
		fixed = &vnid
	}
	if !p.VTEP.IsValid() {
		p.VTEP, p.FixedVNID = vtep, fixed
		return true
	}
	sameVNID := (fixed == nil) == (p.FixedVNID == nil) && (fixed == nil || *fixed == *p.FixedVNID)
	return vtep == p.VTEP && sameVNID
}

// loadedVNID reads the action "load:VNID", in hexadecimal or decimal. It returns false for another action, and for a number that is not a VNID.
func loadedVNID(action string) (config.VNID, bool) {
	value, ok := strings.CutPrefix(action, "load:")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(value, 0, 32)
	if err != nil {
		return 0, false
	}
	vnid, err := config.CheckVNID(uint32(n))
	return vnid, err == nil
}

// readSubnet reads a flow of table 90. Some also match the sender's VNID, or the bit of a node.
func (p *Peer) readSubnet(f ovs.DumpedFlow) bool {
	fields := fieldsOf(f.Key)
	for name := range fields {
		if name != "ip" && name != "reg0" && name != "reg4" && name != "nw_dst" {
			return false
		}
	}
	subnet, err := netip.ParsePrefix(fields["nw_dst"])
	if err != nil {
		return false
	}
	p.Subnets = append(p.Subnets, subnet)
	return true
}

// fieldsOf returns the values of a match by the names of its fields.
func fieldsOf(k ovs.Key) map[string]string {
	fields := map[string]string{}
	for field := range strings.SplitSeq(k.Match, ",") {
		name, value, _ := strings.Cut(field, "=")
		fields[name] = value
	}
	return fields
}

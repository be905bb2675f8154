package pipeline

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// PeerOf reads back, of the keys of a remote node's flows, what they were compiled from. It returns false when they don't say all of it.
func PeerOf(flows []ovs.Key) (Peer, bool) {
	var p Peer
	for _, f := range flows {
		switch f.Table {
		case tableTunnelIngress:
			vtep, err := netip.ParseAddr(strings.TrimPrefix(f.Match, "tun_src="))
			if err != nil {
				return Peer{}, false
			}
			p.VTEP = vtep
		case tableRemote:
			subnet, err := netip.ParsePrefix(strings.TrimPrefix(f.Match, "ip,nw_dst="))
			if err != nil {
				return Peer{}, false
			}
			p.Subnets = append(p.Subnets, subnet)
		}
	}
	slices.SortFunc(p.Subnets, netip.Prefix.Compare)
	return p, p.VTEP.IsValid() && len(p.Subnets) > 0
}

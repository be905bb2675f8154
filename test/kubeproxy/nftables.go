// Package kubeproxy writes rules as kube-proxy does, for tests without kube-proxy.
package kubeproxy

import (
	"fmt"
	"net/netip"
	"strings"
)

// Port is a port of a Service with one endpoint, a pod of the node.
type Port struct {
	Protocol    string // tcp or udp
	At          netip.AddrPort
	Endpoint    netip.AddrPort
	Masqueraded bool // of all clients, as at a node port with the default externalTrafficPolicy
}

// NFTables returns the table of kube-proxy 1.36 in mode nftables, as input of nft -f, with the chains that a packet to the ports passes (pkg/proxy/nftables/proxier.go).
func NFTables(ports ...Port) string {
	var services, hairpins []string
	for _, p := range ports {
		mark := ""
		if p.Masqueraded {
			mark = "mark set mark or 0x4000 "
		}
		services = append(services, fmt.Sprintf("ip daddr %s %s dport %d %sdnat to %s", p.At.Addr(), p.Protocol, p.At.Port(), mark, p.Endpoint))
		hairpins = append(hairpins, fmt.Sprintf("%s . %[1]s . %s . %d", p.Endpoint.Addr(), p.Protocol, p.Endpoint.Port()))
	}
	return fmt.Sprintf(`table ip kube-proxy {
	set hairpin-connections {
		type ipv4_addr . ipv4_addr . inet_proto . inet_service
		elements = { %s }
	}
	chain services {
		%s
	}
	chain masquerading {
		mark and 0x4000 != 0 mark set mark xor 0x4000 masquerade fully-random
		ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
	}
	chain nat-prerouting {
		type nat hook prerouting priority dstnat
		jump services
	}
	chain nat-postrouting {
		type nat hook postrouting priority srcnat
		jump masquerading
	}
}
`, strings.Join(hairpins, ", "), strings.Join(services, "\n\t\t"))
}

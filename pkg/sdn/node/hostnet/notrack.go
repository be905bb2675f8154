package hostnet

import "slices"

// The tables of iptables. Some kernels have no tableRaw.
const (
	tableRaw    = "raw"
	tableMangle = "mangle"
	tableNAT    = "nat"
	tableFilter = "filter"
)

// notrackChains exempt the node's own VXLAN from the host's conntrack, which would store an entry for each inner connection: the outer source
// port is a hash of the inner headers.
//
// Only packets from and to the node's own addresses match. Raw PREROUTING precedes DNAT: a packet to a service, also to one whose endpoint is a
// VTEP, still has the service's address and is tracked, and so is VXLAN that the node routes. Packets out of tun0 go to pods and services, and
// are tracked. A service on the VXLAN port of an address of the node is not translated: it would hijack the tunnel.
func notrackChains(vxlan []string) []Chain {
	notrack := func(match []string, addrType, comment string) []Rule {
		return []Rule{rule(slices.Concat(match, []string{"-m", "addrtype", addrType, "LOCAL"}), comment, "CT", "--notrack")}
	}
	return []Chain{
		{
			Table: tableRaw, Name: chainPrefix + "NOTRACK-IN", BuiltIn: "PREROUTING", Optional: notrackOptional(),
			Comment: "ovsdn: tunnel without conntrack",
			Rules:   notrack(vxlan, "--dst-type", "VXLAN to this node"),
		},
		{
			Table: tableRaw, Name: chainPrefix + "NOTRACK-OUT", BuiltIn: "OUTPUT", Optional: notrackOptional(),
			Comment: "ovsdn: tunnel without conntrack",
			Rules:   notrack(append([]string{"!", "-o", Tun0Name}, vxlan...), "--src-type", "VXLAN from this node"),
		},
	}
}

func notrackOptional() *Optional {
	return &Optional{Feature: FeatureNotrack, Modules: "xt_CT, xt_addrtype and, for iptables-legacy, iptable_raw"}
}

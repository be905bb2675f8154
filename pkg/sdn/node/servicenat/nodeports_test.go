package servicenat

import (
	"net/netip"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
)

// Node ports answer only at addresses in the ranges. At other addresses of the node external IPs and its own programs have the same port.
func TestRules_nodePortAddresses(t *testing.T) {
	o := testOptions()
	o.NodePortAddresses = []netip.Prefix{netip.MustParsePrefix(nodeIP + "/32"), netip.MustParsePrefix("203.0.113.0/25")}
	another := external(otherIP, reject)
	another.Port = 30081
	h := newHostWith(t, o, nodePort(30080, forward), nodePort(30081, forward), nodePort(30082, reject), another)
	serve(t, h.node, otherIP+":30080")
	serve(t, h.node, "0.0.0.0:30082")
	wantSource(t, h.client, clientIP, nodeIP+":30080", clientIP)
	wantSource(t, h.node, "", nodeIP+":30080", gatewayIP)
	h.in(t, h.switched, "nft flush ruleset; nft add table ip test; nft add chain ip test check '{ type filter hook prerouting priority 0; policy drop; }'")
	for netns, source := range map[ns.NetNS]string{h.client: clientIP, h.node: otherIP} {
		wantSource(t, netns, source, otherIP+":30080", source) // the program's own port
		wantSource(t, netns, source, otherIP+":30082", source)
		wantRefused(t, netns, otherIP+":30081")
		wantRefused(t, netns, gatewayIP+":30080")
		wantRefused(t, netns, nodeIP+":30082")
	}
}

// atNode returns the frontend of an external IP that is the node's address.
func atNode(port uint16, verdict endpoints.Verdict, sources ...string) Frontend {
	f := external(nodeIP, verdict, sources...)
	f.Port = port
	return f
}

// The node port of a service precedes external IPs of others that are addresses of the node.
func TestRules_nodePortsFirst(t *testing.T) {
	h := newHost(t, nodePort(30080, forward), nodePort(30081, reject), nodePort(30083, forward), atNode(30080, reject), atNode(30081, forward),
		atNode(30083, forward, "198.51.100.1/32"))
	serve(t, h.node, "0.0.0.0:30081") // would accept
	for _, port := range []string{"30080", "30083"} {
		wantSource(t, h.client, clientIP, nodeIP+":"+port, clientIP)
	}
	wantSource(t, h.node, nodeIP, nodeIP+":30080", gatewayIP)
	wantRefused(t, h.client, nodeIP+":30081")
	wantRefused(t, h.node, nodeIP+":30081")
}

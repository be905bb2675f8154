package diagnostics

import (
	"net/url"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeHostPath is the path of NodeHost on the HTTPS port of an agent, with the query parameters of HostPacket.
const NodeHostPath = "/diagnostics/v1alpha1/host"

// FromTun0 is the value of HostPacket.From for packets that the bridge sends to the host.
const FromTun0 = "tun0"

// HostPacket is the first packet of a connection that the host of a node routes. As a query each field is the parameter of its JSON name.
type HostPacket struct {
	// From is tun0, or host for packets that the host sends itself.
	From string `json:"from"`
	// Translated reports that the host has translated the destination, as the service proxy does.
	Translated bool `json:"translated,omitempty"`

	Protocol        string `json:"protocol"`         // TCP, UDP, SCTP or ICMP
	Source          string `json:"source,omitempty"` // an IPv4 address; required with tun0, otherwise "" is the host's choice
	Destination     string `json:"destination"`      // an IPv4 address
	DestinationPort uint16 `json:"destinationPort,omitempty"`
}

// Query returns the packet as a query.
func (p HostPacket) Query() url.Values {
	query := url.Values{}
	for name, value := range map[string]string{"from": p.From, "protocol": p.Protocol, "source": p.Source, "destination": p.Destination} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if p.Translated {
		query.Set("translated", strconv.FormatBool(true))
	}
	if p.DestinationPort != 0 {
		query.Set("destinationPort", strconv.Itoa(int(p.DestinationPort)))
	}
	return query
}

// RouteKind is what the routing of a host does with a packet.
type RouteKind string

// The kinds of routes.
const (
	RouteLocal       RouteKind = "local"       // to the host itself
	RouteForwarded   RouteKind = "forwarded"   // out of an interface
	RouteMissing     RouteKind = "missing"     // the kernel has no route
	RouteUnreachable RouteKind = "unreachable" // a route of type unreachable
	RouteProhibited  RouteKind = "prohibited"  // a route of type prohibit
	RouteBlackhole   RouteKind = "blackhole"   // a route of type blackhole
	RouteRefused     RouteKind = "refused"     // there is a route, but not for a packet with that source from that interface
)

// HostRoute is the route that the kernel of a host selects for a packet. All fields but Kind are those of RouteForwarded.
type HostRoute struct {
	Kind      RouteKind `json:"kind"`
	Interface string    `json:"interface,omitempty"`
	Gateway   string    `json:"gateway,omitempty"` // the next hop; "": the destination is on-link
	Network   string    `json:"network,omitempty"` // of the route; "": not known
	NoCarrier bool      `json:"noCarrier,omitempty"`
}

// NodeHost is what the host of one node does with a packet. Its name is that of the Node. Nothing is sent.
type NodeHost struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Packet HostPacket `json:"packet"`
	Route  HostRoute  `json:"route"`

	Source      string `json:"source,omitempty"` // with which the packet leaves the host; "": an address of the host that is not known
	Masqueraded bool   `json:"masqueraded,omitempty"`

	// Drops reports that a rule drops the packet, unless OthersFirst: one of Others precedes it and could accept or translate the packet. Rule is the rule that drops or
	// accepts it, "" if none does; RuleOfOthers reports that it is not one of the agent. Others are rules that are not evaluated, by table and chain, at most MaxHostRules.
	// MayTranslate reports that one of them could translate the destination: Route is that without a translation.
	Drops        bool     `json:"drops,omitempty"`
	Rule         string   `json:"rule,omitempty"`
	RuleOfOthers bool     `json:"ruleOfOthers,omitempty"`
	Others       []string `json:"others,omitempty"`
	OthersFirst  bool     `json:"othersFirst,omitempty"`
	MayTranslate bool     `json:"mayTranslate,omitempty"`
}

// MaxHostRules is the largest number of NodeHost.Others.
const MaxHostRules = 20

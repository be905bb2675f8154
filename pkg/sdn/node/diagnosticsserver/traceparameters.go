package diagnosticsserver

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// traceRequest is a valid request for a trace.
type traceRequest struct {
	packet   diagnostics.TracePacket
	from     diagnostics.Object // a pod or a node; the zero value is the host
	protocol uint8

	source, destination netip.Addr // an invalid source is the sender's own address
	egressIP            netip.Addr
	endpoint            netip.AddrPort
	lookup              ovs.TraceLookup
}

// parseTrace parses the query of a request. Parameters that this version does not know are ignored.
func parseTrace(query string) (*traceRequest, error) {
	p, err := parseParameters(query)
	if err != nil {
		return nil, err
	}
	return p.trace()
}

func parseParameters(query string) (*parameters, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, failf(http.StatusBadRequest, "the query is invalid: %w", err)
	}
	return &parameters{values: values}, nil
}

// parsePacket parses the parameters of a packet.
func parsePacket(values url.Values) (*traceRequest, error) {
	p := parameters{values: values}
	return p.trace()
}

// trace returns the request for a trace.
func (p *parameters) trace() (*traceRequest, error) {
	r := &traceRequest{packet: diagnostics.TracePacket{
		From: p.text("from"), Protocol: p.text("protocol"), Conntrack: diagnostics.ConntrackState(p.text("conntrack")), Origin: diagnostics.PacketOrigin(p.text("origin")),
		VNID: uint32(p.number("vnid", uint64(config.MaxVNID))), SourcePort: p.port("sourcePort"), DestinationPort: p.port("destinationPort"), //nolint:gosec // in the range
	}}
	p.from(r)
	p.protocol(r)
	p.conntrack(r)
	p.origin(r)
	p.addresses(r)
	if p.err != nil {
		return nil, p.err
	}
	return r, nil
}

// parameters are the parameters of a request, with the first error.
type parameters struct {
	values url.Values
	err    error
}

func (p *parameters) failf(name, format string, args ...any) {
	if p.err == nil {
		p.err = failf(http.StatusBadRequest, "parameter "+name+" "+format, args...)
	}
}

// text returns the value of a parameter; "" if it is not set.
func (p *parameters) text(name string) string {
	values := p.values[name]
	if len(values) > 1 {
		p.failf(name, "is set %d times; set it once", len(values))
	}
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

func (p *parameters) number(name string, most uint64) uint64 {
	text := p.text(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n > most {
		p.failf(name, "is %.*q, but must be a number from 0 to %d", diagnostics.MaxQuoted, text, most)
		return 0
	}
	return n
}

func (p *parameters) port(name string) uint16 {
	return uint16(p.number(name, 65535)) //nolint:gosec // in the range
}

// addr returns the IPv4 address of a parameter; the zero Addr if it is not set.
func (p *parameters) addr(name string) netip.Addr {
	text := p.text(name)
	if text == "" {
		return netip.Addr{}
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || !addr.Is4() || addr.IsMulticast() || addr.IsUnspecified() || addr.IsLoopback() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		p.failf(name, "is %.*q, but must be the IPv4 address of a host", diagnostics.MaxQuoted, text)
		return netip.Addr{}
	}
	return addr
}

// from parses where the packet enters the bridge.
func (p *parameters) from(r *traceRequest) {
	if r.packet.From == diagnostics.FromHost {
		return
	}
	o, err := diagnostics.ParseObject(r.packet.From)
	if err != nil || o.Kind != diagnostics.KindPod && o.Kind != diagnostics.KindNode {
		p.failf("from", "is %.*q, but must be pod/NAMESPACE/NAME, node/NAME or %s", diagnostics.MaxQuoted, r.packet.From, diagnostics.FromHost)
	}
	r.from = o
}

func (p *parameters) protocol(r *traceRequest) {
	switch r.packet.Protocol {
	case "TCP":
		r.protocol = ovs.ProtocolNumberTCP
	case "UDP":
		r.protocol = ovs.ProtocolNumberUDP
	case "SCTP":
		r.protocol = ovs.ProtocolNumberSCTP
	case "ICMP":
		r.protocol = ovs.ProtocolNumberICMP
		for _, name := range []string{"sourcePort", "destinationPort", "endpoint"} {
			if text := p.text(name); text != "" && text != "0" {
				p.failf(name, "is set, but ICMP has no ports")
			}
		}
		return
	default:
		p.failf("protocol", "is %.*q, but must be TCP, UDP, SCTP or ICMP", diagnostics.MaxQuoted, r.packet.Protocol)
		return
	}
	if r.packet.DestinationPort == 0 {
		p.failf("destinationPort", "is required with protocol %s, from 1 to 65535", r.packet.Protocol)
	}
	if r.packet.SourcePort == 0 {
		r.packet.SourcePort = diagnostics.DefaultSourcePort
	}
}

func (p *parameters) conntrack(r *traceRequest) {
	switch r.packet.Conntrack {
	case "":
		r.packet.Conntrack = diagnostics.ConntrackNew
	case diagnostics.ConntrackNew:
	case diagnostics.ConntrackReply:
		r.lookup = ovs.LookupReply
	default:
		states := []string{string(diagnostics.ConntrackNew), string(diagnostics.ConntrackReply)}
		p.failf("conntrack", "is %.*q, but must be one of %s", diagnostics.MaxQuoted, string(r.packet.Conntrack), strings.Join(states, ", "))
	}
}

func (p *parameters) origin(r *traceRequest) {
	switch origin := r.packet.Origin; {
	case origin == "":
	case !slices.Contains([]diagnostics.PacketOrigin{diagnostics.OriginRouted, diagnostics.OriginNodePort, diagnostics.OriginHairpin}, origin):
		p.failf("origin", "is %.*q, but must be %s, %s or %s", diagnostics.MaxQuoted, string(origin), diagnostics.OriginRouted, diagnostics.OriginNodePort, diagnostics.OriginHairpin)
	case r.from.Kind == diagnostics.KindPod:
		p.failf("origin", "is not allowed with from=pod/NAMESPACE/NAME")
	}
}

func (p *parameters) addresses(r *traceRequest) {
	fromNode := r.from.Kind == diagnostics.KindNode
	r.source, r.destination, r.egressIP = p.addr("source"), p.addr("destination"), p.addr("egressIP")
	if !r.destination.IsValid() {
		p.failf("destination", "is required")
	}
	if fromNode && !r.source.IsValid() {
		p.failf("source", "is required with from=%s", r.packet.From)
	}
	for _, name := range []string{"vnid", "egressIP"} {
		if text := p.text(name); !fromNode && text != "" && text != "0" {
			p.failf(name, "is only allowed with from=node/NAME")
		}
	}
	if text := p.text("endpoint"); text != "" {
		endpoint, err := netip.ParseAddrPort(text)
		if err != nil || !endpoint.Addr().Is4() || endpoint.Port() == 0 {
			p.failf("endpoint", "is %.*q, but must be ADDRESS:PORT of IPv4", diagnostics.MaxQuoted, text)
		}
		r.endpoint = endpoint
	}
	r.packet.Source, r.packet.Destination, r.packet.EgressIP, r.packet.Endpoint = textOf(r.source), textOf(r.destination), textOf(r.egressIP), p.text("endpoint")
}

// textOf returns the address; "" if it is invalid.
func textOf(addr netip.Addr) string {
	if !addr.IsValid() {
		return ""
	}
	return addr.String()
}

// contains reports whether a prefix has the address.
func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

package diagnosticsserver

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
)

// The agent reads up to ten chains of iptables for each request, of which each takes a process some milliseconds. Requests have slots of their own: while they wait
// for the limit of the rate, the switch traces packets of others.
const (
	maxHosts       = 2 // at the same time
	hostsPerSecond = 10
	hostBurst      = 32 // two services with diagnostics.MaxTracePaths endpoints
)

// serveHost answers maxHosts requests at the same time.
func (h *Handler) serveHost(w http.ResponseWriter, r *http.Request) {
	select {
	case h.hosting <- struct{}{}:
		defer func() { <-h.hosting }()
	default:
		refuse(w, failf(http.StatusTooManyRequests, "the agent of node %s answers %d other requests about its host; retry", h.options.NodeName, maxHosts))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), traceTimeout)
	defer cancel()
	answer, err := h.host(ctx, r.URL.RawQuery)
	if err != nil {
		refuse(w, err)
		return
	}
	send(w, answer)
}

func (h *Handler) host(ctx context.Context, query string) (*diagnostics.NodeHost, error) {
	request, packet, err := parseHost(query)
	if err != nil {
		return nil, err
	}
	n, err := h.ready()
	if err != nil {
		return nil, err
	}
	if err := h.hostLimiter.Wait(ctx); err != nil {
		return nil, failf(http.StatusTooManyRequests, "the agent of node %s looks up %d routes each second; retry: %w", h.options.NodeName, hostsPerSecond, err)
	}
	path, err := n.Host(ctx, packet)
	if err != nil {
		return nil, failf(http.StatusServiceUnavailable, "evaluate the packet on the host of node %s: %w", h.options.NodeName, err)
	}
	return &diagnostics.NodeHost{
		TypeMeta: h.typeMeta("NodeHost"), ObjectMeta: metav1.ObjectMeta{Name: h.options.NodeName}, Packet: request,
		Route: diagnostics.HostRoute{
			Kind: path.Route.Kind, Interface: path.Route.Interface, Gateway: textOf(path.Route.Gateway),
			Network: networkText(path.Route), NoCarrier: path.Route.NoCarrier,
		},
		Source: textOf(path.Source), Masqueraded: path.Masqueraded, Drops: path.Drops, Rule: path.By, RuleOfOthers: path.ByOther,
		Others: path.Others, OthersFirst: path.OthersFirst, MayTranslate: path.MayTranslate,
	}, nil
}

func networkText(r hostnet.HostRoute) string {
	if !r.Network.IsValid() {
		return ""
	}
	return r.Network.String()
}

// parseHost parses the query of a request. Parameters that this version does not know are ignored.
func parseHost(query string) (request diagnostics.HostPacket, packet hostnet.HostPacket, err error) {
	p, err := parseParameters(query)
	if err != nil {
		return request, packet, err
	}
	request = diagnostics.HostPacket{From: p.text("from"), Translated: p.flag("translated"), Protocol: p.text("protocol"), DestinationPort: p.port("destinationPort")}
	packet = hostnet.HostPacket{
		FromPods: request.From == diagnostics.FromTun0, Translated: request.Translated, Protocol: strings.ToLower(request.Protocol),
		Source: p.addr("source"), Destination: p.addr("destination"), DestinationPort: request.DestinationPort,
	}
	switch request.From {
	case diagnostics.FromTun0:
		if !packet.Source.IsValid() {
			p.failf("source", "is required with from=%s", diagnostics.FromTun0)
		}
	case diagnostics.FromHost:
	default:
		p.failf("from", "is %.*q, but must be %s or %s", diagnostics.MaxQuoted, request.From, diagnostics.FromTun0, diagnostics.FromHost)
	}
	if !packet.Destination.IsValid() {
		p.failf("destination", "is required")
	}
	p.protocol(&traceRequest{packet: diagnostics.TracePacket{Protocol: request.Protocol, DestinationPort: request.DestinationPort}})
	request.Source, request.Destination = textOf(packet.Source), textOf(packet.Destination)
	return request, packet, p.err
}

// flag returns the value of a parameter; false if it is not set.
func (p *parameters) flag(name string) bool {
	text := p.text(name)
	if text == "" {
		return false
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		p.failf(name, "is %.*q, but must be true or false", diagnostics.MaxQuoted, text)
	}
	return value
}

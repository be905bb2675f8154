package diagnosticsserver

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podprobe"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

const (
	maxProbes          = 16 // at the same time
	maxNamespaceProbes = 2  // of them from pods of one namespace: a tenant must not delay the others
	probesPerSecond    = 10
)

// serveProbe sends a probe from a pod of the node.
func (h *Handler) serveProbe(w http.ResponseWriter, r *http.Request) {
	request, timeout, err := parseProbe(r.URL.RawQuery)
	if err != nil {
		refuse(w, err)
		return
	}
	release := h.probes.acquire(request.from.Namespace)
	if release == nil {
		refuse(w, failf(http.StatusTooManyRequests, "the agent of node %s sends %d probes at the same time, %d of one namespace, and %d in a second; retry",
			h.options.NodeName, maxProbes, maxNamespaceProbes, probesPerSecond))
		return
	}
	defer release()
	answer, err := h.probe(r.Context(), request, timeout)
	if err != nil {
		refuse(w, err)
		return
	}
	send(w, answer)
}

// probe sends a probe. The agent's own record has the pod and its namespace: no parameter names a namespace.
func (h *Handler) probe(ctx context.Context, r *traceRequest, timeout time.Duration) (*diagnostics.NodeProbe, error) {
	n, err := h.ready()
	if err != nil {
		return nil, err
	}
	status, err := h.probeFrom(ctx, n, n.Pods(), r, timeout)
	if err != nil {
		return nil, err
	}
	return &diagnostics.NodeProbe{TypeMeta: h.typeMeta("NodeProbe"), ObjectMeta: metav1.ObjectMeta{Name: h.options.NodeName}, Packet: r.packet, Status: status}, nil
}

// probeFrom sends a probe from its pod, and completes the request.
func (h *Handler) probeFrom(ctx context.Context, n *Network, pods []sandbox.Pod, r *traceRequest, timeout time.Duration) (diagnostics.ProbeStatus, error) {
	pod, source, err := r.ownPod(h.options.NodeName, pods)
	if err != nil {
		return diagnostics.ProbeStatus{}, err
	}
	r.packet.Source = source.String()
	status, err := n.Probe(ctx, podprobe.Probe{
		Netns: pod.Netns, Source: source, Destination: netip.AddrPortFrom(r.destination, r.packet.DestinationPort), Protocol: r.protocol, Timeout: timeout,
	})
	if err != nil {
		return status, failf(http.StatusServiceUnavailable, "no packet can be sent from the network namespace of %s on node %s: %w", r.from, h.options.NodeName, err)
	}
	return status, nil
}

// parseProbe parses the query of a request: that of a trace from a pod, with fewer parameters, and with the time until which it waits for an answer.
func parseProbe(query string) (*traceRequest, time.Duration, error) {
	p, err := parseParameters(query)
	if err != nil {
		return nil, 0, err
	}
	r, err := p.trace()
	if err != nil {
		return nil, 0, err
	}
	if r.from.Kind != diagnostics.KindPod {
		p.failf("from", "is %s, but probes are sent from pods only", r.packet.From)
	}
	if r.protocol == ovs.ProtocolNumberSCTP {
		p.failf("protocol", "is SCTP, but must be TCP, UDP or ICMP")
	}
	for _, name := range []string{"source", "sourcePort", "endpoint", "conntrack"} {
		if p.text(name) != "" {
			p.failf(name, "is not allowed in a probe")
		}
	}
	seconds := p.number(diagnostics.TimeoutParameter, diagnostics.MaxProbeSeconds)
	if seconds == 0 {
		seconds = diagnostics.DefaultProbeSeconds
	}
	r.packet.SourcePort = 0                               // the kernel selects it
	return r, time.Duration(seconds) * time.Second, p.err //nolint:gosec // in the range
}

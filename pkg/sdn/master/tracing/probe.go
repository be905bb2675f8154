package tracing

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// ParseProbe validates a ProbeSpec without any object. Errors have the names of fields.
func ParseProbe(spec *diagnostics.ProbeSpec) (q Query, errs field.ErrorList) {
	q, errs = ParseSpec(&diagnostics.TraceSpec{Source: spec.Source, Destination: spec.Destination, Protocol: spec.Protocol, Port: spec.Port})
	path := field.NewPath("spec")
	if len(errs) == 0 && q.Source.Object.Kind != diagnostics.KindPod {
		errs = append(errs, field.Invalid(path.Child("source"), q.Source.String(), "a probe is sent from a pod; write pod/NAMESPACE/NAME"))
	}
	if q.Protocol == SCTP {
		errs = append(errs, field.NotSupported(path.Child("protocol"), q.Protocol, []string{TCP, UDP, ICMP}))
	}
	if spec.TimeoutSeconds < 0 || spec.TimeoutSeconds > diagnostics.MaxProbeSeconds {
		errs = append(errs, field.Invalid(path.Child("timeoutSeconds"), spec.TimeoutSeconds, fmt.Sprintf("must be between 1 and %d, or 0 for %d", diagnostics.MaxProbeSeconds, diagnostics.DefaultProbeSeconds)))
	}
	q.SourcePort, q.Timeout = 0, time.Duration(spec.TimeoutSeconds)*time.Second
	if q.Timeout == 0 {
		q.Timeout = diagnostics.DefaultProbeSeconds * time.Second
	}
	return q, errs
}

// Probe lets the agent of the source's node send a packet from the pod. The error is a *field.Error if the query does not fit the cluster.
func (t *Tracer) Probe(ctx context.Context, q Query) (*diagnostics.ProbeStatus, error) {
	r, err := t.begin(ctx, q)
	if err != nil {
		return nil, err
	}
	if r.source.isHost {
		return nil, field.Invalid(field.NewPath("spec", "source"), q.Source.String(), "is on the host network; a probe is sent from a pod with a network of its own")
	}
	to, problem, err := r.probed(ctx)
	switch {
	case err != nil:
		return nil, err
	case r.source.problem != "":
		return notProbed(r.source.problem), nil
	case problem != "":
		return notProbed(problem), nil
	case r.source.node.NoAgent != "":
		return notProbed(fmt.Sprintf("node %s: %s", r.source.node.Name, r.source.node.NoAgent)), nil
	}
	return r.send(ctx, to), nil
}

func notProbed(reason string) *diagnostics.ProbeStatus {
	return &diagnostics.ProbeStatus{Verdict: diagnostics.VerdictUnknown, Reason: reason}
}

// probed returns the address and the port of the destination: a service is left to the proxy of the node.
func (r *run) probed(ctx context.Context) (to netip.AddrPort, problem string, err error) {
	if r.query.Destination.Object.Kind == diagnostics.KindService {
		s, _, problem, err := r.readPort(ctx)
		if err != nil || problem != "" {
			return netip.AddrPort{}, problem, err
		}
		return netip.AddrPortFrom(s.service.ClusterIP, s.port.Number), "", nil
	}
	destination, err := r.resolve(ctx, field.NewPath("spec", "destination"), r.query.Destination)
	return netip.AddrPortFrom(destination.addr, r.query.Port), destination.problem, err
}

// send returns the answer of the agent, without names that the user may not read.
func (r *run) send(ctx context.Context, to netip.AddrPort) *diagnostics.ProbeStatus {
	node := r.source.node
	packet := diagnostics.TracePacket{From: r.source.pod, Protocol: r.query.Protocol, Destination: to.Addr().String(), DestinationPort: to.Port()}
	answer, err := r.Agents.Probe(ctx, node, packet, r.query.Timeout)
	if err != nil {
		return notProbed(fmt.Sprintf("node %s: %s", node.Name, r.explain(ctx, node, packet, err)))
	}
	status := answer.Status
	isKnown := slices.Contains([]diagnostics.Verdict{diagnostics.VerdictAnswered, diagnostics.VerdictRefused, diagnostics.VerdictNoAnswer, diagnostics.VerdictUnknown}, status.Verdict)
	switch {
	case !isAnswerTo(packet, answer.Packet), answer.Packet.Source != r.source.addr.String(): // or a pod that was deleted, of the same name
		return notProbed(fmt.Sprintf("the agent of node %s has sent another packet", node.Name))
	case !isKnown || status.Reason == "" || !r.seesNames(ctx, status.Reason):
		return notProbed(fmt.Sprintf("node %s: invalid answer of the agent: its verdict and reason can't be those of the packet", node.Name))
	}
	return &status
}

package balancer

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// report is what users of a service must know. It is comparable.
type report struct {
	limits  [limits]bool // what this node does not support, for an Event on the Node
	invalid string       // fields that are ignored, for the log: each node would write the same Event
}

// maxInvalid bounds the text of invalid fields, in bytes.
const maxInvalid = 1024

// limit is a part of services that this node does not support.
type limit int

const (
	limitAddress limit = iota
	limitClientPort
	limitTunnel
	limitNumber
	limitLocal
	limitConflict
	limitSources
	limitSCTP
	limitAffinity
	limitAffine
	limits // their number
)

func (l limit) String() string {
	switch l {
	case limitAddress:
		return "an external IP or address of a load balancer is in the pod or service network, or is the API server's address and port, and is not served; " +
			"correct spec.externalIPs or status.loadBalancer"
	case limitClientPort:
		return "an external IP with a UDP or SCTP port above 32767 is not served, since replies to clients use these ports; use a lower port"
	case limitTunnel:
		return "the UDP port of an external IP, of an address of a load balancer or of a node port is that of VXLAN, and is not served; use another port"
	case limitLocal:
		return fmt.Sprintf("the node may use only endpoints on itself for a port, as with a traffic policy of Local, and uses %d of them; distribute the pods over more "+
			"nodes or several services",
			pipeline.MaxEndpoints)
	case limitNumber:
		return fmt.Sprintf("the service has more than %d node ports and combinations of external address and port, and the others are not served; "+
			"distribute the ports over several services", maxExternal)
	case limitConflict:
		return "another service has the same external address and port, or node port, and gets its packets: it has the address from a load balancer, or is older; " +
			"change one of the two"
	case limitSources:
		return fmt.Sprintf("addresses of load balancers accept no client: spec.loadBalancerSourceRanges has no IPv4 range, or the product of source ranges, addresses and "+
			"ports of a service exceeds %d; correct or combine the ranges, or distribute the ports over several services", maxSourceFlows)
	case limitSCTP:
		return "ports of SCTP have no flows: Open vSwitch's userspace datapath can't translate SCTP; use the kernel's (--datapath=system)"
	case limitAffine:
		return fmt.Sprintf("session affinity has no effect on a part of the addresses and ports: the product of these and endpoints exceeds %d; distribute the ports over "+
			"several services", maxAffineFlows)
	case limitAffinity:
		return fmt.Sprintf("the timeout of session affinity is %d s on this node: Open vSwitch supports no more; "+
			"set sessionAffinityConfig.clientIP.timeoutSeconds", math.MaxUint16)
	}
	return fmt.Sprintf("limit %d", int(l))
}

// limitsInterval is the minimum interval of Events about one limit. Tenants create services, each of which concerns all nodes.
const limitsInterval = 10 * time.Minute

// addProblems adds the invalid fields of an object.
func (r *report) addProblems(object string, problems endpoints.Problems) {
	if problems.Total == 0 || len(r.invalid) > maxInvalid {
		return
	}
	texts := make([]string, len(problems.First))
	for i, p := range problems.First {
		texts[i] = p.Error()
	}
	r.invalid = join(r.invalid, fmt.Sprintf("%s: %d invalid fields, first: %s", object, problems.Total, strings.Join(texts, ", ")))
}

func join(text, more string) string {
	if text == "" {
		return more
	}
	return text + "; " + more
}

// affinity returns the timeout of session affinity in seconds, which Open vSwitch stores in 16 bits.
func (r *report) affinity(svc *endpoints.Service) uint16 {
	seconds := int(svc.Affinity / time.Second)
	if seconds > math.MaxUint16 {
		r.limits[limitAffinity] = true
		seconds = math.MaxUint16
	}
	return uint16(seconds) //nolint:gosec // limited above
}

// maxAffineFlows is the number of flows of a service that learn the endpoints of clients, one for each frontend and endpoint.
const maxAffineFlows = 8192

// limitAffine removes session affinity from the frontends that would have more than maxAffineFlows flows.
func (r *report) limitAffine(frontends []pipeline.Frontend) {
	flows := 0
	for i := range frontends {
		if frontends[i].Affinity == 0 {
			continue
		}
		if flows += len(frontends[i].Endpoints); flows > maxAffineFlows {
			frontends[i].Affinity, r.limits[limitAffine] = 0, true
		}
	}
}

// report reports what has changed since the last report of the service. It logs each limit of each service, as far as limitedLog permits, and requests an Event
// about the limit.
func (b *Balancer) report(ctx context.Context, service string, found report) {
	b.mu.Lock()
	last := b.reported[service]
	if found == (report{}) {
		delete(b.reported, service)
	} else {
		b.reported[service] = found
	}
	var added []limit
	for l := range limits {
		switch {
		case found.limits[l] && !last.limits[l]:
			b.limited[l]++
			added = append(added, l)
		case !found.limits[l] && last.limits[l]:
			b.limited[l]--
		}
	}
	b.mu.Unlock()
	for _, l := range added {
		b.logs.limits.info(ctx, "Part of the Service is not supported on this node", "service", service, "reason", l)
		b.limits[l].Trigger()
	}
	if found.invalid != "" && found.invalid != last.invalid {
		b.logs.invalid.info(ctx, "Ignored invalid fields of the Service", "service", service, "fields", found.invalid,
			"action", "correct the Service or its EndpointSlices")
	}
}

// logs are the log lines about services, which tenants can cause.
type logs struct{ limits, invalid limitedLog }

func newLogs() *logs { return &logs{newLimitedLog(), newLimitedLog()} }

// limitedLog writes at most 1,000 lines at once, and one per second.
type limitedLog struct {
	*rate.Limiter
	omitted *atomic.Int64 // lines since the last one
}

func newLimitedLog() limitedLog { return limitedLog{rate.NewLimiter(1, 1000), &atomic.Int64{}} }

func (l limitedLog) info(ctx context.Context, message string, keysAndValues ...any) {
	if !l.Allow() {
		l.omitted.Add(1)
		return
	}
	klog.FromContext(ctx).Info(message, append(keysAndValues, "omittedBefore", l.omitted.Swap(0))...)
}

// newLimits creates a runner for each limit: an Event about one does not delay that about another.
func (b *Balancer) newLimits() {
	for l := range limits {
		b.limits[l] = reconcile.NewRunner("limits of services", limitsInterval, func(context.Context) error {
			b.reportLimit(l)
			return nil
		})
	}
}

// reportLimit writes an Event about the services that the limit concerns, if any.
func (b *Balancer) reportLimit(l limit) {
	b.mu.Lock()
	n, service := b.limited[l], b.firstLimited(l)
	b.mu.Unlock()
	if n > 0 {
		b.events.WarnNode(eventreason.ServiceLimited, fmt.Sprintf("%d services, such as %s: %s", n, service, l))
	}
}

// firstLimited returns the first of the services by name that the limit concerns. b.mu is held.
func (b *Balancer) firstLimited(l limit) (first string) {
	for service, r := range b.reported {
		if r.limits[l] && (first == "" || service < first) {
			first = service
		}
	}
	return first
}

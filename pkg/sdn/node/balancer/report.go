package balancer

import (
	"fmt"
	"math"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

// report is what users of a service must know. It is comparable.
type report struct {
	limits  string // what this node does not support, for an Event on the Node
	invalid string // fields that are ignored, for the log: each node would write the same Event
}

// maxInvalid bounds the text of invalid fields, in bytes.
const maxInvalid = 1024

// addLimit adds something that this node does not support.
func (r *report) addLimit(format string, args ...any) {
	r.limits = join(r.limits, fmt.Sprintf(format, args...))
}

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
		r.addLimit("the timeout of session affinity is %d s on this node, not %d s: Open vSwitch supports no more; set sessionAffinityConfig.clientIP.timeoutSeconds",
			math.MaxUint16, seconds)
		seconds = math.MaxUint16
	}
	return uint16(seconds) //nolint:gosec // limited above
}

// report reports what has changed since the last report of the service.
func (b *Balancer) report(service string, found report) {
	b.mu.Lock()
	last := b.reported[service]
	if found == (report{}) {
		delete(b.reported, service)
	} else {
		b.reported[service] = found
	}
	b.mu.Unlock()
	if found.limits != "" && found.limits != last.limits {
		b.events.WarnNode(eventreason.ServiceLimited, fmt.Sprintf("service %s: %s", service, found.limits))
	}
	if found.invalid != "" && found.invalid != last.invalid {
		klog.Background().Info("Ignored invalid fields of a service", "service", service, "fields", found.invalid, "action", "correct the Service or its EndpointSlices")
	}
}

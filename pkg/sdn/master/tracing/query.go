package tracing

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// The protocols of packets.
const (
	TCP  = "TCP"
	UDP  = "UDP"
	SCTP = "SCTP"
	ICMP = "ICMP"
)

// Target is a source or a destination: an object or an address.
type Target struct {
	Object diagnostics.Object // zero for an address
	Addr   netip.Addr
}

// String returns the target as users write it.
func (t Target) String() string {
	if t.Object == (diagnostics.Object{}) {
		return t.Addr.String()
	}
	return t.Object.String()
}

// Namespace returns the namespace of a pod or a service, "" for other targets.
func (t Target) Namespace() string { return t.Object.Namespace }

// Query is a valid TraceSpec or ProbeSpec.
type Query struct {
	Source, Destination Target
	Protocol            string
	Port, SourcePort    uint16        // 0 with ICMP; Port is 0, too, for the only port of a service
	Timeout             time.Duration // until the answer to a probe
}

// ParseSpec validates a TraceSpec without any object. Errors have the names of fields.
func ParseSpec(spec *diagnostics.TraceSpec) (q Query, errs field.ErrorList) {
	path := field.NewPath("spec")
	var fault *field.Error
	if q.Source, fault = parseTarget(path.Child("source"), spec.Source, diagnostics.KindPod, diagnostics.KindNode); fault != nil {
		errs = append(errs, fault)
	}
	if q.Destination, fault = parseTarget(path.Child("destination"), spec.Destination, diagnostics.KindPod, diagnostics.KindService, diagnostics.KindNode); fault != nil {
		errs = append(errs, fault)
	}
	if len(errs) == 0 && q.Source.Namespace() == "" && q.Destination.Namespace() == "" {
		errs = append(errs, field.Invalid(path.Child("destination"), q.Destination.String(), "neither the source nor the destination is a pod or a service: the packet does not pass the pod network"))
	}
	if len(errs) == 0 && q.Source == q.Destination {
		errs = append(errs, field.Invalid(path.Child("destination"), q.Destination.String(), "is the source"))
	}
	if q.Protocol = spec.Protocol; q.Protocol == "" {
		q.Protocol = TCP
	}
	if all := []string{TCP, UDP, SCTP, ICMP}; !slices.Contains(all, q.Protocol) {
		errs = append(errs, field.NotSupported(path.Child("protocol"), quotable(q.Protocol), all))
		return q, errs
	}
	return q, append(errs, q.setPorts(path, spec)...)
}

func (q *Query) setPorts(path *field.Path, spec *diagnostics.TraceSpec) (errs field.ErrorList) {
	isService := q.Destination.Object.Kind == diagnostics.KindService
	if q.Protocol == ICMP {
		if spec.Port != 0 {
			errs = append(errs, field.Invalid(path.Child("port"), spec.Port, "ICMP has no ports"))
		}
		if spec.SourcePort != 0 {
			errs = append(errs, field.Invalid(path.Child("sourcePort"), spec.SourcePort, "ICMP has no ports"))
		}
		if isService {
			errs = append(errs, field.Invalid(path.Child("protocol"), q.Protocol, "services have no ICMP; write the protocol of one of its ports"))
		}
		return errs
	}
	valid := func(name string, value int32) uint16 {
		if value < 1 || value > math.MaxUint16 {
			errs = append(errs, field.Invalid(path.Child(name), value, "must be between 1 and 65535"))
			return 0
		}
		return uint16(value)
	}
	switch {
	case spec.Port != 0:
		q.Port = valid("port", spec.Port)
	case !isService:
		errs = append(errs, field.Required(path.Child("port"), "the port of the destination"))
	}
	if q.SourcePort = diagnostics.DefaultSourcePort; spec.SourcePort != 0 {
		q.SourcePort = valid("sourcePort", spec.SourcePort)
	}
	return errs
}

func parseTarget(path *field.Path, text string, kinds ...diagnostics.Kind) (Target, *field.Error) {
	forms := make([]string, 0, len(kinds)+1)
	for _, k := range kinds {
		if k.IsNamespaced() {
			forms = append(forms, string(k)+"/NAMESPACE/NAME")
		} else {
			forms = append(forms, string(k)+"/NAME")
		}
	}
	want := "write " + strings.Join(forms, ", ") + " or an IPv4 address"
	switch {
	case text == "":
		return Target{}, field.Required(path, want)
	case !strings.Contains(text, "/"):
		addr, err := netip.ParseAddr(text)
		if err != nil || !addr.Is4() || !addr.IsGlobalUnicast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return Target{}, field.Invalid(path, quotable(text), want)
		}
		return Target{Addr: addr}, nil
	}
	o, err := diagnostics.ParseObject(text)
	if err != nil || !slices.Contains(kinds, o.Kind) {
		return Target{}, field.Invalid(path, quotable(text), want)
	}
	return Target{Object: o}, nil
}

// quotable returns the begin of an invalid value, which errors repeat.
func quotable(text string) string {
	return fmt.Sprintf("%.*s", diagnostics.MaxQuoted, strings.ToValidUTF8(text, ""))
}

package diagnostics

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// CaptureSubresource is the subresource of captures that is created. For requests with this one, kube-apiserver has neither a time-out nor a seat in its limits of
// requests at the same time.
const CaptureSubresource = "attach"

// NodeCapturePath is the path of a capture on the HTTPS port of an agent, with PodParameter, PodUIDParameter and those of CaptureSpec.Query. The agent refuses
// other parameters: without one of them, it could capture more than what was asked for.
const NodeCapturePath = "/diagnostics/v1alpha1/capture"

// The query parameters of NodeCapturePath besides those of CaptureSpec.
const (
	PodParameter    = "pod" // pod/NAMESPACE/NAME
	PodUIDParameter = "uid" // that the container runtime has for its sandboxes
)

// ContentTypePcapng is the media type of the answer, a pcapng file.
const ContentTypePcapng = "application/x-pcapng"

// Limits of a capture.
const (
	DefaultCaptureSeconds = 30
	MaxCaptureSeconds     = 600
	DefaultCaptureBytes   = 16 << 20
	MinCaptureBytes       = 4 << 10
	MaxCaptureBytes       = 256 << 20
	MaxCapturePackets     = 1 << 30
	DefaultSnapLength     = 256
	MinSnapLength         = 64
	MaxSnapLength         = 65535
)

// The protocols that a capture can be limited to.
const (
	CaptureTCP  = "TCP"
	CaptureUDP  = "UDP"
	CaptureSCTP = "SCTP"
	CaptureICMP = "ICMP"
	CaptureARP  = "ARP"
)

// CaptureProtocols returns the protocols that a capture can be limited to.
func CaptureProtocols() []string {
	return []string{CaptureTCP, CaptureUDP, CaptureSCTP, CaptureICMP, CaptureARP}
}

// Capture asks for the packets of a pod's interface. The answer is a pcapng file, which is sent while packets arrive. Only create is possible; nothing is stored.
type Capture struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec CaptureSpec `json:"spec"`
}

// CaptureSpec has the limits of a capture, and the packets that are wanted. Without Protocol, Port and Host, all are.
type CaptureSpec struct {
	DurationSeconds int32 `json:"durationSeconds,omitempty"` // at most MaxCaptureSeconds; 0 is DefaultCaptureSeconds
	MaxBytes        int32 `json:"maxBytes,omitempty"`        // of the file; 0 is DefaultCaptureBytes
	MaxPackets      int32 `json:"maxPackets,omitempty"`      // 0: no limit
	SnapLength      int32 `json:"snapLength,omitempty"`      // bytes of each packet; 0 is DefaultSnapLength

	Protocol string `json:"protocol,omitempty"` // one of CaptureProtocols, of IPv4
	Port     int32  `json:"port,omitempty"`     // source or destination
	Host     string `json:"host,omitempty"`     // source or destination: an IPv4 address or a prefix
}

// Complete sets defaults, and validates the spec. Errors have the names of fields.
func (s *CaptureSpec) Complete() (errs field.ErrorList) {
	path := field.NewPath("spec")
	for _, n := range []struct {
		name             string
		value            *int32
		least, most, def int32
	}{
		{"durationSeconds", &s.DurationSeconds, 1, MaxCaptureSeconds, DefaultCaptureSeconds},
		{"maxBytes", &s.MaxBytes, MinCaptureBytes, MaxCaptureBytes, DefaultCaptureBytes},
		{"maxPackets", &s.MaxPackets, 1, MaxCapturePackets, 0},
		{"snapLength", &s.SnapLength, MinSnapLength, MaxSnapLength, DefaultSnapLength},
		{"port", &s.Port, 1, MaxSnapLength, 0},
	} {
		switch {
		case *n.value == 0:
			*n.value = n.def
		case *n.value < n.least || *n.value > n.most:
			errs = append(errs, field.Invalid(path.Child(n.name), *n.value, fmt.Sprintf("must be between %d and %d", n.least, n.most)))
		}
	}
	if s.Protocol != "" && !slices.Contains(CaptureProtocols(), s.Protocol) {
		errs = append(errs, field.NotSupported(path.Child("protocol"), beginOf(s.Protocol), CaptureProtocols()))
	} else if s.Port != 0 && (s.Protocol == CaptureICMP || s.Protocol == CaptureARP) {
		errs = append(errs, field.Invalid(path.Child("port"), s.Port, s.Protocol+" has no ports"))
	}
	if s.Host == "" {
		return errs
	}
	prefix, ok := parseHost(s.Host)
	if !ok {
		return append(errs, field.Invalid(path.Child("host"), beginOf(s.Host), "write an IPv4 address or a prefix such as 10.128.0.0/14"))
	}
	s.Host = prefix.String()
	return errs
}

// beginOf returns the begin of an invalid value, which errors repeat.
func beginOf(text string) string {
	return fmt.Sprintf("%.*s", MaxQuoted, strings.ToValidUTF8(text, ""))
}

// parseHost returns the prefix, or that of the address.
func parseHost(text string) (netip.Prefix, bool) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Is4() {
		return netip.PrefixFrom(addr, addr.BitLen()), true
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err == nil && prefix.Addr().Is4()
}

// Prefix returns the Host of a complete spec; the zero Prefix if it has none.
func (s *CaptureSpec) Prefix() netip.Prefix {
	prefix, _ := parseHost(s.Host)
	return prefix
}

// Filter returns the wanted packets as text, "" for all.
func (s *CaptureSpec) Filter() string {
	var parts []string
	if s.Protocol != "" {
		parts = append(parts, strings.ToLower(s.Protocol))
	}
	if s.Port != 0 {
		parts = append(parts, "port "+strconv.Itoa(int(s.Port)))
	}
	if s.Host != "" {
		parts = append(parts, "net "+s.Host)
	}
	return strings.Join(parts, " and ")
}

// Query returns the spec as query parameters: each field is the parameter of its JSON name.
func (s *CaptureSpec) Query() url.Values {
	query := url.Values{}
	for name, value := range s.numbers() {
		if *value != 0 {
			query.Set(name, strconv.Itoa(int(*value)))
		}
	}
	for name, value := range s.texts() {
		if *value != "" {
			query.Set(name, *value)
		}
	}
	return query
}

func (s *CaptureSpec) numbers() map[string]*int32 {
	return map[string]*int32{"durationSeconds": &s.DurationSeconds, "maxBytes": &s.MaxBytes, "maxPackets": &s.MaxPackets, "snapLength": &s.SnapLength, "port": &s.Port}
}

func (s *CaptureSpec) texts() map[string]*string {
	return map[string]*string{"protocol": &s.Protocol, "host": &s.Host}
}

// ParseCaptureQuery returns the spec of Query, complete, and the values of the other parameters. A parameter that it does not know is an error, as is one that
// is set twice.
func ParseCaptureQuery(query url.Values) (s CaptureSpec, others map[string]string, err error) {
	others = map[string]string{PodParameter: "", PodUIDParameter: ""}
	numbers, texts := s.numbers(), s.texts()
	for name, values := range query {
		if len(values) != 1 {
			return s, nil, fmt.Errorf("parameter %.*q is set %d times; set it once", MaxQuoted, name, len(values))
		}
		_, isOther := others[name]
		switch {
		case numbers[name] != nil:
			n, err := strconv.ParseInt(values[0], 10, 32)
			if err != nil {
				return s, nil, fmt.Errorf("parameter %s is %.*q, but must be a number", name, MaxQuoted, values[0])
			}
			*numbers[name] = int32(n)
		case texts[name] != nil:
			*texts[name] = values[0]
		case isOther:
			others[name] = values[0]
		default:
			return s, nil, fmt.Errorf("parameter %.*q is unknown to this version; upgrade the agent", MaxQuoted, name)
		}
	}
	return s, others, s.Complete().ToAggregate()
}

// CaptureEnd is why a capture ended. The comment of the file's last block begins with it. A file without it is not complete.
type CaptureEnd string

// The ends of a capture.
const (
	CaptureEndDuration  CaptureEnd = "DurationReached"
	CaptureEndPackets   CaptureEnd = "PacketLimitReached"
	CaptureEndBytes     CaptureEnd = "ByteLimitReached"
	CaptureEndInterface CaptureEnd = "InterfaceRemoved" // of the pod, as when the pod is deleted
	CaptureEndFailed    CaptureEnd = "Failed"
)

// IsComplete reports whether the capture has all packets until a limit of its spec, except those that were dropped.
func (e CaptureEnd) IsComplete() bool {
	return e == CaptureEndDuration || e == CaptureEndPackets || e == CaptureEndBytes
}

const endSeparator = ": "

// Comment returns the comment of a file's last block. The reason is a sentence.
func (e CaptureEnd) Comment(reason string) string { return string(e) + endSeparator + reason }

// ParseCaptureEnd returns the content of a comment; false for other comments.
func ParseCaptureEnd(comment string) (end CaptureEnd, reason string, ok bool) {
	text, reason, found := strings.Cut(comment, endSeparator)
	end = CaptureEnd(text)
	return end, reason, found && slices.Contains([]CaptureEnd{CaptureEndDuration, CaptureEndPackets, CaptureEndBytes, CaptureEndInterface, CaptureEndFailed}, end)
}

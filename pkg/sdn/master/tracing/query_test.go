package tracing

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

func netPrefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }
func itoa(n int) string                  { return strconv.Itoa(n) }

func TestParseSpec(t *testing.T) {
	for name, tc := range map[string]struct {
		spec diagnostics.TraceSpec
		want string // the fields of the errors
	}{
		"TCP":                       {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "pod/b/db", Port: 80}, ""},
		"ICMP":                      {diagnostics.TraceSpec{Source: "node/n", Destination: "pod/b/db", Protocol: "ICMP"}, ""},
		"only port of a service":    {diagnostics.TraceSpec{Source: "203.0.113.5", Destination: "service/b/db"}, ""},
		"empty":                     {diagnostics.TraceSpec{}, "spec.source spec.destination spec.port"},
		"lower case":                {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "pod/b/db", Protocol: "tcp", Port: 80}, "spec.protocol"},
		"without a port":            {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "pod/b/db"}, "spec.port"},
		"negative":                  {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "pod/b/db", Port: -1, SourcePort: -1}, "spec.port spec.sourcePort"},
		"large":                     {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "pod/b/db", Port: 65536, SourcePort: 65536}, "spec.port spec.sourcePort"},
		"ICMP with ports":           {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "service/b/db", Protocol: "ICMP", Port: 1, SourcePort: 1}, "spec.port spec.sourcePort spec.protocol"},
		"source is a service":       {diagnostics.TraceSpec{Source: "service/a/web", Destination: "pod/b/db", Port: 80}, "spec.source"},
		"destination is a policy":   {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "networkpolicy/b/db", Port: 80}, "spec.destination"},
		"path":                      {diagnostics.TraceSpec{Source: "pod/a/../web", Destination: "pod/b/db?x", Port: 80}, "spec.source spec.destination"},
		"IPv6":                      {diagnostics.TraceSpec{Source: "2001:db8::1", Destination: "pod/b/db", Port: 80}, "spec.source"},
		"multicast":                 {diagnostics.TraceSpec{Source: "pod/b/db", Destination: "224.0.0.1", Port: 80}, "spec.destination"},
		"broadcast":                 {diagnostics.TraceSpec{Source: "pod/b/db", Destination: "255.255.255.255", Port: 80}, "spec.destination"},
		"loopback":                  {diagnostics.TraceSpec{Source: "127.0.0.1", Destination: "pod/b/db", Port: 80}, "spec.source"},
		"no pod":                    {diagnostics.TraceSpec{Source: "node/a", Destination: "203.0.113.5", Port: 80}, "spec.destination"},
		"to itself":                 {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "pod/a/web", Port: 80}, "spec.destination"},
		"a long name of characters": {diagnostics.TraceSpec{Source: strings.Repeat("a", 300), Destination: "pod/a/web", Port: 80}, "spec.source"},
	} {
		_, errs := ParseSpec(&tc.spec)
		var fields []string
		for _, e := range errs {
			fields = append(fields, e.Field)
		}
		if got := strings.Join(fields, " "); got != tc.want {
			t.Errorf("%s: got errors of %q, want %q: %v", name, got, tc.want, errs)
		}
		if text := errs.ToAggregate(); text != nil && len(text.Error()) > 1500 {
			t.Errorf("%s: got an error of %d bytes", name, len(text.Error()))
		}
	}
}

// The names of tables that have a meaning here are those of the pipeline.
func TestTables(t *testing.T) {
	var selects, policies []string
	for _, table := range pipeline.Tables() {
		if selectsEndpoint(diagnostics.TraceStep{TableName: table.Name}) {
			selects = append(selects, table.Name)
		}
		if isPolicyTable(table.Name) {
			policies = append(policies, table.Name)
		}
	}
	if !slices.Equal(selects, []string{"translate", "translated"}) || !slices.Equal(policies, []string{"egress-policy", "ingress-policy", "egress-firewall"}) {
		t.Errorf("got %v and %v", selects, policies)
	}
}

func FuzzParseSpec(f *testing.F) {
	f.Add("pod/a/web", "service/b/db", "TCP", int32(80), int32(0))
	f.Add("10.0.0.1", "pod/b/\x1b[2J", "ICMP", int32(-1), int32(70000))
	f.Fuzz(func(t *testing.T, source, destination, protocol string, port, sourcePort int32) {
		q, errs := ParseSpec(&diagnostics.TraceSpec{Source: source, Destination: destination, Protocol: protocol, Port: port, SourcePort: sourcePort})
		if len(errs) > 0 {
			return
		}
		if q.Source.String() != source && q.Source.Addr.String() != source || q.Source.Namespace() == "" && q.Destination.Namespace() == "" || q.Source == q.Destination {
			t.Errorf("got %+v of %q and %q", q, source, destination)
		}
		if (q.Protocol == ICMP) != (q.SourcePort == 0) || int32(q.Port) != port {
			t.Errorf("got ports %d and %d of %s", q.Port, q.SourcePort, q.Protocol)
		}
	})
}

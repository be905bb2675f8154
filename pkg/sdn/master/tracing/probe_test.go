package tracing

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// probe probes for a user who sees namespace a.
func (c *fakeCluster) probe(t *testing.T, spec diagnostics.ProbeSpec) (*diagnostics.ProbeStatus, error) {
	t.Helper()
	query, errs := ParseProbe(&spec)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	c.asked = nil
	tracer := &Tracer{Cluster: c, Agents: c, Sees: func(_ context.Context, o diagnostics.Object) bool { return o.Namespace == "a" }}
	return tracer.Probe(t.Context(), query)
}

func TestParseProbe_refuses(t *testing.T) {
	for want, spec := range map[string]diagnostics.ProbeSpec{
		"spec.source: Invalid value: \"node/node1\": a probe is sent from a pod":  {Source: "node/node1", Destination: "pod/a/db", Port: 80},
		"spec.source: Invalid value: \"203.0.113.5\": a probe is sent from a pod": {Source: "203.0.113.5", Destination: "pod/a/db", Port: 80},
		"spec.protocol: Unsupported value: \"SCTP\"":                              {Source: "pod/a/web", Destination: "pod/a/db", Protocol: "SCTP", Port: 80},
		"spec.port: Required value":                                               {Source: "pod/a/web", Destination: "pod/a/db"},
		"spec.timeoutSeconds: Invalid value: 11":                                  {Source: "pod/a/web", Destination: "pod/a/db", Port: 80, TimeoutSeconds: 11},
		"spec.timeoutSeconds: Invalid value: -1":                                  {Source: "pod/a/web", Destination: "pod/a/db", Port: 80, TimeoutSeconds: -1},
	} {
		if _, errs := ParseProbe(&spec); len(errs) != 1 || !strings.Contains(errs[0].Error(), want) {
			t.Errorf("%+v: got %v, want %s", spec, errs, want)
		}
	}
}

// The agent of the source's node sends the packet to the address of the destination, of a service to its cluster IP.
func TestProbe(t *testing.T) {
	for want, spec := range map[string]diagnostics.ProbeSpec{
		"node1 pod/a/web>10.128.0.6:80 TCP 3s":  {Destination: "pod/a/db", Port: 80},
		"node1 pod/a/web>10.128.2.7:53 UDP 10s": {Destination: "pod/b/db", Protocol: "UDP", Port: 53, TimeoutSeconds: 10},
		"node1 pod/a/web>172.30.0.9:80 TCP 3s":  {Destination: "service/a/api"},
		"node1 pod/a/web>192.0.2.3:0 ICMP 3s":   {Destination: "node/node3", Protocol: "ICMP"},
		"node1 pod/a/web>192.0.2.2:80 TCP 3s":   {Destination: "pod/a/proxy", Port: 80},
		"node1 pod/a/web>203.0.113.5:80 TCP 3s": {Destination: "203.0.113.5", Port: 80},
	} {
		c := newCluster()
		spec.Source = "pod/a/web"
		got, err := c.probe(t, spec)
		if err != nil || got.Verdict != diagnostics.VerdictAnswered || got.Reason != "connected after 0.8 ms" || !slices.Equal(c.asked, []string{want}) {
			t.Errorf("%s: got %+v, %v, asked %q", want, got, err, c.asked)
		}
	}
}

// No agent is asked for a packet that can't be sent.
func TestProbe_notSent(t *testing.T) {
	c := newCluster()
	c.addPod("a/pending", "", "")
	c.addPod("a/ended", "node1", "10.128.0.9").Status.Phase = corev1.PodFailed
	c.addPod("a/foreign", "node4", "10.128.6.9")
	c.addService("a/headless", corev1.ClusterIPNone)
	c.nodes[2].NoAgent = "no hostIP"
	c.addPod("a/mute", "node3", "10.128.4.9")
	for _, tc := range []struct{ source, destination, want string }{
		{"pod/a/proxy", "pod/a/db", "spec.source: Invalid value: \"pod/a/proxy\": is on the host network"},
		{"pod/a/web", "10.128.2.7", "spec.destination: Invalid value: \"10.128.2.7\": is an address of the pod network"},
		{"pod/a/web", "172.30.0.9", "spec.destination: Invalid value: \"172.30.0.9\": is an address of the service network"},
		{"pod/a/missing", "pod/a/db", "not found"},
		{"pod/a/web", "service/a/missing", "not found"},
		{"pod/a/pending", "pod/a/db", "pod/a/pending is not scheduled to a node"},
		{"pod/a/web", "pod/a/ended", "pod/a/ended has ended"},
		{"pod/a/foreign", "pod/a/db", "node node4 of pod/a/foreign has no HostSubnet"},
		{"pod/a/web", "service/a/headless", "has no IPv4 cluster IP"},
		{"pod/a/mute", "pod/a/db", "node node3: no hostIP"},
	} {
		got, err := c.probe(t, diagnostics.ProbeSpec{Source: tc.source, Destination: tc.destination, Port: 80})
		var fault *field.Error
		switch {
		case len(c.asked) > 0:
			t.Errorf("%s to %s: asked %q", tc.source, tc.destination, c.asked)
		case err != nil && !strings.Contains(err.Error(), tc.want), strings.HasPrefix(tc.want, "spec.") && !errors.As(err, &fault):
			t.Errorf("%s to %s: got error %v, want %s", tc.source, tc.destination, err, tc.want)
		case err == nil && (got.Verdict != diagnostics.VerdictUnknown || !strings.Contains(got.Reason, tc.want)):
			t.Errorf("%s to %s: got %+v, want %s", tc.source, tc.destination, got, tc.want)
		}
	}
}

// Answers that are not those of a probe are not shown, nor are names of other tenants.
func TestProbe_answers(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*diagnostics.NodeProbe) error
		want   string
	}{
		"an old agent": {func(*diagnostics.NodeProbe) error {
			return &AgentError{Reason: "the agent of node1 does not support it; upgrade the agent", SkipNode: true}
		}, "node node1: the agent of node1 does not support it; upgrade the agent"},
		"a dead namespace": {func(*diagnostics.NodeProbe) error {
			return &AgentError{Reason: "no packet can be sent from the network namespace of pod/a/web"}
		}, "node node1: no packet can be sent from the network namespace of pod/a/web"},
		"an error with other names": {func(*diagnostics.NodeProbe) error { return &AgentError{Reason: "like pod/hidden/x"} }, "node node1: the agent does not evaluate the packet"},
		"a verdict of traces":       {func(o *diagnostics.NodeProbe) error { o.Status.Verdict = diagnostics.VerdictDelivered; return nil }, "node node1: invalid answer of the agent: its verdict and reason can't be those of the packet"},
		"other names":               {func(o *diagnostics.NodeProbe) error { o.Status.Reason = "by networkpolicy/hidden/x"; return nil }, "node node1: invalid answer of the agent: its verdict and reason can't be those of the packet"},
		"another packet":            {func(o *diagnostics.NodeProbe) error { o.Packet.DestinationPort++; return nil }, "the agent of node node1 has sent another packet"},
		"another pod of the name":   {func(o *diagnostics.NodeProbe) error { o.Packet.Source = "10.128.0.99"; return nil }, "the agent of node node1 has sent another packet"},
	} {
		c := newCluster()
		c.probed = tc.change
		got, err := c.probe(t, diagnostics.ProbeSpec{Source: "pod/a/web", Destination: "pod/b/db", Port: 80})
		if err != nil || got.Verdict != diagnostics.VerdictUnknown || got.Reason != tc.want {
			t.Errorf("%s: got %+v, %v, want %s", name, got, err, tc.want)
		}
	}
}

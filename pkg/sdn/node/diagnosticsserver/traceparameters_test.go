package diagnosticsserver

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/test/tier"
)

// traceParameters are those of a valid request.
const traceParameters = "from=pod/default/web destination=10.128.0.4 protocol=TCP destinationPort=80"

func TestParseTrace_refuses(t *testing.T) {
	node := strings.Replace(traceParameters, "pod/default/web", "node/node2", 1)
	for parameters, want := range map[string]string{
		"destination=10.128.0.4 protocol=TCP destinationPort=80":                         `parameter from is "", but must be pod/NAMESPACE/NAME`,
		"from=service/a/b destination=10.128.0.4 protocol=TCP destinationPort=80":        "parameter from",
		"from=pod/a destination=10.128.0.4 protocol=TCP destinationPort=80":              "parameter from",
		"from=pod/default/web protocol=TCP destinationPort=80":                           "parameter destination is required",
		"from=pod/default/web destination=10.128.0.4 destinationPort=80":                 "parameter protocol",
		"from=pod/default/web destination=10.128.0.4 protocol=tcp destinationPort=80":    "parameter protocol",
		"from=pod/default/web destination=10.128.0.4 protocol=TCP":                       "parameter destinationPort is required",
		"from=pod/default/web destination=10.128.0.4 protocol=ICMP destinationPort=8":    "parameter destinationPort is set, but ICMP has no ports",
		"from=pod/default/web destination=10.128.0.4 protocol=TCP destinationPort=65536": "parameter destinationPort",
		"from=pod/default/web destination=10.128.0.4 protocol=TCP destinationPort=0x50":  "parameter destinationPort",
		"from=pod/default/web destination=239.1.1.1 protocol=TCP destinationPort=80":     "parameter destination",
		"from=pod/default/web destination=fe80::1 protocol=TCP destinationPort=80":       "parameter destination",
		"from=pod/default/web destination=10.1.2 protocol=TCP destinationPort=80":        "parameter destination",
		traceParameters + " source=0.0.0.0":                                              "parameter source",
		traceParameters + " source=10.128.0.5,nw_dst=10.128.0.6":                         "parameter source",
		traceParameters + " conntrack=trk,est":                                           "parameter conntrack",
		traceParameters + " origin=nodePort":                                             "parameter origin is not allowed with from=pod/NAMESPACE/NAME",
		"from=host destination=10.128.0.4 protocol=ICMP origin=nodeport":                 `parameter origin is "nodeport", but must be routed, nodePort or hairpin`,
		traceParameters + " conntrack=established":                                       "parameter conntrack",
		traceParameters + " vnid=5":                                                      "parameter vnid is only allowed with from=node/NAME",
		traceParameters + " egressIP=198.51.100.7":                                       "parameter egressIP is only allowed",
		traceParameters + " endpoint=10.128.0.5":                                         "parameter endpoint",
		traceParameters + " from=host":                                                   "parameter from is set 2 times",
		node:                                                                             "parameter source is required with from=node/node2",
		node + " source=10.129.0.9 vnid=16777216":                                        "parameter vnid",
		node + " source=10.129.0.9 vnid=-1":                                              "parameter vnid",
	} {
		_, err := parseTrace(strings.TrimPrefix(request(parameters), diagnostics.NodeTracePath+"?"))
		var refused *failure
		if !errors.As(err, &refused) || refused.status != http.StatusBadRequest || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want 400 with %s", parameters, err, want)
		}
	}
	if _, err := parseTrace("from=%zz"); err == nil {
		t.Error("got no error for an invalid query")
	}
	if _, err := parseTrace(strings.TrimPrefix(request(traceParameters+" later=7"), diagnostics.NodeTracePath+"?")); err != nil {
		t.Errorf("a parameter of a later version: %v", err)
	}
}

// Packets of another node's host have its mark in the tunnel. Those that it forwards for others do not.
func TestTracePacket_ofAnotherNode(t *testing.T) {
	n := &Network{
		Node: traceNodeFlows(config.ModeNetworkPolicy, false),
		HostSubnetOf: func(node string) (*config.HostSubnet, bool) {
			return &config.HostSubnet{Node: node, HostIP: addr("192.0.2.2"), Subnets: prefix("10.129.0.0/23")}, true
		},
	}
	for origin, want := range map[string]net.HardwareAddr{"": config.NodeMAC(addr("10.129.0.1")), "nodePort": config.MAC(addr("10.129.0.1"))} {
		r, err := parseTrace(strings.TrimPrefix(request("from=node/node2 source=10.129.0.1 destination=10.128.0.4 protocol=ICMP origin="+origin), diagnostics.NodeTracePath+"?"))
		if err != nil {
			t.Fatal(err)
		}
		if p, err := n.tracePacket("node1", r, nil); err != nil || p.EthSource.String() != want.String() || p.DSCP != 0 {
			t.Errorf("origin %q: got %s, DSCP %d, %v, want %s", origin, p.EthSource, p.DSCP, err, want)
		}
	}
}

// fakeSwitch answers traces.
type fakeSwitch struct {
	Switch

	trace func(context.Context, ovs.TracePacket) (string, error)
}

func (s *fakeSwitch) Trace(ctx context.Context, p ovs.TracePacket) (string, error) {
	return s.trace(ctx, p)
}

func TestTrace_status(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	status := func(name, parameters string, code int, message string) *httptest.ResponseRecorder {
		t.Helper()
		w := n.do(t.Context(), http.MethodGet, request(parameters))
		var got metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &got); w.Code != code || err != nil || !strings.Contains(got.Message, message) {
			t.Errorf("%s: got %d: %s, want %d: %s", name, w.Code, w.Body, code, message)
		}
		return w
	}
	status("without a network", traceParameters, http.StatusServiceUnavailable, "is being set up")
	n.setMode(t, config.ModeNetworkPolicy, false)
	status("a pod of another node", strings.Replace(traceParameters, "web", "other", 1), http.StatusNotFound, "pod/default/other does not run on node node1")
	status("an unknown node", strings.Replace(traceParameters, "pod/default/web", "node/node3", 1)+" source=10.129.0.9", http.StatusNotFound, "no valid HostSubnet of node/node3")
	status("the node itself", strings.Replace(traceParameters, "pod/default/web", "node/node1", 1)+" source=10.129.0.9", http.StatusBadRequest, "parameter from is node/node1")
	status("invalid", "", http.StatusBadRequest, "parameter from")

	sw := &fakeSwitch{}
	n.network.Switch = sw
	sw.trace = func(context.Context, ovs.TracePacket) (string, error) { return "", errors.New("no vswitchd") }
	status("without vswitchd", traceParameters, http.StatusServiceUnavailable, "trace the packet on node node1: no vswitchd")
	sw.trace = func(context.Context, ovs.TracePacket) (string, error) { return "a report of another form", nil }
	if got := n.traced(t, traceParameters); got.Verdict != unknown || !strings.Contains(got.Reason, "the agent of node node1 can't read the trace") {
		t.Errorf("another form: got %s: %s", got.Verdict, got.Reason)
	}
	// A fifth request is refused while four are answered.
	asked, release := make(chan struct{}), make(chan struct{})
	sw.trace = func(ctx context.Context, _ ovs.TracePacket) (string, error) {
		if _, limited := ctx.Deadline(); !limited {
			t.Error("a trace has no deadline")
		}
		asked <- struct{}{}
		<-release
		return "", nil
	}
	done := make(chan struct{})
	for range maxTraces {
		go func() { n.do(t.Context(), http.MethodGet, request(traceParameters)); done <- struct{}{} }()
		<-asked
	}
	if w := status("while four are answered", traceParameters, http.StatusTooManyRequests, "answers 4 other requests"); w.Header().Get("Retry-After") != retryAfter {
		t.Errorf("got %v, want Retry-After", w.Header())
	}
	close(release)
	for range maxTraces {
		<-done
	}
	sw.trace = func(context.Context, ovs.TracePacket) (string, error) { return "", nil }
	n.traced(t, traceParameters)
}

// A request that is accepted is a packet of numbers and addresses only.
func FuzzParseTrace(f *testing.F) {
	for _, parameters := range []string{
		traceParameters, traceParameters + " source=10.128.0.9 sourcePort=1 conntrack=reply endpoint=10.128.0.5:80", "from=host destination=10.128.0.4 protocol=ICMP",
		"from=node/node2 vnid=17 source=10.129.0.9 egressIP=198.51.100.7 destination=203.0.113.5 protocol=UDP destinationPort=53",
	} {
		f.Add(strings.TrimPrefix(request(parameters), diagnostics.NodeTracePath+"?"))
	}
	f.Add("from=%zz")
	n := &Network{
		Node: traceNodeFlows(config.ModeNetworkPolicy, false),
		HostSubnetOf: func(node string) (*config.HostSubnet, bool) {
			return &config.HostSubnet{Node: node, HostIP: addr("192.0.2.2"), Subnets: prefix("10.129.0.0/23")}, true
		},
	}
	safe := regexp.MustCompile(`^[a-z0-9_=.:,]+$`)
	f.Fuzz(func(t *testing.T, query string) {
		r, err := parseTrace(query)
		if err != nil {
			if len(err.Error()) > 2000+len(query) {
				t.Errorf("got an error of %d bytes", len(err.Error()))
			}
			return
		}
		packet, err := n.tracePacket("node1", r, tracePods())
		if err != nil {
			return
		}
		arguments, err := packet.TraceArguments()
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		if !safe.MatchString(arguments[0]) {
			t.Errorf("%s: got packet %s", query, arguments[0])
		}
	})
}

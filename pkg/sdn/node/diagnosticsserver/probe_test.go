package diagnosticsserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podprobe"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// probeRequest returns the path of a request for a probe.
func probeRequest(parameters string) string {
	return diagnostics.NodeProbePath + strings.TrimPrefix(request(parameters), diagnostics.NodeTracePath)
}

func TestParseProbe_refuses(t *testing.T) {
	for parameters, want := range map[string]string{
		"": "parameter from",
		"from=host destination=10.128.0.4 protocol=TCP destinationPort=80":                         "parameter from is host, but probes are sent from pods only",
		"from=node/node2 source=10.129.0.9 destination=10.128.0.4 protocol=TCP destinationPort=80": "parameter from is node/node2",
		"from=pod/default/web destination=10.128.0.4 protocol=SCTP destinationPort=80":             "parameter protocol is SCTP",
		"from=pod/default/web destination=127.0.0.1 protocol=TCP destinationPort=80":               "parameter destination",
		"from=pod/default/web destination=239.1.1.1 protocol=UDP destinationPort=80":               "parameter destination",
		traceParameters + " source=10.128.0.9":                                                     "parameter source is not allowed in a probe",
		traceParameters + " sourcePort=1":                                                          "parameter sourcePort is not allowed in a probe",
		traceParameters + " endpoint=10.128.0.5:80":                                                "parameter endpoint is not allowed in a probe",
		traceParameters + " conntrack=reply":                                                       "parameter conntrack is not allowed in a probe",
		traceParameters + " timeoutSeconds=11":                                                     "parameter timeoutSeconds",
		traceParameters + " timeoutSeconds=-1":                                                     "parameter timeoutSeconds",
	} {
		_, _, err := parseProbe(strings.TrimPrefix(probeRequest(parameters), diagnostics.NodeProbePath+"?"))
		var refused *failure
		if !errors.As(err, &refused) || refused.status != http.StatusBadRequest || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want 400 with %s", parameters, err, want)
		}
	}
}

// The agent probes from its own record of the pod, as long as the request asks for.
func TestProbe(t *testing.T) {
	n := newNode(t)
	web := webPod()
	web.Netns = "/run/netns/web"
	n.network.Pods = func() []sandbox.Pod { return []sandbox.Pod{web} }
	var sent podprobe.Probe
	answer := diagnostics.ProbeStatus{Verdict: diagnostics.VerdictAnswered, Reason: "connected after 0.8 ms", Duration: &metav1.Duration{Duration: 800 * time.Microsecond}}
	var fault error
	n.network.Probe = func(_ context.Context, p podprobe.Probe) (diagnostics.ProbeStatus, error) {
		sent = p
		return answer, fault
	}
	for parameters, timeout := range map[string]time.Duration{traceParameters + " netns=/proc/1/ns/net": 3 * time.Second, traceParameters + " timeoutSeconds=10": 10 * time.Second} {
		var got diagnostics.NodeProbe
		n.get(t, probeRequest(parameters), &got)
		want := podprobe.Probe{Netns: "/run/netns/web", Source: addr("10.128.0.5"), Destination: netip.MustParseAddrPort("10.128.0.4:80"), Protocol: ovs.ProtocolNumberTCP, Timeout: timeout}
		packet := diagnostics.TracePacket{From: "pod/default/web", Protocol: "TCP", Source: "10.128.0.5", Destination: "10.128.0.4", DestinationPort: 80, Conntrack: diagnostics.ConntrackNew}
		if diff := cmp.Diff(packet, got.Packet); diff != "" || sent != want || !cmp.Equal(got.Status, answer) || got.Name != "node1" || got.Kind != "NodeProbe" {
			t.Errorf("%s: sent %+v, got %+v (-want +got):\n%s", parameters, sent, got, diff)
		}
	}
	refused := func(name, parameters string, code int, message string) {
		t.Helper()
		w := n.do(t.Context(), http.MethodGet, probeRequest(parameters))
		var got metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &got); w.Code != code || err != nil || !strings.Contains(got.Message, message) || (code == http.StatusTooManyRequests) != (w.Header().Get("Retry-After") != "") {
			t.Errorf("%s: got %d: %s, want %d: %s", name, w.Code, w.Body, code, message)
		}
	}
	refused("invalid", traceParameters+" sourcePort=7", http.StatusBadRequest, "parameter sourcePort")
	refused("a pod of another node", strings.Replace(traceParameters, "web", "other", 1), http.StatusNotFound, "pod/default/other does not run on node node1")
	fault = errors.New("no namespace")
	refused("without a namespace", traceParameters, http.StatusServiceUnavailable, "no packet can be sent from the network namespace of pod/default/web on node node1: no namespace")
	first, second := n.probes.acquire("default"), n.probes.acquire("default")
	refused("a third one of the namespace", traceParameters, http.StatusTooManyRequests, "sends 16 probes at the same time, 2 of one namespace, and 10 in a second; retry")
	n.SetNetwork(nil)
	first()
	second()
	refused("without a network", traceParameters, http.StatusServiceUnavailable, "is being set up")
}

func TestPodLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPodLimits(maxProbes, maxNamespaceProbes, probesPerSecond)
		releases := []func(){l.acquire("a"), l.acquire("a"), l.acquire("b")}
		if l.acquire("a") != nil {
			t.Error("got a third probe of a namespace at the same time")
		}
		for _, release := range releases {
			release()
		}
		accepted := len(releases)
		for range 2 * probesPerSecond {
			if release := l.acquire("a"); release != nil {
				accepted++
				release()
			}
		}
		if accepted != probesPerSecond {
			t.Errorf("got %d probes at once, want %d", accepted, probesPerSecond)
		}
		running := 0
		for i := range 2 * maxProbes {
			<-time.After(time.Second / probesPerSecond)
			if l.acquire(strconv.Itoa(i)) != nil {
				running++
			}
		}
		if running != maxProbes || l.running != maxProbes {
			t.Errorf("got %d probes at the same time, counted %d, want %d", running, l.running, maxProbes)
		}
	})
}

// A probe that is accepted has a pod, a host's address and a bounded time.
func FuzzParseProbe(f *testing.F) {
	for _, parameters := range []string{traceParameters, traceParameters + " timeoutSeconds=7", "from=pod/default/web destination=203.0.113.5 protocol=ICMP", "from=host destination=10.128.0.4 protocol=ICMP"} {
		f.Add(strings.TrimPrefix(probeRequest(parameters), diagnostics.NodeProbePath+"?"))
	}
	f.Fuzz(func(t *testing.T, query string) {
		r, timeout, err := parseProbe(query)
		if err != nil {
			if len(err.Error()) > 2000+len(query) {
				t.Errorf("got an error of %d bytes", len(err.Error()))
			}
			return
		}
		isICMP := r.protocol == ovs.ProtocolNumberICMP
		if r.from.Kind != diagnostics.KindPod || !r.destination.Is4() || r.destination.IsLoopback() || r.destination.IsMulticast() || isICMP != (r.packet.DestinationPort == 0) ||
			r.protocol != ovs.ProtocolNumberTCP && r.protocol != ovs.ProtocolNumberUDP && !isICMP || timeout <= 0 || timeout > diagnostics.MaxProbeSeconds*time.Second {
			t.Errorf("%s: got %+v, timeout %v", query, r, timeout)
		}
	})
}

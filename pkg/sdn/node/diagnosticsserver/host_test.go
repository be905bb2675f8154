package diagnosticsserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
)

const hostParameters = "from=tun0 source=10.128.0.3 destination=203.0.113.5 protocol=TCP destinationPort=443"

// hostQuery returns the query of a request with the parameters.
func hostQuery(parameters string) string {
	return strings.TrimPrefix(request(parameters), diagnostics.NodeTracePath+"?")
}

func TestParseHost(t *testing.T) {
	asked := diagnostics.HostPacket{From: diagnostics.FromTun0, Translated: true, Protocol: "UDP", Source: "10.128.0.3", Destination: "203.0.113.5", DestinationPort: 53}
	request, packet, err := parseHost(asked.Query().Encode() + "&later=7")
	want := hostnet.HostPacket{FromPods: true, Translated: true, Protocol: "udp", Source: addr("10.128.0.3"), Destination: addr("203.0.113.5"), DestinationPort: 53}
	if err != nil || request != asked || packet != want {
		t.Errorf("got %+v and %+v, %v, want %+v and %+v", request, packet, err, asked, want)
	}
	for parameters, want := range map[string]string{
		"": "parameter from",
		"from=pod/default/web destination=203.0.113.5 protocol=ICMP":            "parameter from is \"pod/default/web\", but must be tun0 or host",
		"from=tun0 destination=203.0.113.5 protocol=ICMP":                       "parameter source is required with from=tun0",
		"from=host protocol=ICMP":                                               "parameter destination is required",
		"from=host destination=127.0.0.1 protocol=ICMP":                         "parameter destination",
		"from=host destination=2001:db8::1 protocol=ICMP":                       "parameter destination",
		"from=host destination=203.0.113.5 protocol=TCP":                        "parameter destinationPort is required",
		"from=host destination=203.0.113.5 protocol=ICMP destinationPort=1":     "parameter destinationPort is set",
		"from=host destination=203.0.113.5 protocol=IGMP":                       "parameter protocol",
		"from=host destination=203.0.113.5 protocol=ICMP translated=often":      "parameter translated is \"often\"",
		"from=host destination=203.0.113.5 destination=1.2.3.4 protocol=ICMP":   "parameter destination is set 2 times",
		"from=host destination=203.0.113.5 protocol=UDP destinationPort=700000": "parameter destinationPort",
	} {
		_, _, err := parseHost(hostQuery(parameters))
		var refused *failure
		if !errors.As(err, &refused) || refused.status != http.StatusBadRequest || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want 400 with %s", parameters, err, want)
		}
	}
}

func TestHost(t *testing.T) {
	n := newNode(t)
	var fault error
	n.network.Host = func(ctx context.Context, p hostnet.HostPacket) (hostnet.HostPath, error) {
		if _, limited := ctx.Deadline(); !limited || !p.FromPods {
			t.Errorf("got %+v, with a deadline: %v", p, limited)
		}
		return hostnet.HostPath{
			Route:  hostnet.HostRoute{Kind: diagnostics.RouteForwarded, Interface: "eth0", Gateway: addr("192.0.2.254"), Network: netip.MustParsePrefix("203.0.113.0/24"), NoCarrier: true},
			Source: addr("192.0.2.1"), Masqueraded: true, Drops: true, By: "OVSDN-GUARD (x)", ByOther: true, Others: []string{"filter/FORWARD X"}, OthersFirst: true, MayTranslate: true,
		}, fault
	}
	path := diagnostics.NodeHostPath + "?" + hostQuery(hostParameters)
	var got diagnostics.NodeHost
	n.get(t, path, &got)
	want := diagnostics.NodeHost{
		TypeMeta: metav1.TypeMeta{APIVersion: "diagnostics.ovsdn.io/v1alpha1", Kind: "NodeHost"}, ObjectMeta: metav1.ObjectMeta{Name: "node1"},
		Packet: diagnostics.HostPacket{From: "tun0", Protocol: "TCP", Source: "10.128.0.3", Destination: "203.0.113.5", DestinationPort: 443},
		Route:  diagnostics.HostRoute{Kind: diagnostics.RouteForwarded, Interface: "eth0", Gateway: "192.0.2.254", Network: "203.0.113.0/24", NoCarrier: true},
		Source: "192.0.2.1", Masqueraded: true, Drops: true, Rule: "OVSDN-GUARD (x)", RuleOfOthers: true, Others: []string{"filter/FORWARD X"}, OthersFirst: true, MayTranslate: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	refused := func(name string, code int, message string) {
		t.Helper()
		w := n.do(t.Context(), http.MethodGet, path)
		var got metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &got); w.Code != code || err != nil || !strings.Contains(got.Message, message) {
			t.Errorf("%s: got %d: %s, want %d: %s", name, w.Code, w.Body, code, message)
		}
	}
	fault = errors.New("no iptables")
	refused("without iptables", http.StatusServiceUnavailable, "evaluate the packet on the host of node node1: no iptables")
	n.hostLimiter = rate.NewLimiter(rate.Limit(0.001), 0)
	refused("too many", http.StatusTooManyRequests, "looks up 10 routes each second")
	for range maxHosts { // a refused request above retains no slot
		n.hosting <- struct{}{}
	}
	refused("others", http.StatusTooManyRequests, "answers 2 other requests about its host")
}

// Requests about the host, which may wait for the limit of their rate, and those for traces do not occupy slots of each other.
func TestHost_leavesSlotsOfTraces(t *testing.T) {
	n := newNode(t)
	h := n.Handler
	entered, proceed := make(chan struct{}), make(chan struct{})
	n.network.Host = func(ctx context.Context, _ hostnet.HostPacket) (hostnet.HostPath, error) {
		entered <- struct{}{}
		<-proceed
		return hostnet.HostPath{}, ctx.Err()
	}
	code := func(serve http.HandlerFunc, path string) int {
		w := httptest.NewRecorder()
		serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		return w.Code
	}
	path := diagnostics.NodeHostPath + "?" + hostQuery(hostParameters)
	answered := make(chan int)
	for range maxHosts {
		go func() { answered <- code(h.serveHost, path) }()
		<-entered
	}
	if got := code(h.serveHost, path); got != http.StatusTooManyRequests {
		t.Errorf("one more request about the host: got %d, want 429", got)
	}
	if got := code(h.serveTrace, diagnostics.NodeTracePath); got != http.StatusBadRequest {
		t.Errorf("a trace: got %d, want 400: it is not refused for others", got)
	}
	close(proceed)
	for range maxHosts {
		if got := <-answered; got != http.StatusOK {
			t.Errorf("a request about the host: got %d, want 200", got)
		}
	}
	for range maxTraces {
		h.tracing <- struct{}{}
	}
	go func() { <-entered }()
	if got := code(h.serveHost, path); got != http.StatusOK {
		t.Errorf("after them, while traces are answered: got %d, want 200", got)
	}
}

// A request that is accepted is a packet of numbers and addresses only.
func FuzzParseHost(f *testing.F) {
	f.Add(hostQuery(hostParameters))
	f.Add(hostQuery("from=host destination=203.0.113.5 protocol=ICMP translated=true"))
	f.Add("from=%zz")
	f.Fuzz(func(t *testing.T, query string) {
		request, packet, err := parseHost(query)
		if err != nil {
			if len(err.Error()) > 2000+len(query) {
				t.Errorf("got an error of %d bytes", len(err.Error()))
			}
			return
		}
		again, same, err := parseHost(request.Query().Encode())
		if err != nil || again != request || same != packet || !packet.Destination.Is4() || packet.FromPods && !packet.Source.Is4() {
			t.Errorf("%s: got %+v and %+v, and again %+v, %v", query, request, packet, again, err)
		}
	})
}

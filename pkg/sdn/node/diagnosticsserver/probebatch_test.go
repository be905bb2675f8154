package diagnosticsserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podprobe"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// probesOfWeb sets the pod default/web, and what its probes do.
func (n *Network) probesOfWeb(probe func(context.Context, podprobe.Probe) (diagnostics.ProbeStatus, error)) {
	web := webPod()
	web.Netns = "/run/netns/web"
	n.Pods = func() []sandbox.Pod { return []sandbox.Pod{web} }
	n.Probe = probe
}

func fromWeb(protocol string, ports ...uint16) (packets []diagnostics.TracePacket) {
	for _, port := range ports {
		packets = append(packets, diagnostics.TracePacket{From: "pod/default/web", Protocol: protocol, Destination: "10.128.0.4", DestinationPort: port})
	}
	return packets
}

// TestProbes: each packet has its own result, in their order, and one that can't be sent is Unknown.
func TestProbes(t *testing.T) {
	n := newNode(t)
	n.network.probesOfWeb(func(_ context.Context, p podprobe.Probe) (diagnostics.ProbeStatus, error) {
		if p.Netns != "/run/netns/web" || p.Source != addr("10.128.0.5") || p.Timeout != batchProbeTimeout {
			t.Errorf("got probe %+v", p)
		}
		if p.Destination.Port() == 81 {
			return diagnostics.ProbeStatus{}, errors.New("no namespace")
		}
		return diagnostics.ProbeStatus{Verdict: diagnostics.VerdictAnswered, Reason: p.Destination.String(), Reached: true}, nil
	})
	packets := append(fromWeb("TCP", 80, 81), fromWeb("SCTP", 80)...)
	packets = append(packets, diagnostics.TracePacket{From: "pod/default/other", Protocol: "TCP", Destination: "10.128.0.4", DestinationPort: 80})
	packets = append(packets, fromWeb("UDP", 53)...)
	w := n.post(t, packets)
	var got diagnostics.NodeProbes
	if err := json.Unmarshal(w.Body.Bytes(), &got); w.Code != http.StatusOK || err != nil || got.Kind != "NodeProbes" || len(got.Results) != len(packets) {
		t.Fatalf("got %d: %s", w.Code, w.Body)
	}
	for i, want := range []string{"10.128.0.4:80", "no packet can be sent from the network namespace of pod/default/web on node node1: no namespace", "is SCTP", "does not run on node node1", "10.128.0.4:53"} {
		isSent := i == 0 || i == 4
		if r := got.Results[i]; !strings.Contains(r.Reason, want) || (r.Verdict == diagnostics.VerdictUnknown) == isSent || r.Reached != isSent {
			t.Errorf("packet %d: got %+v, want %s", i, r, want)
		}
	}

	if w := n.post(t, packets); w.Code != http.StatusOK {
		t.Errorf("again: got %d: %s", w.Code, w.Body)
	}
	n.sending.Store(true)
	if w := n.post(t, packets); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
		t.Errorf("beside another request: got %d: %s", w.Code, w.Body)
	}
	n.sending.Store(false)
	n.SetNetwork(nil)
	if w := n.post(t, packets); w.Code != http.StatusServiceUnavailable {
		t.Errorf("without a network: got %d: %s", w.Code, w.Body)
	}
	if w := n.post(t, nil); w.Code != http.StatusBadRequest {
		t.Errorf("without packets: got %d: %s", w.Code, w.Body)
	}
}

// TestProbeAll_timeout: at most batchProbes wait at the same time, and the results are those before the first packet that has none in time.
func TestProbeAll_timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, most := 0, 0
		h, n := newClient(t).Handler, newNetwork(nil, nil)
		n.probesOfWeb(func(ctx context.Context, p podprobe.Probe) (diagnostics.ProbeStatus, error) {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				running--
			}()
			if p.Destination.Port() < 40 {
				<-time.After(time.Second)
				return diagnostics.ProbeStatus{Verdict: diagnostics.VerdictNoAnswer}, nil
			}
			if p.Destination.Port() == 40 {
				<-ctx.Done() // never answered
				return diagnostics.ProbeStatus{}, ctx.Err()
			}
			return diagnostics.ProbeStatus{Verdict: diagnostics.VerdictNoAnswer}, nil
		})
		ports := make([]uint16, 100)
		for i := range ports {
			ports[i] = uint16(i + 1) //nolint:gosec // a port
		}
		got := h.probeAll(t.Context(), n, fromWeb("TCP", ports...))
		if len(got) != 39 || most != batchProbes {
			t.Errorf("got %d results, %d probes at the same time, want 39 and %d", len(got), most, batchProbes)
		}
	})
}

func (n *node) post(t *testing.T, packets []diagnostics.TracePacket) *httptest.ResponseRecorder {
	t.Helper()
	body, err := json.Marshal(diagnostics.PacketBatch{Packets: packets})
	if err != nil {
		t.Fatal(err)
	}
	return n.send(t.Context(), http.MethodPost, diagnostics.NodeProbesPath, bytes.NewReader(body))
}

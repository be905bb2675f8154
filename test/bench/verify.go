package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/certificates"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/diagnosticsserver"
	"github.com/ovsdn/ovsdn/test/bareagent"
	"github.com/ovsdn/ovsdn/test/fakeca"
)

// verifyFigure: how much longer pods wait for their network while a verification traces packets.
func verifyFigure() figure {
	return figure{
		name:  "verify",
		about: "CNI ADD while the agent traces batches of packets as `kubectl ovsdn verify` has it do, beside ADD alone",
		run:   runVerify,
	}
}

const verifyPods = 100 // present

func runVerify(b *B) {
	socket := filepath.Join(b.TempDir(), "traces.sock")
	node := b.newNode("--traces-socket=" + socket)
	_, err := wave(b.Context(), b.sandboxes(verifyPods), node.runtime.add)
	b.must(err)
	pods := b.sandboxes(wavePods)
	beside := &entrant{contender: node.runtime, name: "ours", pods: pods}
	alone := &entrant{contender: node.runtime, name: "alone", pods: pods}
	verification := newVerification(socket)
	waves := (b.samples + samplesAWave - 1) / samplesAWave
	for n := range waves {
		b.step("wave %d of %d", n+1, waves)
		for _, e := range turns([]*entrant{beside, alone}, n) {
			stop := func() error { return nil }
			if e == beside {
				stop = verification.start(b.Context())
			}
			for range samplesAWave {
				b.must(e.one(b.Context()))
				b.settle(node.ovs)
			}
			b.must(e.wave(b.Context()))
			b.settle(node.ovs)
			b.must(stop())
		}
	}
	b.progress("%d packets traced, %d delivered", verification.traced, verification.delivered)
	if verification.delivered < verification.traced*3/4 { // pods of the waves may have been deleted
		b.Fatalf("traces deliver %d of %d packets, want most", verification.delivered, verification.traced)
	}
	ports := fmt.Sprintf("%d ports", verifyPods)
	for _, r := range []struct {
		what  string
		times func(*entrant) []time.Duration
	}{
		{"ADD", func(e *entrant) []time.Duration { return e.adds }},
		{"ADD, among 16", func(e *entrant) []time.Duration { return e.waveAdds }},
	} {
		b.record(r.what+", "+ports, "ms", seriesOf(beside.name, milliseconds(r.times(beside))), seriesOf(alone.name, milliseconds(r.times(alone))))
		b.record("p99 of "+r.what+", "+ports, "ms", p99Of(beside.name, r.times(beside)), p99Of(alone.name, r.times(alone), atMost(2)))
	}
}

// p99Of is the 99th percentile as the only sample.
func p99Of(contender string, times []time.Duration, bounds ...bound) series {
	return seriesOf(contender, []float64{seriesOf(contender, milliseconds(times)).P99}, bounds...)
}

// verification asks the agent for one batch of traces after the other, as the controller does.
type verification struct {
	client            *http.Client
	traced, delivered int // packets
}

func newVerification(socket string) *verification {
	var dialer net.Dialer
	return &verification{client: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
	}}}
}

// start begins to ask. stop returns after the last answer.
func (v *verification) start(ctx context.Context) (stop func() error) {
	var asking sync.WaitGroup
	var err error
	stopped := make(chan struct{})
	asking.Go(func() {
		for err == nil {
			select {
			case <-stopped:
				return
			default:
				err = v.ask(ctx)
			}
		}
	})
	return func() error {
		close(stopped)
		asking.Wait()
		return err
	}
}

func (v *verification) ask(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/", nil)
	if err != nil {
		return err
	}
	response, err := v.client.Do(request)
	if err != nil {
		return fmt.Errorf("ask for traces: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask for traces: status %d: %s: %w", response.StatusCode, body, err)
	}
	var traces diagnostics.NodeTraces
	if err := json.Unmarshal(body, &traces); err != nil {
		return fmt.Errorf("read traces: %w", err)
	}
	v.traced += len(traces.Results)
	for _, r := range traces.Results {
		if r.Verdict == diagnostics.VerdictDelivered {
			v.delivered++
		}
	}
	return nil
}

// serveTraces returns the Serve of an agent that answers each request with the traces of the next batch of packets between its pods.
func serveTraces(socket string) func(context.Context, *diagnosticsserver.Network) error {
	return func(ctx context.Context, n *diagnosticsserver.Network) error {
		client, handler, err := newTraceHandler(ctx, n)
		if err != nil {
			return err
		}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
		if err != nil {
			return err
		}
		pairs := 0 // requests come one after the other
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			batch := diagnostics.PacketBatch{Packets: packetsBetween(n, pairs)}
			pairs += len(batch.Packets)
			body, err := json.Marshal(batch)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			r.URL.Path, r.TLS, r.Body = diagnostics.NodeTracesPath, client, io.NopCloser(bytes.NewReader(body))
			handler.ServeHTTP(w, r)
		})}
		defer context.AfterFunc(ctx, func() { _ = server.Close() })()
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}

// newTraceHandler returns the agent's handler of diagnostics, and the connection of a client that it accepts.
func newTraceHandler(ctx context.Context, n *diagnosticsserver.Network) (client *tls.ConnectionState, handler *diagnosticsserver.Handler, err error) {
	t := newTB(ctx, agentCommand, func(string, ...any) {})
	err = t.do(func() {
		ca := fakeca.New(t, "diagnostics")
		client = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{ca.Issue(t, certificates.ControllerName, x509.ExtKeyUsageClientAuth).Leaf}}
		handler = diagnosticsserver.New(diagnosticsserver.Options{
			NodeName: bareagent.NodeName, CAs: ca.Pool, Ready: func() error { return nil },
			Version: func(*http.Request) (agent, ovs string) { return "", "" },
		})
		handler.SetNetwork(n)
	})
	return client, handler, err
}

// packetsBetween returns a batch of packets between pods of the node, from a pair of them on.
func packetsBetween(n *diagnosticsserver.Network, pair int) (packets []diagnostics.TracePacket) {
	pods := slices.Clone(n.Pods())
	for i := range diagnostics.MaxBatchPackets {
		from, to := pods[(pair+i)/len(pods)%len(pods)], pods[(pair+i)%len(pods)]
		packets = append(packets, diagnostics.TracePacket{
			From: "pod/" + from.Namespace + "/" + from.Name, Protocol: "TCP", Destination: to.Addrs[0].String(), SourcePort: 40_000, DestinationPort: 80,
		})
	}
	return packets
}

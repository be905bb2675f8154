package ovstest

import (
	"encoding/json"
	"net"
	"testing"
)

// Tracer asks for many traces over one connection: a question costs a tenth of what a program run does.
type Tracer struct {
	encode *json.Encoder
	decode *json.Decoder
	next   int
}

// NewTracer returns a tracer for br0. ovs-vswitchd must not restart while it is in use.
func (s *Switch) NewTracer(t testing.TB) *Tracer {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", s.path("ovs-vswitchd.ctl"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &Tracer{encode: json.NewEncoder(conn), decode: json.NewDecoder(conn)}
}

// Trace returns the report of ofproto/trace for the packet. The protocol is JSON-RPC 1.0, as ovs-appctl speaks it.
func (r *Tracer) Trace(t testing.TB, packet string) string {
	t.Helper()
	r.next++
	if err := r.encode.Encode(map[string]any{"id": r.next, "method": "ofproto/trace", "params": []string{Bridge, packet}}); err != nil {
		t.Fatal(err)
	}
	var reply struct {
		Result string `json:"result"`
		Error  any    `json:"error"`
	}
	if err := r.decode.Decode(&reply); err != nil {
		t.Fatal(err)
	}
	if reply.Error != nil {
		t.Fatalf("ofproto/trace %s: %v", packet, reply.Error)
	}
	return reply.Result
}

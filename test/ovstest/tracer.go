package ovstest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"testing"
)

// Tracer asks for many traces over one connection: a question costs a tenth of what a program run does.
type Tracer struct {
	conn   net.Conn
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
	return &Tracer{conn: conn, decode: json.NewDecoder(conn)}
}

// Trace returns the reports of ofproto/trace for the packets. The protocol is JSON-RPC 1.0, as ovs-appctl speaks it. All is asked before
// anything is answered, since ovs-vswitchd takes several questions at a time.
func (r *Tracer) Trace(packets ...string) ([]string, error) {
	first := r.next
	r.next += len(packets)
	asked := make(chan error, 1)
	go func() { asked <- r.ask(first, packets) }()
	reports := make([]string, len(packets))
	for i, packet := range packets {
		var reply struct {
			ID     int    `json:"id"`
			Result string `json:"result"`
			Error  any    `json:"error"`
		}
		if err := r.decode.Decode(&reply); err != nil {
			return nil, fmt.Errorf("ofproto/trace %s: %w", packet, err)
		}
		if reply.Error != nil || reply.ID != first+i {
			return nil, fmt.Errorf("ofproto/trace %s: answer %d of %d: %v", packet, reply.ID, first+i, reply.Error)
		}
		reports[i] = reply.Result
	}
	return reports, <-asked
}

func (r *Tracer) ask(first int, packets []string) error {
	w := bufio.NewWriter(r.conn)
	encode := json.NewEncoder(w)
	for i, packet := range packets {
		if err := encode.Encode(map[string]any{"id": first + i, "method": "ofproto/trace", "params": []string{Bridge, packet}}); err != nil {
			return fmt.Errorf("ofproto/trace %s: %w", packet, err)
		}
	}
	return w.Flush()
}

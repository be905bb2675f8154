package main

import (
	"os"
	"testing"
)

// All connections to the service reach its endpoints, and those to the pod none of them.
func TestConnect(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for name, selected := range map[string]bool{"without policies": false, "with policies": true} {
		t.Run(name, func(t *testing.T) { testConnect(t, selected) })
	}
}

func testConnect(t *testing.T, selected bool) {
	t.Helper()
	b := &B{tb: newTB(t.Context(), t.Name(), t.Logf)}
	if err := b.do(func() {
		const connections = 202 // no multiple of the number of connectors
		c := b.newConnectNode(selected)
		b.must(c.connectAll(connections, c.direct))
		if got := c.shares(); got != [endpointsPerService]int64{} {
			b.Errorf("connections of the endpoints after those to the pod: got %v, want none", got)
		}
		before := c.missed()
		b.must(c.connectAll(connections, c.service))
		total := int64(0)
		for i, n := range c.shares() {
			total += n
			if n == 0 {
				b.Errorf("endpoint %d: got no connection of %d", i, connections)
			}
		}
		if total != connections {
			b.Errorf("connections of the endpoints: got %d, want %d", total, connections)
		}
		if c.missed() == before {
			b.Error("first connections to the service without an upcall")
		}
	}); err != nil {
		t.Fatal(err)
	}
}

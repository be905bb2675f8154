package tunnelneighbours

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

// The neighbours of many nodes are set with two commands for each, at a limited rate; after that the cache is compared at an interval that grows with their
// number, and nothing is set again.
func TestNeighbours_manyNodes(t *testing.T) {
	tier.Parallel(t)
	h := newHost(t)
	nodes := tier.Size(t, 300, 5000, "two commands for each node, at 200 a second")
	addr := func(i int) string { return fmt.Sprintf("198.18.%d.%d", i/250, i%250+1) }
	var batch strings.Builder
	for i := range nodes { // permanent: the kernel's table has no limit for these
		fmt.Fprintf(&batch, "neigh add %s lladdr 0a:00:00:00:%02x:%02x dev br-ex nud permanent\n", addr(i), i>>8, i&0xff)
	}
	file := filepath.Join(t.TempDir(), "neighbours")
	if err := os.WriteFile(file, []byte(batch.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	h.sh(h.here, "ip -batch "+file)
	h.run(t)
	began := time.Now()
	for i := range nodes {
		h.neighbours.SetRemoteNode(fmt.Sprint("node", i), vtep(addr(i)))
	}
	count := func(what string, got func() int, want int) {
		t.Helper()
		await.OK(t, 3*time.Minute, func(context.Context) error {
			h.ovs.mu.Lock()
			defer h.ovs.mu.Unlock()
			if got := got(); got < want {
				return fmt.Errorf("got %d %s, want %d", got, what, want)
			}
			return nil
		})
	}
	count("neighbours", func() int { return len(h.ovs.macs) }, nodes)
	h.ovs.change(func() {
		got := h.ovs.commands
		if allowed := commandBurst + commandRate*time.Since(began).Seconds() + 1; got > 2*nodes+nodes/10 || float64(got) > allowed {
			t.Errorf("got %d commands for %d nodes, want two for each and at most %.0f in this time", got, nodes, allowed)
		}
		h.ovs.commands, h.ovs.comparisons = 0, 0
	})
	began = time.Now()
	const comparisons = 4
	count("comparisons", func() int { return h.ovs.comparisons }, comparisons)
	if took, want := time.Since(began), (comparisons-1)*time.Duration(nodes)*checkIntervalPerHop; took < want {
		t.Errorf("got %d comparisons in %v, want at least %v", comparisons, took, want)
	}
	h.ovs.change(func() {
		if h.ovs.commands > 0 {
			t.Errorf("got %d commands without a change, want none", h.ovs.commands)
		}
	})
}

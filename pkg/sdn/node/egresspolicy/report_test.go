package egresspolicy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/egressstatus"
	"github.com/ovsdn/ovsdn/test/await"
)

// report waits for the report of node1 about a policy, as name, addresses and whether it fails; "": none.
func (a *agent) report(key string, want ...string) {
	a.t.Helper()
	await.OK(a.t, testTimeout, func(context.Context) error {
		a.cluster.mu.Lock()
		defer a.cluster.mu.Unlock()
		var got []string
		if node := a.statuses[key].Nodes["node1"]; node != nil {
			for _, n := range node.Names {
				if (n.Error == "") != (n.Since == nil) || (n.Error != "" && node.Error == "") {
					return fmt.Errorf("got error %q since %v, and %q of the node", n.Error, n.Since, node.Error)
				}
				got = append(got, fmt.Sprint(n.Name, n.Addresses, n.Count, n.Error != ""))
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
}

// A node reports names when they are resolved, and no more when it has no pods of the namespace or the policy no names.
func TestReporter(t *testing.T) {
	c := newCluster(t)
	c.resolve("www.example.com", "192.0.2.1", "192.0.2.2")
	c.policies.Add(egressPolicy("tenant/a", "Allow www.example.com", "Deny silent.example.com"))
	c.policies.Add(egressPolicy("tenant/b", "Deny 0.0.0.0/0"))
	c.policies.Add(egressPolicy("tenant/c", "Allow www.example.com"))
	c.policies.Add(egressPolicy("elsewhere/a", "Allow www.example.com"))
	full := egressstatus.Status{Nodes: map[string]*egressstatus.Node{}}
	for i := range egressstatus.MaxNodes {
		full.Nodes[fmt.Sprint("other", i)] = &egressstatus.Node{}
	}
	c.statuses["tenant/c"] = full
	a, _ := c.start(t, "tenant/5")
	a.report("tenant/a", "silent.example.com[] 0 true", "www.example.com[192.0.2.1 192.0.2.2] 2 false")
	c.mu.Lock()
	if c.patches != 1 || len(c.statuses["tenant/c"].Nodes) != egressstatus.MaxNodes {
		t.Errorf("got %d patches, want 1; %d nodes report a policy, want %d", c.patches, len(c.statuses["tenant/c"].Nodes), egressstatus.MaxNodes)
	}
	c.mu.Unlock()
	c.policies.Modify(egressPolicy("tenant/a", "Deny 0.0.0.0/0"))
	a.report("tenant/a")
	c.policies.Add(egressPolicy("other/a", "Allow www.example.com"))
	if err := a.attach("other/6")(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.report("other/a", "www.example.com[192.0.2.1 192.0.2.2] 2 false")
	if err := a.Detach(owner("other/6"))(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.report("other/a")
}

// The nodes of a large cluster do not report a new policy all at once: the first ones have reported before most others read the status.
func TestReporter_firstReportIsSpread(t *testing.T) {
	const nodes = 5000
	addrs := &nodeAddrs{byName: map[string]netip.Addr{}}
	for i := range nodes {
		addrs.byName[fmt.Sprint("node", i)] = netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})
	}
	c := newCluster(t)
	early := 0
	for range nodes {
		r := newReporter(&Policies{nodes: addrs, options: Options{NodeName: "node1", Status: c}})
		if err := r.update(t.Context(), cache.ObjectName{Namespace: "tenant", Name: "default"}, "uid", egressstatus.Node{Names: []egressstatus.Name{{Name: "www.example.com"}}}); err != nil {
			t.Fatal(err)
		}
		if last := r.reported[cache.ObjectName{Namespace: "tenant", Name: "default"}]; time.Until(last.at.Add(addressInterval)) < time.Second {
			early++
		}
	}
	if early += c.patches; early > nodes/10 {
		t.Errorf("got %d reports of %d nodes within a second, want about %d", early, nodes, nodes/25)
	}
}

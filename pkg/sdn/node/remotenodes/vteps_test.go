package remotenodes

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/await"
)

// fakeVTEPs records each change with the tunnel sources that the switch trusted at that moment.
type fakeVTEPs struct {
	flows func() []string // nil: nothing is recorded

	mu      sync.Mutex
	changes []string
}

func (v *fakeVTEPs) Allow(_ context.Context, name string, vtep netip.Addr) {
	v.record("allow", name, vtep)
}

func (v *fakeVTEPs) Settle(_ context.Context, name string, vtep netip.Addr) {
	v.record("settle", name, vtep)
}

func (v *fakeVTEPs) record(change, name string, vtep netip.Addr) {
	if v.flows == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changes = append(v.changes, fmt.Sprintf("%s %s %s, trusted %v", change, name, vtep, trusted(v.flows())))
}

// trusted returns the tunnel sources of flows, sorted.
func trusted(flows []string) []string {
	var all []string
	for _, flow := range flows {
		if strings.Contains(flow, "tun_src=") {
			match := between(flow, "tun_src=", " ")
			all = append(all, strings.TrimRight(match[:strings.IndexAny(match+",", ", ")], ","))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// The host accepts a VTEP's packets before the switch trusts them, and until the switch no longer does.
func TestVTEPs_changeOrder(t *testing.T) {
	f := start(t, hostSubnet("node2", "172.31.0.12", "10.129.0.0/23"))
	wait := func(want ...string) {
		t.Helper()
		await.OK(t, timeout, func(context.Context) error {
			f.vteps.mu.Lock()
			defer f.vteps.mu.Unlock()
			got := slices.Compact(slices.Clone(f.vteps.changes))
			if !slices.Equal(got, want) {
				return fmt.Errorf("got %q, want %q", got, want)
			}
			f.vteps.changes = nil
			return nil
		})
	}
	f.want("172.31.0.12", map[string]string{"10.129.0.0/23": "172.31.0.12"})
	await.OK(t, timeout, func(context.Context) error {
		f.vteps.mu.Lock()
		defer f.vteps.mu.Unlock()
		if n := len(f.vteps.changes); n == 0 || f.vteps.changes[n-1] != "settle node2 172.31.0.12, trusted [172.31.0.12]" {
			return fmt.Errorf("got %q", f.vteps.changes)
		}
		if first := f.vteps.changes[0]; first != "allow node2 172.31.0.12, trusted []" {
			t.Errorf("got first %q", first)
		}
		f.vteps.changes = nil
		return nil
	})
	f.update(hostSubnet("node2", "172.31.0.22", "10.129.0.0/23"))
	wait("allow node2 172.31.0.22, trusted [172.31.0.12]", "settle node2 172.31.0.22, trusted [172.31.0.22]")
	f.update(hostSubnet("node2", "172.31.0.22", "10.129.0.77/23")) // invalid: the previous state is retained
	f.create(hostSubnet("node3", "172.31.0.13", "10.130.0.0/23"))
	wait("allow node3 172.31.0.13, trusted [172.31.0.22]", "settle node3 172.31.0.13, trusted [172.31.0.13 172.31.0.22]")
	if err := f.client.NetworkV1().HostSubnets().Delete(t.Context(), "node2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wait("settle node2 invalid IP, trusted [172.31.0.13]")
}

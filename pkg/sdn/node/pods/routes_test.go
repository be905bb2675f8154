package pods

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Recover updates the on-link routes of running pods when the cluster network grows or shrinks.
func TestRecover_routes(t *testing.T) {
	n := newNode(t)
	pod := newNetns(t)
	first, stop := n.start(t)
	req := n.addPod("web", pod)
	add(t, first, req)
	stop()
	// Routes that the pod added.
	run(t, pod, "ip link add vpn type bridge; ip link set vpn up; ip route add 10.130.7.0/24 dev vpn; ip route add 198.51.100.0/24 dev eth0")
	previous := n.options.ClusterNetworks
	for _, ranges := range [][]netip.Prefix{
		prefixes("10.128.0.0/13 10.9.0.0/16"), // a shorter mask, and one more
		prefixes("10.128.0.0/12 10.8.0.0/15"),
		prefixes("10.128.0.0/14 10.9.0.0/16"), // reduced to the ranges in use
	} {
		n.options.ClusterNetworks = ranges
		a, stop := n.start(t)
		if err := verify(t, a, req, pod); err != nil {
			t.Errorf("%v: %v", ranges, err)
		}
		want := []string{"198.51.100.0/24", "224.0.0.0/4"}
		for _, r := range ranges {
			want = append(want, r.String())
		}
		var got []string
		for line := range strings.Lines(run(t, pod, "ip -4 route show dev eth0 scope link")) {
			got = append(got, strings.Fields(line)[0])
		}
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v: on-link (-want +got):\n%s", ranges, diff)
		}
		if out := run(t, pod, "ip -4 route show dev vpn"); !strings.Contains(out, "10.130.7.0/24") {
			t.Errorf("%v: got %q on another interface, want its route unchanged", ranges, out)
		}
		stop()
	}
	n.options.ClusterNetworks = previous
	a, _ := n.start(t)
	del(t, a, req)
	n.wantClean(t)
}

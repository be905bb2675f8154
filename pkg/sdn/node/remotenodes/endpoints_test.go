package remotenodes

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/seed"
	"github.com/ovsdn/ovsdn/test/tier"
)

// aged sets the HostSubnet's age.
func aged(o *networkv1.HostSubnet, age time.Duration) *networkv1.HostSubnet {
	o.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-age))
	return o
}

// owners waits until all flows with the tunnel endpoint have the cookies of these HostSubnets, and of no other.
func (f *fixture) owners(vtep string, names ...string) {
	f.Helper()
	var want []string
	for _, name := range names {
		want = append(want, fmt.Sprintf("cookie=%#x,", owner(name).Cookie()))
	}
	slices.Sort(want)
	await.OK(f, timeout, func(context.Context) error {
		var got []string
		for _, flow := range f.flows() {
			if strings.Contains(flow, vtep) && !strings.Contains(flow, "table=111") {
				cookie, _, _ := strings.Cut(flow[strings.Index(flow, "cookie="):], ",")
				got = append(got, cookie+",")
			}
		}
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, want) {
			return fmt.Errorf("flows of %s: got %q, want %q", vtep, got, want)
		}
		return nil
	})
}

// A HostSubnet with the address of a senior one does not get its packets, whichever is created or read first.
func TestEndpoint_belongsToTheSenior(t *testing.T) {
	tier.Parallel(t)
	senior := func() *networkv1.HostSubnet {
		return aged(node(hostSubnet("node2", "172.31.0.12", "10.129.0.0/23")), time.Hour)
	}
	for name, duplicate := range map[string]*networkv1.HostSubnet{
		"younger node":  aged(node(hostSubnet("a", "172.31.0.12", "10.130.0.0/23")), 0),
		"older machine": aged(fixed(hostSubnet("a", "172.31.0.12", "10.130.0.0/23"), "48"), 2*time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			sw := ovstest.Start(t)
			bridge := native.New(ovstest.Bridge, sw.RunDir)
			t.Cleanup(bridge.Close)
			if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: "netdev"}); err != nil {
				t.Fatal(err)
			}
			flows := func() []string { return sw.Dump(t) }
			alone := map[string]string{"10.129.0.0/23": "172.31.0.12"}

			f := startIn(t, config.ModeMultitenant, bridge, flows, senior())
			f.want("172.31.0.12", alone)
			f.create(duplicate)
			f.create(hostSubnet("node9", "172.31.0.19", "10.131.0.0/23")) // read after the duplicate
			f.want("172.31.0.12 172.31.0.19", map[string]string{"10.129.0.0/23": "172.31.0.12", "10.131.0.0/23": "172.31.0.19"})
			f.owners("172.31.0.12", "node2")
			f.stop()

			f = startIn(t, config.ModeMultitenant, bridge, flows, duplicate, senior())
			f.want("172.31.0.12", alone)
			f.owners("172.31.0.12", "node2")
			if err := f.client.NetworkV1().HostSubnets().Delete(t.Context(), "node2", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			f.owners("172.31.0.12", "a") // as of a node that was installed again
			f.create(senior())
			f.owners("172.31.0.12", "node2") // the senior one
			f.stop()
		})
	}
}

// A HostSubnet that became invalid retains its address, but not one that belongs to another.
func TestEndpoint_ofAnInvalidHostSubnet(t *testing.T) {
	tier.Parallel(t)
	f := start(t, aged(hostSubnet("node2", "172.31.0.12", "10.129.0.0/23"), time.Hour))
	f.want("172.31.0.12", map[string]string{"10.129.0.0/23": "172.31.0.12"})
	f.update(aged(hostSubnet("node2", "172.31.0.12", "10.129.0.77/23"), time.Hour))
	f.create(aged(hostSubnet("node3", "172.31.0.12", "10.130.0.0/23"), 0))
	f.create(aged(hostSubnet("node4", "172.31.0.14", "10.131.0.0/23"), 0))
	f.want("172.31.0.12 172.31.0.14", map[string]string{"10.129.0.0/23": "172.31.0.12", "10.131.0.0/23": "172.31.0.14"})
	f.create(aged(hostSubnet("senior", "172.31.0.12", "10.130.2.0/23"), 2*time.Hour))
	f.want("172.31.0.12 172.31.0.14", map[string]string{"10.130.2.0/23": "172.31.0.12", "10.131.0.0/23": "172.31.0.14"})
}

// No other HostSubnet has this node's address.
func TestEndpoint_ofThisNode(t *testing.T) {
	tier.Parallel(t)
	f := start(t, aged(hostSubnet("duplicate", "172.31.0.11", "10.130.0.0/23"), time.Hour), hostSubnet("node2", "172.31.0.12", "10.129.0.0/23"))
	f.want("172.31.0.12", map[string]string{"10.129.0.0/23": "172.31.0.12"})
	f.update(hostSubnet("duplicate", "172.31.0.13", "10.130.0.0/23"))
	f.want("172.31.0.12 172.31.0.13", map[string]string{"10.129.0.0/23": "172.31.0.12", "10.130.0.0/23": "172.31.0.13"})
}

// In any order of changes, an address has one holder, the senior HostSubnet, and each HostSubnet whose holder changes is returned.
func TestEndpoints_property(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")}
	names := []string{"a", "b", "c", "d"}
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		v := newEndpoints(addrs[2])
		known := map[string]string{} // holders, updated for returned names only
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "name")
			var affected []string
			if rapid.IntRange(0, 3).Draw(t, "operation") == 0 {
				affected = v.delete(name)
			} else {
				o := aged(hostSubnet(name, "", ""), time.Duration(rapid.IntRange(0, 2).Draw(t, "age"))*time.Hour)
				affected = v.set(o, rapid.SampledFrom(addrs).Draw(t, "address"))
			}
			for _, n := range append(affected, name) {
				known[n] = v.holder(n)
			}
			for _, n := range names {
				c, ok := v.claims[n]
				if !ok {
					continue
				}
				want := n
				for other, d := range v.claims {
					if d.vtep == c.vtep && config.CompareHostSubnets(d.object, v.claims[want].object) < 0 {
						want = other
					}
				}
				if c.vtep == v.own {
					want = ""
				}
				if got := v.holder(n); got != want || known[n] != want {
					t.Fatalf("holder of the address of %s: got %q, want %q; holder by returned names: %q", n, got, want, known[n])
				}
			}
		}
	})
}

// Other nodes reach the pods of a node whose Node was deleted. Once another HostSubnet has its tunnel endpoint, the machine with that address neither gets
// packets for the deleted node's pods nor may send as them.
func TestEndpoint_ofDeletedNode(t *testing.T) {
	tier.Parallel(t)
	deleted := func() *networkv1.HostSubnet {
		o := aged(node(hostSubnet("node2", "172.31.0.12", "10.129.0.0/23")), time.Hour)
		o.Annotations[config.NodeDeletedAnnotation] = "2026-01-01T00:00:00Z"
		return o
	}
	returned := func() *networkv1.HostSubnet {
		return aged(node(hostSubnet("node2", "172.31.0.12", "10.129.0.0/23")), time.Hour)
	}
	first := map[string]string{"10.129.0.0/23": "172.31.0.12"}
	for name, other := range map[string]*networkv1.HostSubnet{
		"another node":            aged(node(hostSubnet("node3", "172.31.0.12", "10.130.0.0/23")), 0),
		"machine without a Node":  aged(hostSubnet("node3", "172.31.0.12", "10.130.0.0/23"), 0),
		"machine with fixed VNID": aged(fixed(hostSubnet("node3", "172.31.0.12", "10.130.0.0/23"), "48"), 0),
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, returned())
			f.want("172.31.0.12", first)
			f.update(deleted())
			f.create(hostSubnet("node9", "172.31.0.19", "10.131.0.0/23")) // handled after the update
			f.want("172.31.0.12 172.31.0.19", map[string]string{"10.129.0.0/23": "172.31.0.12", "10.131.0.0/23": "172.31.0.19"})
			f.create(other)
			f.owners("172.31.0.12", "node3")
			for _, flow := range f.flows() {
				if strings.Contains(flow, "10.129.0.0/23") {
					t.Errorf("got flow %s of the deleted node, whose address is another machine's", flow)
				}
			}
			if err := f.client.NetworkV1().HostSubnets().Delete(t.Context(), "node3", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			f.update(returned())
			f.owners("172.31.0.12", "node2")
		})
	}
}

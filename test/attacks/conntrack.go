package attacks

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// spray sends UDP packets, each of another connection, from a pod by its interface. After some it waits for a command, since the switch would drop most of
// what comes at once.
func (w *world) spray(ctx context.Context, node string, pod fixture.Pod, dst netip.Addr, connections int) error {
	i, err := pod.NetNS.Inject("eth0")
	if err != nil {
		return err
	}
	defer i.Close()
	const firstPort, ports, atOnce = 1024, 60000, 512
	for n := range connections {
		if n%atOnce == 0 {
			if _, err := w.number(ctx, node, "conntrack -C"); err != nil {
				return err
			}
		}
		src := netip.AddrPortFrom(pod.Addr, uint16(firstPort+n%ports))
		packet := wire.UDPPacket(src, netip.AddrPortFrom(dst, uint16(20000+n/ports)), []byte("spray"))
		if err := i.Resend(wire.Ethernet(nextHop(pod, dst), pod.MAC, wire.TypeIPv4, packet)); err != nil {
			return err
		}
	}
	return nil
}

// number runs a command on a node that prints a number.
func (w *world) number(ctx context.Context, node, command string) (int, error) {
	out, err := w.TryOutput(ctx, node, "sh", "-c", command)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(out))
}

// testHostConntrack has a pod open connections to the world without end: each has an entry in the host's conntrack table.
func testHostConntrack(t *testing.T, w *world) {
	rules, err := w.TryOutput(t.Context(), fixture.Node1, "iptables", "-t", "mangle", "-S", "OVSDN-LIMIT")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`--connlimit-above (\d+)`).FindStringSubmatch(rules)
	if m == nil {
		t.Fatalf("OVSDN-LIMIT has no limit: %s", rules)
	}
	limit, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	w.slowExpiry(t, fixture.Node1)
	t.Cleanup(func() {
		// conntrack fails if there is nothing to delete.
		command := "conntrack -D -p udp --orig-src " + w.a1.Addr.String() + " >/dev/null 2>&1 || true"
		if _, err := w.TryOutput(context.WithoutCancel(t.Context()), fixture.Node1, "sh", "-c", command); err != nil {
			t.Error(err)
		}
	})
	limited := []counter{w.rules(fixture.Node1, "pod with too many connections")}
	var moved []string
	var entries int
	for range 10 { // a busy machine drops packets between the pod and the switch
		before := w.read(t, limited)
		if err := w.spray(t.Context(), fixture.Node1, w.a1, lab.OutsideAddr(), limit+limit/4); err != nil {
			t.Fatal(err)
		}
		if entries, err = w.number(t.Context(), fixture.Node1, "conntrack -L -p udp --orig-src "+w.a1.Addr.String()+" 2>/dev/null | wc -l"); err != nil {
			t.Fatal(err)
		}
		var grown uint64
		if moved, grown = difference(before, w.read(t, limited)); grown > 0 {
			break
		}
	}
	report(t, attack{position: aPod, sent: fmt.Sprintf("UDP of %d connections to a host outside", limit+limit/4)}, max(entries-limit, 0), moved)
	if entries > limit {
		t.Errorf("the pod has %d entries in the host's conntrack table, want at most %d", entries, limit)
	}
	if len(moved) == 0 {
		t.Error("the drops are not counted")
	}
	fixture.Meet(t, w.v1.NetNS, lab.OutsideAddr())
}

// slowExpiry has a node's host retain entries of UDP without replies until the test ends: else the first would expire before a slow machine has
// made the last.
func (w *world) slowExpiry(t *testing.T, node string) {
	t.Helper()
	const timeout = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout"
	before, err := w.number(t.Context(), node, "cat "+timeout)
	if err != nil {
		t.Fatal(err)
	}
	set := func(ctx context.Context, seconds int) error {
		_, err := w.TryOutput(ctx, node, "sh", "-c", fmt.Sprintf("echo %d >%s", seconds, timeout))
		return err
	}
	if err := set(t.Context(), 3600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set(context.WithoutCancel(t.Context()), before); err != nil {
			t.Error(err)
		}
	})
}

const zoneLimits = "ovs-appctl dpctl/ct-get-limits"

// shrinkTracker empties the tracker of a node's switch, gives it room for so many connections until the test ends, and returns when the limits of zones follow.
func (w *world) shrinkTracker(t *testing.T, node string, room int) {
	t.Helper()
	size, err := w.number(t.Context(), node, "ovs-appctl dpctl/ct-get-maxconns")
	if err != nil {
		t.Fatal(err)
	}
	setSize := func(ctx context.Context, n int) {
		if _, err := w.TryOutput(ctx, node, "ovs-appctl", "dpctl/ct-set-maxconns", strconv.Itoa(n)); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { setSize(context.WithoutCancel(t.Context()), size) })
	setSize(t.Context(), room)
	w.Output(t, node, "ovs-appctl", "dpctl/flush-conntrack")
	fixture.Eventually(t, fixture.SyncTime, "the limits follow the tracker's size", func(ctx context.Context) error {
		zones, err := w.zones(ctx, node)
		if err != nil {
			return err
		}
		for number, z := range zones {
			if z.limit > room || z.limit < room/32 {
				return fmt.Errorf("zone %d has the limit %d", number, z.limit)
			}
		}
		return nil
	})
}

// zone is a conntrack zone of a switch.
type zone struct{ limit, connections int }

func (z zone) String() string { return fmt.Sprintf("%d connections, limit %d", z.connections, z.limit) }

// zones returns the limited conntrack zones of a node's switch.
func (w *world) zones(ctx context.Context, node string) (map[int]zone, error) {
	out, err := w.TryOutput(ctx, node, "sh", "-c", zoneLimits)
	if err != nil {
		return nil, err
	}
	all := map[int]zone{}
	for _, m := range regexp.MustCompile(`zone=(\d+),limit=(\d+),count=(\d+)`).FindAllStringSubmatch(out, -1) {
		var number int
		var z zone
		if _, err := fmt.Sscan(strings.Join(m[1:], " "), &number, &z.limit, &z.connections); err != nil {
			return nil, fmt.Errorf("%q: %w", m[0], err)
		}
		all[number] = z
	}
	return all, nil
}

// testZoneExhaustion has a pod under a policy open connections without end in the switch's tracker, of which the test leaves little. The zones of
// other pods are not affected.
func testZoneExhaustion(t *testing.T, w *world) {
	const tracker, share = 20000, 16 // docs/decisions/0001-conntrack.md
	w.allowAll(t, w.attackers, w.a2)
	w.allowAll(t, w.victims, w.v2)
	w.shrinkTracker(t, fixture.Node2, tracker)
	var opened int
	fixture.Eventually(t, fixture.SyncTime, "connections are tracked by the policy", func(ctx context.Context) (err error) {
		if err := w.spray(ctx, fixture.Node2, w.a2, w.a3.Addr, tracker/2); err != nil {
			return err
		}
		opened, err = w.number(ctx, fixture.Node2, "ovs-appctl dpctl/dump-conntrack | grep -c 'orig=(src="+w.a2.Addr.String()+",' || true")
		if err == nil && opened == 0 {
			err = errors.New("none is")
		}
		return err
	})
	const most = tracker / share
	report(t, attack{position: aPod, sent: fmt.Sprintf("UDP of %d connections to a pod of the same tenant, under a policy", tracker/2)}, max(opened-most, 0),
		[]string{fmt.Sprintf("%s: %d connections of the pod, limit %d", zoneLimits, opened, most)})
	if opened > most {
		t.Errorf("the pod has %d connections in the switch's tracker, want 1 to %d", opened, most)
	}
	fixture.Meet(t, w.v2.NetNS, w.v3.Addr) // by the tracker of the same node
}

// targetZone returns the zone of connections that are opened to a pod from outside of its node (docs/decisions/0001-conntrack.md).
func targetZone(p fixture.Pod) int {
	b := p.Addr.As4()
	return 0x8000 | (int(b[2])<<8|int(b[3]))&0x1fff
}

// testZoneSharing has pods of another node open connections without end to a pod whose policy admits them. They use up the room of that pod, but not that
// of another pod, for which they have room themselves. Both pods may only reply, so that without an entry no reply leaves them.
func testZoneSharing(t *testing.T, w *world) {
	const tracker, share = 20000, 8 // docs/decisions/0001-conntrack.md
	w.repliesOnly(t, w.guarded, w.server, w.open)
	w.shrinkTracker(t, fixture.Node1, tracker)
	before, err := w.zones(t.Context(), fixture.Node1)
	if err != nil {
		t.Fatal(err)
	}
	var filled map[int]zone
	fixture.Eventually(t, fixture.SyncTime, "the zone of the pod is full", func(ctx context.Context) error {
		for _, from := range []fixture.Pod{w.enemy, w.friend} {
			if err := w.spray(ctx, fixture.Node2, from, w.open.Addr, tracker/2); err != nil {
				return err
			}
		}
		if filled, err = w.zones(ctx, fixture.Node1); err != nil {
			return err
		}
		if z := filled[targetZone(w.open)]; z.connections < z.limit {
			return errors.New(z.String())
		}
		return nil
	})
	var grown []string
	for number, z := range filled {
		if z.connections > before[number].connections {
			grown = append(grown, fmt.Sprintf("%s: zone %#x: %v", zoneLimits, number, z))
		}
	}
	const most = tracker / share
	attacked := filled[targetZone(w.open)]
	report(t, attack{position: aPod, sent: fmt.Sprintf("UDP of %d connections by two pods of another node to a pod that admits them", tracker)}, max(attacked.connections-most, 0), grown)
	if attacked.connections > most {
		t.Errorf("the zone of the pod has %v, want at most %d", attacked, most)
	}
	if z := filled[targetZone(w.server)]; z.connections > before[targetZone(w.server)].connections {
		t.Errorf("the zone of another pod has %v after the attack, want %v", z, before[targetZone(w.server)])
	}
	fixture.Eventually(t, fixture.SyncTime, "the zone of another pod has a connection that is opened last", func(ctx context.Context) error {
		fixture.Meet(t, w.friend.NetNS, w.server.Addr) // one of the attackers, by the tracker of the same node
		after, err := w.zones(ctx, fixture.Node1)
		if err != nil {
			return err
		}
		if z := after[targetZone(w.server)]; z.connections == 0 {
			return errors.New(z.String())
		}
		return nil
	})
}

// repliesOnly forbids pods to open connections until the test ends. What others open to them is committed, or no reply leaves them.
func (w *world) repliesOnly(t *testing.T, namespace string, pods ...fixture.Pod) {
	t.Helper()
	for _, pod := range pods {
		name := "replies-" + pod.Name
		w.SetPolicy(t, &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Spec:       networkingv1.NetworkPolicySpec{PodSelector: app(pod.Name), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}},
		})
		t.Cleanup(func() { w.deletePolicy(t, namespace, name) })
	}
}

// deletePolicy is for cleanups.
func (w *world) deletePolicy(t *testing.T, namespace, name string) {
	t.Helper()
	if err := w.Kube.NetworkingV1().NetworkPolicies(namespace).Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// allowAll puts a pod under a policy that allows everything, until the test ends: its connections are tracked.
func (w *world) allowAll(t *testing.T, namespace string, pod fixture.Pod) {
	t.Helper()
	w.SetPolicy(t, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "tracked", Namespace: namespace},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: app(pod.Name), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			Egress: []networkingv1.NetworkPolicyEgressRule{{}},
		},
	})
	t.Cleanup(func() { w.deletePolicy(t, namespace, "tracked") })
}

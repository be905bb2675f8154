package attacks

import (
	"context"
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
		if err := i.Send(wire.Ethernet(nextHop(pod, dst), pod.MAC, wire.TypeIPv4, packet)); err != nil {
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
	if _, err := w.TryOutput(t.Context(), fixture.Node1, "sh", "-c", "conntrack -D -p udp --orig-src "+w.a1.Addr.String()+" >/dev/null 2>&1"); err != nil {
		t.Fatal(err)
	}
}

// testZoneExhaustion has a pod under a policy open connections without end in the switch's tracker, of which the test leaves little. The zones of
// other pods are not affected.
func testZoneExhaustion(t *testing.T, w *world) {
	const tracker, share = 20000, 16 // docs/decisions/0001-conntrack.md
	const limits = "ovs-appctl dpctl/ct-get-limits"
	size, err := w.number(t.Context(), fixture.Node2, "ovs-appctl dpctl/ct-get-maxconns")
	if err != nil {
		t.Fatal(err)
	}
	setSize := func(ctx context.Context, n int) {
		if _, err := w.TryOutput(ctx, fixture.Node2, "ovs-appctl", "dpctl/ct-set-maxconns", strconv.Itoa(n)); err != nil {
			t.Error(err)
		}
	}
	w.allowAll(t, w.attackers, w.a2)
	w.allowAll(t, w.victims, w.v2)
	t.Cleanup(func() { setSize(context.WithoutCancel(t.Context()), size) })
	setSize(t.Context(), tracker)
	zone := regexp.MustCompile(`zone=(\d+),limit=(\d+),count=(\d+)`)
	fixture.Eventually(t, fixture.SyncTime, "the limits follow the tracker's size", func(ctx context.Context) error {
		out, err := w.TryOutput(ctx, fixture.Node2, "sh", "-c", limits)
		if err != nil {
			return err
		}
		for _, m := range zone.FindAllStringSubmatch(out, -1) {
			if limit, err := strconv.Atoi(m[2]); err != nil || limit > tracker {
				return fmt.Errorf("zone %s has the limit %s: %w", m[1], m[2], err)
			}
		}
		return nil
	})
	if err := w.spray(t.Context(), fixture.Node2, w.a2, w.a3.Addr, tracker/2); err != nil {
		t.Fatal(err)
	}
	opened, err := w.number(t.Context(), fixture.Node2, "ovs-appctl dpctl/dump-conntrack | grep -c 'orig=(src="+w.a2.Addr.String()+",' || true")
	if err != nil {
		t.Fatal(err)
	}
	const most = tracker / share
	report(t, attack{position: aPod, sent: fmt.Sprintf("UDP of %d connections to a pod of the same tenant, under a policy", tracker/2)}, max(opened-most, 0),
		[]string{fmt.Sprintf("%s: %d connections of the pod, limit %d", limits, opened, most)})
	if opened == 0 || opened > most {
		t.Errorf("the pod has %d connections in the switch's tracker, want 1 to %d", opened, most)
	}
	fixture.Meet(t, w.v2.NetNS, w.v3.Addr) // by the tracker of the same node
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
	t.Cleanup(func() {
		if err := w.Kube.NetworkingV1().NetworkPolicies(namespace).Delete(context.WithoutCancel(t.Context()), "tracked", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

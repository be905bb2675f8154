package networkpolicy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/tier"
)

func loggedNamespace(name, value string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{config.LogDeniedAnnotation: value}}}
}

// The flows of a namespace's pods, and no others, follow the namespace's annotation.
func TestLoggedNamespace(t *testing.T) {
	tier.Parallel(t)
	f := newFixture(t, addPolicyWithPeer)
	f.attachPod(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	const logged = "controller("
	const arp = 1 // meter of the pod
	f.eventually(has(0, logged))
	if n := len(f.bridge.Meters()); n != arp {
		t.Errorf("%d meters, want %d", n, arp)
	}
	f.namespaces.Modify(loggedNamespace("a", "true"))
	f.eventually(has(2, logged))
	if n := len(f.bridge.Meters()); n != arp+2 {
		t.Errorf("%d meters, want %d", n, arp+2)
	}
	f.namespaces.Modify(loggedNamespace("a", "yes"))
	f.eventually(has(0, logged))
	f.namespaces.Modify(loggedNamespace("b", "true"))
	f.namespaces.Modify(loggedNamespace("a", "true"))
	f.eventually(has(2, logged))
	f.namespaces.Delete(loggedNamespace("b", ""))
	f.namespaces.Delete(loggedNamespace("a", ""))
	f.eventually(has(0, logged))
	if n := len(f.bridge.Meters()); n != arp {
		t.Errorf("%d meters remain, want %d", n, arp)
	}
}

func TestExplain(t *testing.T) {
	longest := policy.PodKey{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("p", 253)}
	f := newFixture(t, func(f *fixture) {
		addPolicyWithPeer(f)
		f.pods.Add(podObject("b", "other", "3", "10.129.0.10", nil))
		f.pods.Add(podObject(longest.Namespace, longest.Name, "4", "10.129.0.11", nil))
	})
	f.attachPod(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	f.clusterPolicies.Add(&policyv1alpha2.ClusterNetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "no-b"},
		Spec: policyv1alpha2.ClusterNetworkPolicySpec{
			Tier: policyv1alpha2.AdminTier, Subject: policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}},
			Ingress: []policyv1alpha2.ClusterNetworkPolicyIngressRule{{
				Action: policyv1alpha2.ClusterNetworkPolicyRuleActionDeny,
				From:   []policyv1alpha2.ClusterNetworkPolicyIngressPeer{{Namespaces: &metav1.LabelSelector{MatchLabels: team("b")}}},
			}},
		},
	})
	const denies = "goto_table:83"
	f.eventually(has(1, denies))
	var rule uint32
	for _, flow := range f.policyFlows() {
		if _, id, ok := strings.Cut(flow, "conj_id="); ok && strings.Contains(flow, denies) {
			if _, err := fmt.Sscanf(id, "%d,", &rule); err != nil {
				t.Fatal(err)
			}
		}
	}
	between := func(from, to string) header {
		return header{source: netip.MustParseAddr(from), destination: netip.MustParseAddr(to)}
	}
	for name, tc := range map[string]struct {
		denial denial
		want   explanation
	}{
		"isolated": {denial{header: between("10.129.0.10", "10.128.0.5")}, explanation{source: "b/other", destination: "a/web", policies: []string{"a/web"}}},
		"by the longest name": {
			denial{header: between("10.129.0.11", "10.128.0.5")},
			explanation{source: longest.Namespace + "/" + longest.Name, destination: "a/web", policies: []string{"a/web"}},
		},
		"by a rule": {
			denial{pipeline.Denied{Rule: rule}, between("10.129.0.10", "10.128.0.5")},
			explanation{source: "b/other", destination: "a/web", policies: []string{"no-b/ingress/0"}},
		},
		"by a deleted rule": {denial{pipeline.Denied{Rule: rule + 1}, between("192.0.2.1", "10.128.0.5")}, explanation{source: "192.0.2.1", destination: "a/web"}},
		"of egress":         {denial{pipeline.Denied{Egress: true}, between("10.128.0.5", "192.0.2.1")}, explanation{source: "a/web", destination: "192.0.2.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := f.explain(tc.denial); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

// logRecorder records the lines that the context's logger writes, from the message on.
type logRecorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *logRecorder) withLogger(ctx context.Context) context.Context {
	return klog.NewContext(ctx, funcr.New(func(_, args string) {
		_, args, _ = strings.Cut(args, `"msg"=`)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.lines = append(r.lines, args)
	}, funcr.Options{}))
}

func (r *logRecorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

// take returns the lines since its last call.
func (r *logRecorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.lines
	r.lines = nil
	return lines
}

func (r *logRecorder) has(part string) bool {
	return slices.ContainsFunc(r.all(), func(line string) bool { return strings.Contains(line, part) })
}

// Packets of pods are denied in both directions. The lines name both pods and the policy. Of 100,000 packets the switch reports some tens, and a single
// packet of another pod in the meantime is logged.
func TestDeniedPacketsAreLogged(t *testing.T) {
	tier.Parallel(t)
	s := newPacketNode(t)
	pods := s.node.Pods
	s.logged["a"] = true
	var lines logRecorder
	var reported atomic.Int64
	s.logDenied(t, &lines, &reported)
	if err := s.engine.SetNetworkPolicy(denyEgress("a", "1")); err != nil {
		t.Fatal(err)
	}
	s.apply(t)

	to := netip.AddrPortFrom(pods[2].Addr, 80)
	for i, want := range []string{
		`"source"="a/0" "destination"="a/2" "protocol"="UDP" "port"=80 "direction"="ingress" "policies"=["a/allow"] "packets"=1`,
		`"source"="a/1" "destination"="a/2" "protocol"="UDP" "port"=80 "direction"="egress" "policies"=["a/deny-egress"] "packets"=1`,
	} {
		from := pods[i].UDP(t, 0)
		f := func() bool {
			from.Send(t, to, from.Message())
			return lines.has(want)
		}
		waitFor(t, f, func() string { return "no line has " + want + ":\n" + strings.Join(lines.all(), "\n") })
	}

	testTaggedDenied(t, pods[0], pods[2], &lines)

	const packets = 100_000
	start := time.Now() // before all counted packets
	before := reported.Load()
	flooded, logged := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(flooded)
		flood(t, pods[0], to, packets, logged)
	}()
	// A few packets of another pod are denied during the flood.
	other, alone := netip.AddrPortFrom(pods[2].Addr, 81), pods[1].UDP(t, 0)
	waitFor(t, func() bool {
		alone.Send(t, other, alone.Message())
		return lines.has(`"source"="a/1" "destination"="a/2" "protocol"="UDP" "port"=81 "direction"="egress"`)
	},
		func() string { return "another pod's packets are not logged:\n" + strings.Join(lines.all(), "\n") })
	select {
	case <-flooded:
		t.Error("the flood ended before the other pod's packets were logged")
	default:
	}
	close(logged)
	<-flooded
	got := reported.Load() - before
	took := time.Since(start)
	t.Logf("the switch reported %d of %d packets in %v", got, packets, took)
	t.Run("rate", func(t *testing.T) {
		if testing.Short() {
			t.Skip("complete tier: compares rates")
		}
		if most := int64(1 + 20 + 10*(took.Seconds()+1)); got > most {
			t.Errorf("the switch reported %d packets, want at most %d", got, most)
		}
	})
	waitFor(t, func() bool { return lines.has(`"protocol"="TCP" "port"=80`) }, func() string { return "the flood is not logged" })
}

// testTaggedDenied: the switch evaluates frames with a VLAN tag, so denied ones are logged, too.
func testTaggedDenied(t *testing.T, from, to *datapath.Pod, lines *logRecorder) {
	t.Helper()
	injector, err := wire.NetNS(fmt.Sprintf("/proc/self/fd/%d", from.NS.Fd())).Inject("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer injector.Close()
	packet := wire.UDPPacket(netip.AddrPortFrom(from.Addr, 5000), netip.AddrPortFrom(to.Addr, 7), []byte("tagged"))
	tagged := wire.Ethernet(to.MAC, from.MAC, wire.TypeVLAN, wire.VLAN(5, wire.TypeIPv4, packet))
	waitFor(t, func() bool {
		if err := injector.Send(tagged); err != nil {
			t.Fatal(err)
		}
		return lines.has(`"source"="a/0" "destination"="a/2" "protocol"="UDP" "port"=7 "direction"="ingress"`)
	}, func() string { return "a denied frame with a tag is not logged:\n" + strings.Join(lines.all(), "\n") })
}

// logDenied logs denied packets until the test ends, and counts those that the switch reports.
func (s *packetNode) logDenied(t *testing.T, lines *logRecorder, reported *atomic.Int64) {
	t.Helper()
	d := newDenied((&Policies{compiler: s.Compiler}).explain, s.Compiler.node.Subnets)
	ctx, stop := context.WithCancel(lines.withLogger(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { d.run(ctx) })
	running.Go(func() {
		s.bridge.WatchPackets(ctx, func(p ovs.PacketIn) {
			reported.Add(1)
			d.handle(p)
		})
	})
	t.Cleanup(func() { stop(); running.Wait() })
}

// flood sends the first packets of TCP connections without a pause: at least that many, and until done is closed or the test ends.
func flood(t *testing.T, from *datapath.Pod, to netip.AddrPort, packets int, done <-chan struct{}) {
	t.Helper()
	raw := from.Listen(t, "ip4:6", 0)
	syn := make([]byte, 20)
	syn[12], syn[13] = 5<<4, 2 // length, flags
	binary.BigEndian.PutUint16(syn[2:], to.Port())
	for sent := 0; (sent < packets || !closed(done)) && t.Context().Err() == nil; {
		binary.BigEndian.PutUint16(syn, uint16(1024+sent%60000)) //nolint:gosec // a port
		switch _, err := raw.WriteTo(syn, &net.IPAddr{IP: to.Addr().AsSlice()}); {
		case errors.Is(err, unix.ENOBUFS): // the packet was dropped before the switch
		case err != nil:
			t.Fatal(err)
		default:
			sent++
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// waitFor polls done, and fails with the message after testTimeout.
func waitFor(t *testing.T, done func() bool, message func() string) {
	t.Helper()
	deadline, tick := time.After(testTimeout), time.NewTicker(50*time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(message())
		}
	}
}

// denyEgress returns a policy that isolates the pods with the label for egress.
func denyEgress(namespace, app string) *networkingv1.NetworkPolicy {
	p := allowFrom(namespace, "none")
	p.Name = "deny-egress"
	p.Spec.PodSelector.MatchLabels = map[string]string{"app": app}
	p.Spec.PolicyTypes, p.Spec.Ingress = p.Spec.PolicyTypes[1:], nil
	return p
}

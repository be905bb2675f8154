package e2e

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// firstsVariable is how many pods begin their life in testFirstPackets, firstsDefault what fits into a run of all tests.
const (
	firstsVariable = "OVSDN_TEST_FIRSTS"
	firstsDefault  = 100
)

// firstPort is where newborn pods send, and hear.
const firstPort = 7000

// side is on which side of the policy a pod is: newborn pods may hear and reach friends, and no others.
const (
	friend  = "friend"
	enemy   = "enemy"
	newborn = "newborn"
)

// testFirstPackets starts many pods by the plugin itself, while a process in each tries to connect and to send to friends and enemies, from before it
// has an interface; at the same time friends and enemies send to the addresses that are allocated next. A container would start later. Packets of
// friends arrive, packets of enemies never.
func testFirstPackets(t *testing.T, c *cluster) {
	tryFirstPackets(t, c, fixture.Repetitions(t, firstsVariable, firstsDefault))
}

func tryFirstPackets(t *testing.T, c *cluster, tries int) {
	b := newBirths(t, c, tries)
	began := time.Now()
	for i := range tries {
		b.try(t, i)
		if n := i + 1; n%100 == 0 {
			b.mu.Lock()
			t.Logf("%d pods after %.1fs: %d packets of friends, %d of enemies", n, time.Since(began).Seconds(), b.friendly, len(b.breaches))
			b.mu.Unlock()
		}
	}
	if err := b.leaving.Wait(); err != nil {
		t.Error(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.Sort(b.took)
	t.Logf("%d pods in %.1fs; from ADD's begin to the last friend's first packet: %v median, %v at most; of the %d packets that arrived, %d were enemies'",
		tries, time.Since(began).Seconds(), b.took[tries/2], b.took[tries-1], b.friendly, len(b.breaches))
	if len(b.breaches) > 0 {
		fixture.Arrived(t, "%s", strings.Join(b.breaches[:min(len(b.breaches), 20)], "\n"))
	}
}

// births is what newborn pods meet.
type births struct {
	*cluster
	namespace string
	node      machine
	others    []pod
	uids      []string
	leaving   errgroup.Group

	mu       sync.Mutex
	serial   int // of the try
	next     []netip.Addr
	heard    map[string]bool // of this try: "tcp friend-here from newborn"
	news     chan struct{}
	friendly int
	breaches []string
	took     []time.Duration
}

func newBirths(t *testing.T, c *cluster, tries int) *births {
	t.Helper()
	b := &births{cluster: c, namespace: c.Namespace(t), node: c.Machine(t, fixture.Node1), news: make(chan struct{}, 1), heard: map[string]bool{}}
	peers := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"side": friend}}}}
	c.SetPolicy(t, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "friends", Namespace: b.namespace},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"side": newborn}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: peers}},
			Egress:      []networkingv1.NetworkPolicyEgressRule{{To: peers}},
		},
	})
	var others []*corev1.Pod
	for _, side := range []string{friend, enemy} {
		for _, node := range []string{fixture.Node1, fixture.Node2} {
			p := fixture.Netexec(side+"-"+node, node)
			p.Labels, p.Spec.Containers[0].ReadinessProbe = map[string]string{"side": side}, nil
			others = append(others, p)
		}
	}
	b.others = c.Run(t, b.namespace, others...)
	for _, p := range b.others {
		for _, protocol := range []int{wire.ProtocolTCP, wire.ProtocolUDP} {
			hearRaw(t, p.End(), protocol, func(from netip.Addr, packet []byte) { b.hear(p.Name, protocol, from, packet) })
		}
		b.calls(t, p)
	}
	b.conceive(t, tries)
	return b
}

// conceive makes the newborns' objects, which no kubelet looks at, and their network namespaces.
func (b *births) conceive(t *testing.T, tries int) {
	t.Helper()
	b.uids = make([]string, tries)
	var making errgroup.Group
	making.SetLimit(8)
	for i := range tries {
		making.Go(func() error {
			p := fixture.Netexec(newbornName(i), "")
			p.Labels, p.Spec.SchedulerName = map[string]string{"side": newborn}, "none"
			made, err := b.Kube.CoreV1().Pods(b.namespace).Create(t.Context(), p, metav1.CreateOptions{})
			if err == nil {
				b.uids[i] = string(made.UID)
			}
			return err
		})
	}
	if err := making.Wait(); err != nil {
		t.Fatal(err)
	}
	b.Output(t, fixture.Node1, "sh", "-ec", fmt.Sprintf("for i in $(seq 0 %d); do ip netns add newborn-$i; done", tries-1))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.PodTime)
		defer cancel()
		if _, err := b.TryOutput(ctx, fixture.Node1, "sh", "-c", "for n in /run/netns/newborn-*; do [ -e $n ] && ip netns del ${n##*/}; done; true"); err != nil {
			t.Error(err)
		}
	})
}

func newbornName(i int) string { return fmt.Sprintf("newborn-%d", i) }

// hear notes what comes to friends and enemies from a newborn, and to that from them.
func (b *births) hear(at string, protocol int, from netip.Addr, packet []byte) {
	if len(packet) < 8 || binary.BigEndian.Uint16(packet[2:]) != firstPort {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	sender := newborn
	if i := slices.IndexFunc(b.others, func(p pod) bool { return p.Addr == from }); i >= 0 {
		sender = b.others[i].Name
	}
	if at != newborn && sender != newborn {
		return // an address that is called may be another's
	}
	what := fmt.Sprintf("%d %s from %s", protocol, at, sender)
	if strings.Contains(what, enemy) {
		b.breaches = append(b.breaches, fmt.Sprintf("try %d: IP protocol %d arrives at %s from %s (%s)", b.serial, protocol, at, sender, from))
		return
	}
	b.friendly++
	b.heard[what] = true
	select {
	case b.news <- struct{}{}:
	default:
	}
}

// calls has a pod send to the addresses that the node gives next, until the test ends.
func (b *births) calls(t *testing.T, from pod) {
	t.Helper()
	inject, err := from.NetNS.Inject("eth0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	calling.Go(func() {
		tick := time.NewTicker(fineInterval)
		defer tick.Stop()
		for ctx.Err() == nil {
			b.mu.Lock()
			next := b.next
			b.mu.Unlock()
			for _, addr := range next {
				packet := wire.UDPPacket(netip.AddrPortFrom(from.Addr, firstPort), netip.AddrPortFrom(addr, firstPort), nil)
				if err := inject.Resend(wire.Ethernet(fixture.MACOf(addr), from.MAC, wire.TypeIPv4, packet)); err != nil && !errors.Is(err, os.ErrClosed) {
					t.Error(err)
					return
				}
			}
			<-tick.C
		}
	})
	t.Cleanup(func() { cancel(); calling.Wait(); inject.Close() })
}

// try lives one life.
func (b *births) try(t *testing.T, i int) {
	t.Helper()
	name := newbornName(i)
	netns := wire.NetNS(filepath.Join(b.node.Root, "run/netns", name))
	b.begin(i)
	ctx, cancel := context.WithTimeout(t.Context(), fixture.SyncTime)
	defer cancel()
	var living sync.WaitGroup
	defer living.Wait()
	defer cancel()
	ears, err := netns.ListenPacket("udp4", netip.AddrPortFrom(netip.IPv4Unspecified(), firstPort).String())
	if err != nil {
		t.Fatal(err)
	}
	defer ears.Close()
	living.Go(func() { b.listens(ears) })
	for _, to := range b.others {
		at := netip.AddrPortFrom(to.Addr, firstPort)
		living.Go(func() { connects(ctx, netns, at) })
		living.Go(func() { sends(ctx, ears, at) })
	}
	began := time.Now()
	out := b.Output(t, fixture.Node1, "sh", "-c", b.plugin("ADD", i))
	addr, err := addrOfResult(out)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b.born(addr)
	if err := b.knowsFriends(ctx); err != nil {
		t.Errorf("%s (%s): %v", name, addr, err)
	}
	b.mu.Lock()
	b.took = append(b.took, time.Since(began))
	b.mu.Unlock()
	b.leaving.Go(func() error {
		_, err := b.TryOutput(context.WithoutCancel(t.Context()), fixture.Node1, "sh", "-c", b.plugin("DEL", i)+" && ip netns del "+name)
		return err
	})
}

func (b *births) begin(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serial = i
	clear(b.heard)
}

// born notes which address was given: the next are those after it.
func (b *births) born(addr netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	const ahead = 3
	b.next = []netip.Addr{addr}
	for range ahead {
		addr = addr.Next()
		b.next = append(b.next, addr)
	}
}

// knowsFriends waits until friends have heard the newborn by both protocols, and it them.
func (b *births) knowsFriends(ctx context.Context) error {
	for {
		b.mu.Lock()
		var missing []string
		for _, p := range b.others {
			if !strings.HasPrefix(p.Name, friend) {
				continue
			}
			for _, what := range []string{
				fmt.Sprintf("%d %s from %s", wire.ProtocolTCP, p.Name, newborn),
				fmt.Sprintf("%d %s from %s", wire.ProtocolUDP, p.Name, newborn),
				fmt.Sprintf("%d %s from %s", wire.ProtocolUDP, newborn, p.Name),
			} {
				if !b.heard[what] {
					missing = append(missing, what)
				}
			}
		}
		b.mu.Unlock()
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-b.news:
		case <-ctx.Done():
			return fmt.Errorf("not heard: %q", missing)
		}
	}
}

func (b *births) listens(ears net.PacketConn) {
	buffer := make([]byte, 1<<10)
	for {
		_, from, err := ears.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if udp, ok := from.(*net.UDPAddr); err == nil && ok {
			b.hear(newborn, wire.ProtocolUDP, udp.AddrPort().Addr().Unmap(), []byte{0, 0, firstPort >> 8, firstPort & 0xff, 0, 0, 0, 0})
		}
	}
}

// impatience is the time between two attempts of a pod without a network.
const impatience = 200 * time.Microsecond

// connects opens a connection as soon as a route exists, and repeats it. No server listens.
func connects(ctx context.Context, from wire.NetNS, to netip.AddrPort) {
	tick := time.NewTicker(impatience)
	defer tick.Stop()
	for ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond) // the kernel repeats a SYN after a second only
		if conn, err := from.DialContext(ctx, "tcp4", to.String()); err == nil {
			conn.Close()
		}
		cancel()
		<-tick.C
	}
}

func sends(ctx context.Context, from net.PacketConn, to netip.AddrPort) {
	tick := time.NewTicker(impatience)
	defer tick.Stop()
	for ctx.Err() == nil {
		_, _ = from.WriteTo([]byte("first"), net.UDPAddrFromAddrPort(to)) // there is no network yet
		<-tick.C
	}
}

// plugin is a call of the runtime's.
func (b *births) plugin(verb string, i int) string {
	name := newbornName(i)
	return fmt.Sprintf(`echo '{"cniVersion":"1.1.0","name":"ovsdn","type":"ovsdn-cni"}' | CNI_COMMAND=%s CNI_CONTAINERID=sandbox-of-%s CNI_NETNS=/run/netns/%s CNI_IFNAME=eth0 `+
		`CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=sandbox-of-%s;K8S_POD_UID=%s" CNI_PATH=/opt/cni/bin /opt/cni/bin/ovsdn-cni`,
		verb, name, name, b.namespace, name, name, b.uids[i])
}

func addrOfResult(out string) (netip.Addr, error) {
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		return netip.Addr{}, err
	}
	if len(result.IPs) != 1 {
		return netip.Addr{}, fmt.Errorf("%d addresses", len(result.IPs))
	}
	return result.IPs[0].Address.Addr(), nil
}

package attacks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// testFloods has pods use up what they share with others.
func testFloods(t *testing.T, w *world) {
	t.Run("neighbours", func(t *testing.T) { testNeighbourSweep(t, w) })
	t.Run("destinations", func(t *testing.T) { testDestinationSweep(t, w) })
	t.Run("host conntrack", func(t *testing.T) { testHostConntrack(t, w) })
	t.Run("conntrack zones", func(t *testing.T) { testZoneExhaustion(t, w) })
	t.Run("zone sharing", func(t *testing.T) { testZoneSharing(t, w) })
}

// nth returns an address of a network by its number.
func nth(network netip.Prefix, n int) netip.Addr {
	b := network.Addr().As4()
	n += int(b[2])<<8 | int(b[3])
	b[1] += byte(n >> 16)
	b[2], b[3] = byte(n>>8), byte(n)
	return netip.AddrFrom4(b)
}

// unusedServiceIPs returns addresses of the service network that no service has.
func (w *world) unusedServiceIPs(t *testing.T, count int) []netip.Addr {
	t.Helper()
	services, err := w.Kube.CoreV1().Services(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, svc := range services.Items {
		used[svc.Spec.ClusterIP] = true
	}
	network := w.Shape().ServiceNetwork
	var unused []netip.Addr
	for n := 256; len(unused) < count; n++ { // the first addresses are for services that name their own
		addr := nth(network, n)
		if !network.Contains(addr) {
			t.Fatalf("%s has %d unused addresses, want %d", network, len(unused), count)
		}
		if !used[addr.String()] {
			unused = append(unused, addr)
		}
	}
	return unused
}

// neighbours returns how many neighbours a machine has by tun0, with those that do not answer.
func neighbours(m fixture.Machine) (count int, err error) {
	err = m.NetNS.Do(func() error {
		content, err := os.ReadFile("/proc/thread-self/net/arp")
		for line := range strings.Lines(string(content)) {
			if strings.HasSuffix(strings.TrimSpace(line), " tun0") {
				count++
			}
		}
		return err
	})
	return count, err
}

// testNeighbourSweep sends to service addresses that no service has: on the host, each would be a neighbour that does not answer.
func testNeighbourSweep(t *testing.T, w *world) {
	const most = 64 // that other work of the node may add in the meantime
	sweep := sized(2000, 20000)
	for _, from := range []fixture.Pod{w.a1} {
		t.Run("by "+from.Name, func(t *testing.T) {
			before, err := neighbours(w.node1)
			if err != nil {
				t.Fatal(err)
			}
			unused := w.unusedServiceIPs(t, sweep)
			send := fromPod(from, func(token []byte) (frames [][]byte) {
				for _, addr := range unused {
					frames = append(frames, wire.Ethernet(gatewayMAC(from), from.MAC, wire.TypeIPv4, wire.UDPPacket(to(from.Addr), to(addr), token)))
				}
				return frames
			})
			w.try(t, attack{
				position: aPod, sent: fmt.Sprintf("UDP to %d addresses of the service network that no service has", sweep), packets: sweep / 20, send: send,
				at: []receiver{w.hostOf(w.node1)}, counters: []counter{w.drops(fixture.Node1, "60")},
			})
			after, err := neighbours(w.node1)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("neighbours of tun0 on node1: %d before, %d after", before, after)
			if after > before+most {
				t.Errorf("tun0 on node1 has %d neighbours after the sweep, want at most %d", after, before+most)
			}
		})
	}
}

// firstPackets returns the median time of a round trip of a first packet from a pod to a pod. Each has another port, whose leading bits the
// switch did not see before: it asks ovs-vswitchd.
func firstPackets(t *testing.T, from, dst fixture.Pod) time.Duration {
	t.Helper()
	var took []time.Duration
	for bit := range 15 {
		port := uint16(1) << (bit + 1)
		if port == vxlanPort || port == fixture.HTTPPort {
			continue
		}
		began := time.Now()
		fixture.Eventually(t, fixture.SyncTime, fmt.Sprintf("a first packet to port %d", port), func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, fixture.RefusedTime)
			defer cancel()
			conn, err := from.NetNS.DialContext(ctx, "udp4", netip.AddrPortFrom(dst.Addr, port).String())
			if err != nil {
				return err
			}
			defer conn.Close()
			if _, err := conn.Write([]byte("first")); err != nil {
				return err
			}
			deadline, _ := ctx.Deadline()
			if err := conn.SetReadDeadline(deadline); err != nil {
				return err
			}
			// Nothing listens: the answer is an ICMP error, which the socket reports as a refusal.
			_, err = conn.Read(make([]byte, 1))
			var refused *net.OpError
			if errors.As(err, &refused) && !refused.Timeout() {
				return nil
			}
			return err
		})
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// testDestinationSweep sends to many addresses from a pod under a policy. The first packets of another pod must not wait for long.
func testDestinationSweep(t *testing.T, w *world) {
	const slower = 10
	w.allowAll(t, w.attackers, w.a1)
	answerAll(t, w.v2, w.v3)
	idle := firstPackets(t, w.v1, w.v2)
	busy := w.duringSweep(t, sized(20000, 200000), func() time.Duration { return firstPackets(t, w.v1, w.v3) })
	t.Logf("first packets of another pod: %v idle, %v during the sweep", idle, busy)
	if limit := max(slower*idle, 100*time.Millisecond); busy > limit {
		t.Errorf("first packets of another pod take %v during the sweep, want at most %v", busy, limit)
	}
}

// duringSweep measures while pod a1 sends to many addresses.
func (w *world) duringSweep(t *testing.T, sweep int, measure func() time.Duration) time.Duration {
	t.Helper()
	i, err := w.a1.NetNS.Inject("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	counters := []counter{w.drops(fixture.Node1, "")}
	before := w.read(t, counters)
	swept := make(chan error, 1)
	go func() {
		for n := range sweep {
			dst := nth(w.Shape().ClusterNetwork, 0x3_0000+n%0x1_0000) // of no node
			if err := i.Resend(datagram(w.a1, netip.AddrPortFrom(dst, uint16(1000+n>>16)), []byte("sweep"))); err != nil {
				swept <- err
				return
			}
		}
		swept <- nil
	}()
	busy := measure()
	if err := <-swept; err != nil {
		t.Fatal(err)
	}
	moved, _ := difference(before, w.read(t, counters))
	report(t, attack{position: aPod, sent: fmt.Sprintf("UDP to %d addresses by a pod under a policy", sweep)}, 0, moved)
	return busy
}

// answerAll has pods answer each packet to a closed port by an ICMP error. By default the kernel sends six, and then one each second to the same host.
func answerAll(t *testing.T, pods ...fixture.Pod) {
	t.Helper()
	for _, p := range pods {
		if err := p.NetNS.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/icmp_ratelimit", []byte("0"), 0) }); err != nil {
			t.Fatal(err)
		}
	}
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// guarded is a pod that a friend may reach and an enemy may not; the enemy tries each millisecond.
type guarded struct {
	*cluster
	namespace             string
	target, friend, enemy pod
	breaches              atomic.Int64
	tried                 atomic.Int64
}

func newGuarded(t *testing.T, c *cluster) *guarded {
	t.Helper()
	g := &guarded{cluster: c, namespace: c.Namespace(t)}
	pods := c.Run(t, g.namespace, fixture.Netexec("target", fixture.Node1), fixture.Netexec("friend", fixture.Node2), fixture.Netexec("enemy", fixture.Node1))
	g.target, g.friend, g.enemy = pods[0], pods[1], pods[2]
	for _, from := range []pod{g.friend, g.enemy} {
		fixture.Meet(t, from.NetNS, g.target.Addr)
	}
	c.SetPolicy(t, ingressPolicy(g.namespace, "guard", g.target.Name, g.friend.Name))
	isolated(t, g.enemy, g.target)
	g.attack(t)
	return g
}

// attack has the enemy send to the target until the test ends.
func (g *guarded) attack(t *testing.T) {
	t.Helper()
	hearRaw(t, g.target.End(), wire.ProtocolUDP, func(from netip.Addr, _ []byte) {
		if from == g.enemy.Addr {
			g.breaches.Add(1)
		}
	})
	inject, err := g.enemy.NetNS.Inject("eth0")
	if err != nil {
		t.Fatal(err)
	}
	frame := wire.Ethernet(g.target.MAC, g.enemy.MAC, wire.TypeIPv4,
		wire.UDPPacket(netip.AddrPortFrom(g.enemy.Addr, 7), netip.AddrPortFrom(g.target.Addr, fixture.UDPPort), []byte("attack")))
	ctx, cancel := context.WithCancel(t.Context())
	var attacking sync.WaitGroup
	attacking.Go(func() {
		tick := time.NewTicker(fineInterval)
		defer tick.Stop()
		for ctx.Err() == nil {
			if err := inject.Resend(frame); err != nil && !errors.Is(err, os.ErrClosed) {
				t.Error(err)
				return
			}
			g.tried.Add(1)
			<-tick.C
		}
	})
	t.Cleanup(func() { cancel(); attacking.Wait(); inject.Close() })
}

// held fails if the enemy got anything through.
func (g *guarded) held(t *testing.T, what string) {
	t.Helper()
	t.Logf("%s: of %d packets of the enemy %d arrived", what, g.tried.Load(), g.breaches.Load())
	if n := g.breaches.Load(); n > 0 {
		fixture.Arrived(t, "%s: %d forbidden packets arrived", what, n)
	}
}

// testPolicyRestarts: allowed packets are not lost while agents are restarted and killed, and denied packets never arrive, also while a switch is
// restarted.
func testPolicyRestarts(t *testing.T, c *cluster) {
	g := newGuarded(t, c)
	g.losesNothing(t, func() {
		for range 2 {
			for _, node := range []string{fixture.Node1, fixture.Node2} {
				g.service(t, node, agentService, (*lab.Service).Restart)
				g.serves(t, node)
			}
			g.killAgent(t, fixture.Node1)
			g.serves(t, fixture.Node1)
		}
	}, fineStreamOf(g.friend, g.target))
	g.held(t, "agents restarted and killed")
	for _, do := range []func(*lab.Service, context.Context) error{(*lab.Service).Restart, (*lab.Service).Kill} {
		g.service(t, fixture.Node1, vswitchdService, do)
		g.reconnected(t, fixture.Node1)
		g.restoreUnderlay(t, fixture.Node1)
		fixture.Meet(t, g.friend.NetNS, g.target.Addr)
	}
	g.held(t, "ovs-vswitchd restarted and killed")
}

// The sizes of testPolicyUpdates.
const (
	updates = 1000

	// lastVersionTime is the time in which the last of many versions must be active.
	lastVersionTime = 2 * time.Second
)

// testPolicyUpdates changes a policy many times, as fast as the API server accepts it, while packets flow that all versions allow: none is lost,
// and the last version is active soon.
func testPolicyUpdates(t *testing.T, c *cluster) {
	g := newGuarded(t, c)
	policies := c.Kube.NetworkingV1().NetworkPolicies(g.namespace)
	version := func(i int, from ...string) *networkingv1.NetworkPolicy {
		p := ingressPolicy(g.namespace, "guard", g.target.Name, append(from, g.friend.Name)...)
		block := networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("198.51.%d.%d/32", i/256, i%256)}}
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{block}})
		return p
	}
	change := func(p *networkingv1.NetworkPolicy) error {
		_, err := policies.Update(t.Context(), p, metav1.UpdateOptions{})
		return err
	}
	g.losesNothing(t, func() {
		before, began := c.cpuTime(t, fixture.Node1, agentService), time.Now()
		// One after the other: on two processors concurrent changes are not faster, and delay the switch.
		for i := range updates {
			if err := change(version(i)); err != nil {
				t.Fatal(err)
			}
		}
		took := time.Since(began)
		g.held(t, "while the policy changed")
		last := time.Now()
		if err := change(version(updates, g.enemy.Name)); err != nil {
			t.Fatal(err)
		}
		fixture.Eventually(t, fixture.SyncTime, "the last version lets the enemy in", func(context.Context) error {
			if g.breaches.Load() == 0 {
				return errors.New("it does not")
			}
			return nil
		})
		follows := time.Since(last)
		cpu := c.cpuTime(t, fixture.Node1, agentService) - before
		t.Logf("%d versions in %v; the last is active after %v; the agent used %v of processor time", updates, took, follows, cpu)
		if follows > lastVersionTime {
			t.Errorf("the last version is active after %v, %v is allowed", follows, lastVersionTime)
		}
		if cpu > (took+follows)/2 {
			t.Errorf("the agent used %v of processor time in %v", cpu, took+follows)
		}
		if err := change(version(0)); err != nil { // for the next attempt, if the machine was too busy
			t.Fatal(err)
		}
		isolated(t, g.enemy, g.target)
		fixture.Eventually(t, fixture.SyncTime, "the enemy is isolated again", func(context.Context) error {
			seen := g.breaches.Swap(0)
			if seen > 0 {
				return fmt.Errorf("%d packets of it arrived", seen)
			}
			return nil
		})
	}, streamOf(g.friend, g.target))
}

// cpuTime is what a process of a node has used of processors.
func (c *cluster) cpuTime(t *testing.T, node, service string) time.Duration {
	t.Helper()
	s, err := c.Service(node, service)
	if err != nil {
		t.Fatal(err)
	}
	status, err := s.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var user, system int64
	stat := c.Output(t, node, "cat", fmt.Sprintf("/proc/%d/stat", status.PID))
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if _, err := fmt.Sscan(strings.Join(fields[11:13], " "), &user, &system); err != nil {
		t.Fatalf("%v: %s", err, stat)
	}
	const tick = time.Second / 100 // USER_HZ (proc(5))
	return time.Duration(user+system) * tick
}

package attacks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// bombs are policies as costly as the API takes them, for the pods of a namespace.
func bombs(namespace string) map[string]*networkingv1.NetworkPolicy {
	policy := func(name string, spec networkingv1.NetworkPolicySpec) *networkingv1.NetworkPolicy {
		return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
	}
	except := &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}
	for i := range sized(1_000, 40_000) {
		except.Except = append(except.Except, block(0, i).CIDR)
	}
	named := networkingv1.NetworkPolicyEgressRule{}
	for i := range sized(100, 9_000) {
		named.To = append(named.To, networkingv1.NetworkPolicyPeer{IPBlock: block(1, i)})
	}
	for i := range sized(10, 1_000) {
		named.Ports = append(named.Ports, networkingv1.NetworkPolicyPort{Port: new(intstr.FromString(fmt.Sprintf("p%d", i)))})
	}
	rules := make([]networkingv1.NetworkPolicyIngressRule, sized(200, 9_000))
	return map[string]*networkingv1.NetworkPolicy{
		"exceptions":             policy("exceptions", networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{IPBlock: except}}}}}),
		"named ports and blocks": policy("named", networkingv1.NetworkPolicySpec{Egress: []networkingv1.NetworkPolicyEgressRule{named}}),
		"rules":                  policy("rules", networkingv1.NetworkPolicySpec{Ingress: rules}),
	}
}

// block is one address, every second of 198.18.0.0/15 and what follows.
func block(number, i int) *networkingv1.IPBlock {
	addr := netip.AddrFrom4([4]byte{198, byte(18 + number), byte(i >> 7), byte(i << 1)})
	return &networkingv1.IPBlock{CIDR: addr.String() + "/32"}
}

// testPolicyBombs has a tenant apply policy bombs. How much slower pods of another tenant on the same node start is printed, and asserted where the bombs
// are of full size.
func testPolicyBombs(t *testing.T, w *world) {
	const atLeast, slower = 200, 5
	count := sized(20, atLeast)
	s := w.newStarter(t)
	without := s.start(t, count, func() bool { return true })
	pids, _ := w.agents(t)
	policies := w.Kube.NetworkingV1().NetworkPolicies(w.attackers)
	for name, bomb := range bombs(w.attackers) {
		t.Run(name, func(t *testing.T) {
			applied := make(chan error, 1)
			go func() {
				_, err := policies.Create(t.Context(), bomb, metav1.CreateOptions{})
				applied <- err
			}()
			with := s.start(t, count, func() bool { return len(applied) > 0 })
			if err := <-applied; err != nil {
				t.Fatal(err)
			}
			w.reportBomb(t, pids, fmt.Sprintf("%s: %d ADDs of another tenant on the node, p99 %v without, %v with it, ratio %.2f",
				name, len(with), p99(without), p99(with), float64(p99(with))/float64(p99(without))))
			if os.Getenv(wholeVariable) != "" && p99(with) > slower*p99(without) {
				t.Errorf("p99 of ADD is %v, want at most %d × %v", p99(with), slower, p99(without))
			}
		})
	}
	t.Cleanup(func() {
		for _, bomb := range bombs(w.attackers) {
			if err := policies.Delete(context.WithoutCancel(t.Context()), bomb.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	with := s.start(t, count, func() bool { return true })
	w.reportBomb(t, pids, fmt.Sprintf("three policy bombs: p99 of ADD %v without, %v with them", p99(without), p99(with)))
}

// reportBomb reports an attack, and fails when an agent was started again, or has more memory than its limit.
func (w *world) reportBomb(t *testing.T, pids map[string]int, what string) {
	t.Helper()
	after, memory := w.agents(t)
	agents, err := w.Kube.AppsV1().DaemonSets(productNamespace).Get(t.Context(), "ovsdn-node", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	limit := agents.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().Value() >> 10
	report(t, attack{position: aTenant, sent: "a policy bomb"}, 0, []string{what, fmt.Sprintf("memory of agents in KiB: %v of %d", memory, limit)})
	for node, pid := range pids {
		if after[node] != pid {
			t.Errorf("the agent of %s was started again", node)
		}
		if int64(memory[node]) > limit {
			t.Errorf("the agent of %s has %d KiB, want at most %d", node, memory[node], limit)
		}
	}
}

func p99(sorted []time.Duration) time.Duration { return sorted[(len(sorted)*99+99)/100-1] }

// starter asks the agent of node1 for further sandboxes of a pod of the victims.
type starter struct {
	w      *world
	socket string
	netns  string
	next   int
}

func (w *world) newStarter(t *testing.T) *starter {
	t.Helper()
	const name = "bombs"
	w.Output(t, fixture.Node1, "ip", "netns", "add", name)
	t.Cleanup(func() {
		if _, err := w.TryOutput(context.WithoutCancel(t.Context()), fixture.Node1, "ip", "netns", "delete", name); err != nil {
			t.Error(err)
		}
	})
	return &starter{w: w, socket: filepath.Join(w.node1.Root, cniserver.DefaultSocket), netns: "/run/netns/" + name}
}

// start starts and stops sandboxes, one after the other: so many, and until the condition holds. It returns the times of ADD, sorted.
func (s *starter) start(t *testing.T, count int, done func() bool) (took []time.Duration) {
	t.Helper()
	for len(took) < count || !done() {
		s.next++
		id := fmt.Sprintf("%064x", s.next)
		request := cniserver.Request{
			Command: cniserver.CommandAdd, ContainerID: id, IfName: "eth0", Netns: s.netns,
			Config: json.RawMessage(`{"cniVersion":"1.0.0","name":"ovsdn","type":"ovsdn-cni"}`),
			Args: strings.Join([]string{
				"K8S_POD_NAMESPACE=" + s.w.victims, "K8S_POD_NAME=" + s.w.v1.Name, "K8S_POD_INFRA_CONTAINER_ID=" + id,
			}, ";"),
		}
		began := time.Now()
		s.call(t, request)
		took = append(took, time.Since(began))
		request.Command = cniserver.CommandDel
		s.call(t, request)
	}
	slices.Sort(took)
	return took
}

func (s *starter) call(t *testing.T, request cniserver.Request) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.SyncTime)
	defer cancel()
	if _, err := cniserver.Call(ctx, s.socket, &request); err != nil {
		t.Fatalf("%s: %v", request.Command, err)
	}
}

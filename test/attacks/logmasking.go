package attacks

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

const (
	floodApp   = "flood" // label of the pods that flood
	floodKinds = 64      // ports to which each sends
)

// testLogMasking has pods of a node send and receive denied packets of many kinds without end, to hide from the log of the node's agent that the policy of
// another pod denies a single packet.
func testLogMasking(t *testing.T, w *world) {
	w.logDenied(t, w.attackers)
	w.logDenied(t, w.guarded)
	w.denyAll(t, w.attackers, floodApp)
	pods := w.flooders(t, sized(2, 18))
	reported := func(table string, pod fixture.Pod) counter {
		return w.flows(fixture.Node1, table, "="+pod.Addr.String()+" actions=meter:", "controller(")
	}
	for table, pod := range map[string]fixture.Pod{"29": pods[0], "83": w.server} {
		fixture.Eventually(t, fixture.SyncTime, "node1 reports denied packets of pod "+pod.Name, func(ctx context.Context) error {
			flows, err := reported(table, pod)(ctx)
			if err == nil && len(flows) == 0 {
				err = errors.New("no flow reports them")
			}
			return err
		})
	}
	flood := []counter{reported("29", pods[0]), reported("83", pods[0])}
	before := w.read(t, flood)
	outgoing, incoming := w.token("outgoing"), w.token("incoming")
	atPeer, atPod := listens(t, w.a2, outgoing), listens(t, pods[0], incoming)
	ctx, stop := context.WithCancel(t.Context())
	var flooding errgroup.Group
	for _, pod := range pods {
		flooding.Go(func() error { return floodDenied(ctx, pod, w.a2, outgoing) })
		flooding.Go(func() error { return floodDenied(ctx, w.a2, pod, incoming) })
	}
	t.Cleanup(func() {
		stop()
		if err := flooding.Wait(); err != nil {
			t.Error(err)
		}
	})
	omitted := w.logged(t, `"Omitted reports of denied packets"`, fmt.Sprintf(`pod="%s/%s"`, w.attackers, pods[0].Name))

	w.try(t, attack{
		position: aPod, sent: "UDP to a pod whose policy does not admit the sender, while other pods of its node flood",
		send: fromPod(w.enemy, func(token []byte) [][]byte { return [][]byte{datagram(w.enemy, to(w.server.Addr), token)} }),
		at:   []receiver{podFrom(w.server, w.friend)}, counters: []counter{reported("83", w.server)},
	})
	line := w.logged(t, `"Denied"`, fmt.Sprintf(`source="%s/enemy" destination="%[1]s/server"`, w.guarded), fmt.Sprintf("port=%d ", controlPort))
	moved, grown := difference(before, w.read(t, flood))
	arrived := len(atPeer.Frames(outgoing)) + len(atPod.Frames(incoming))
	report(t, attack{position: aPod, sent: fmt.Sprintf("denied UDP of %d kinds without end, to and from %d pods", floodKinds, len(pods))}, arrived, append(moved, omitted, line))
	if grown == 0 {
		t.Error("no packets of the flood are counted")
	}
	if arrived > 0 {
		fixture.Arrived(t, "%d packets of the flood arrive, want none", arrived)
	}
}

// listens captures what arrives at a pod with the text until the test ends. The pod's own flood, which the capture sees too, has another.
func listens(t *testing.T, p fixture.Pod, text []byte) listener {
	t.Helper()
	l, err := p.NetNS.Capture("eth0", text)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("listen at %s: %v", p.Name, err)
		}
	})
	return l
}

// logDenied has agents log the denied packets of a namespace's pods until the test ends.
func (w *world) logDenied(t *testing.T, namespace string) {
	t.Helper()
	annotate := func(ctx context.Context, value string) error {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, config.LogDeniedAnnotation, value)
		_, err := w.Kube.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	if err := annotate(t.Context(), `"true"`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := annotate(context.WithoutCancel(t.Context()), "null"); err != nil {
			t.Error(err)
		}
	})
}

// denyAll isolates the pods of an app until the test ends.
func (w *world) denyAll(t *testing.T, namespace, name string) {
	t.Helper()
	w.SetPolicy(t, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: app(name), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		},
	})
	t.Cleanup(func() { w.deletePolicy(t, namespace, name) })
}

// flooders starts pods of the attackers on node1.
func (w *world) flooders(t *testing.T, count int) (pods []fixture.Pod) {
	t.Helper()
	objects := make([]*corev1.Pod, count)
	for n := range objects {
		objects[n] = fixture.Netexec(fmt.Sprintf("%s-%d", floodApp, n), fixture.Node1)
		objects[n].Labels["app"] = floodApp
		objects[n].Spec.Containers[0].ReadinessProbe = nil
	}
	t.Cleanup(func() {
		for _, pod := range objects {
			if err := w.DeletePod(context.WithoutCancel(t.Context()), w.attackers, pod.Name); err != nil {
				t.Error(err)
			}
		}
	})
	return w.Run(t, w.attackers, objects...)
}

// floodDenied sends UDP to ports of a pod without end, some thousand packets a second.
func floodDenied(ctx context.Context, from, dst fixture.Pod, token []byte) error {
	const interval = 20 * time.Millisecond
	i, err := from.NetNS.Inject("eth0")
	if err != nil {
		return err
	}
	defer i.Close()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		for n := range floodKinds {
			if err := i.Resend(datagram(from, netip.AddrPortFrom(dst.Addr, uint16(20000+n)), token)); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// logged returns the first line of the log of node1's agent that has all parts, as soon as it has one.
func (w *world) logged(t *testing.T, parts ...string) (line string) {
	t.Helper()
	agent := w.agent(t, fixture.Node1)
	fixture.Eventually(t, fixture.SyncTime, "the agent logs "+strings.Join(parts, " "), func(ctx context.Context) error {
		log, err := w.Kube.CoreV1().Pods(agent.Namespace).GetLogs(agent.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		if err != nil {
			return err
		}
		for line = range strings.Lines(string(log)) {
			if fixture.ContainsAll(line, parts) {
				line = strings.TrimSpace(line)
				return nil
			}
		}
		return errors.New("no line has them")
	})
	return line
}

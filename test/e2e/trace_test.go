package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
	"github.com/ovsdn/ovsdn/test/tier"
)

// trace asks the diagnostics API as the administrator.
func (c *cluster) trace(ctx context.Context, spec diagnostics.TraceSpec) (*diagnostics.TraceStatus, error) {
	object, err := diagnostics.ParseObject(spec.Source)
	if err != nil || object.Namespace == "" {
		if object, err = diagnostics.ParseObject(spec.Destination); err != nil {
			return nil, err
		}
	}
	body, err := json.Marshal(diagnostics.Trace{Spec: spec})
	if err != nil {
		return nil, err
	}
	raw, err := c.Kube.Discovery().RESTClient().Post().AbsPath("/apis", diagnostics.Group, diagnostics.Version, "namespaces", object.Namespace, "traces").
		SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("trace from %s to %s: %w: %s", spec.Source, spec.Destination, err, raw)
	}
	answer := &diagnostics.Trace{}
	return &answer.Status, json.Unmarshal(raw, answer)
}

// wantTrace wants the verdict, and words of the reason.
func (c *cluster) wantTrace(t *testing.T, spec diagnostics.TraceSpec, want diagnostics.Verdict, words ...string) {
	t.Helper()
	fixture.Eventually(t, fixture.SyncTime, "trace from "+spec.Source+" to "+spec.Destination, func(ctx context.Context) error {
		got, err := c.trace(ctx, spec)
		if err != nil {
			return err
		}
		if got.Verdict != want || !fixture.ContainsAll(got.Reason, words) {
			return fmt.Errorf("got %s: %s, want %s with %q; paths %+v", got.Verdict, got.Reason, want, words, got.Paths)
		}
		return nil
	})
}

// testTraces is a part of TestCapabilities: traces agree with packets to a pod of another node, to a service and to outside, and name the policy that drops
// packets. Probes are answered, and not after that policy. A capture has the pings of a pod.
func testTraces(t *testing.T, x *trio) {
	ns := x.Namespace(t)
	pods := x.Run(t, ns, fixture.Netexec("web", fixture.Node1), fixture.Netexec("db", fixture.Node2))
	web, db := "pod/"+ns+"/web", "pod/"+ns+"/db"
	ask := fixture.AsksHTTP(pods[0].NetNS, pods[1].Addr, 8080)
	to := func(destination string, port int32) diagnostics.TraceSpec {
		return diagnostics.TraceSpec{Source: web, Destination: destination, Port: port}
	}
	fixture.Eventually(t, fixture.SyncTime, "reach the pod", ask)
	x.wantTrace(t, to(db, 8080), diagnostics.VerdictDelivered, "delivered to "+db+" on node "+fixture.Node2)

	probed := func(what string, args ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			if err := x.kubectlOVSDN(ctx, nil, append([]string{"probe", web}, args...)...); err != nil {
				return fmt.Errorf("probe of %s: %w", what, err)
			}
			return nil
		}
	}
	fixture.Eventually(t, fixture.SyncTime, "probe the pod", probed("the pod", db, "--tcp=8080"))
	fixture.Eventually(t, fixture.SyncTime, "probe the pod by ICMP", probed("the pod", db, "--icmp"))
	seeCapture(t, x, ns, pods[0], pods[1])

	addr := x.Expose(t, ns, "db", fixture.ServicePort{Protocol: corev1.ProtocolTCP, Port: 80, Target: 8080}, pods[1])
	fixture.Eventually(t, fixture.SyncTime, "reach the service", fixture.AsksHTTP(pods[0].NetNS, addr, 80))
	fixture.Eventually(t, fixture.SyncTime, "probe the service", probed("the service", "service/"+ns+"/db"))
	x.wantTrace(t, to("service/"+ns+"/db", 80), diagnostics.VerdictDelivered, "delivered to "+db)

	fixture.Meet(t, pods[0].NetNS, lab.OutsideAddr())
	x.wantTrace(t, to(lab.OutsideAddr().String(), 80), diagnostics.VerdictDelivered, "out of the cluster", fixture.Node1)
	x.wantTrace(t, diagnostics.TraceSpec{Source: "node/" + fixture.Node1, Destination: db, Port: 8080}, diagnostics.VerdictDelivered, db)

	x.SetPolicy(t, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "nothing"}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
	})
	fixture.Stops(t, fixture.SyncTime, "packets of a pod to an isolated one", func(ctx context.Context) (arrived, other error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if ask(ctx) == nil {
			arrived = errors.New("the isolated pod answers")
		}
		return arrived, nil
	})
	x.wantTrace(t, to(db, 8080), diagnostics.VerdictDropped, "networkpolicy/"+ns+"/nothing", fixture.Node2)
	err := x.kubectlOVSDN(t.Context(), nil, "trace", web, db, "--tcp=8080")
	if err == nil || !strings.Contains(err.Error(), "networkpolicy/"+ns+"/nothing") {
		t.Errorf("kubectl ovsdn trace: got error %v, want the policy's name and exit code 1", err)
	}
	err = x.kubectlOVSDN(t.Context(), nil, "probe", web, db, "--tcp=8080", "--timeout=1s")
	switch {
	case err == nil:
		fixture.Arrived(t, "kubectl ovsdn probe: the isolated pod answers")
	case !strings.Contains(err.Error(), "NoAnswer: "):
		t.Errorf("kubectl ovsdn probe: got error %v, want NoAnswer and exit code 1", err)
	}
}

// maxTraces is the number of traces that a controller answers for one user at the same time.
const maxTraces = 2

// answerTraces returns when the agents of all pods answer: a few seconds after a node's start its agent has no certificate of the diagnostics authority yet.
func (g *grid) answerTraces(t *testing.T) {
	t.Helper()
	pods := slices.DeleteFunc(slices.Clone(g.stations), func(s *station) bool { return !s.pod })
	for i, s := range pods {
		spec := diagnostics.TraceSpec{Source: targetOf(s), Destination: targetOf(pods[(i+1)%len(pods)]), Protocol: "ICMP"}
		fixture.Eventually(t, fixture.SyncTime, "a trace from "+s.Name, func(ctx context.Context) error {
			got, err := g.trace(ctx, spec)
			if err == nil && got.Verdict == diagnostics.VerdictUnknown {
				err = errors.New(got.Reason)
			}
			return err
		})
	}
}

// compareTraces traces some of the questions that packets have answered: a trace is delivered if the packet and its reply are.
func (g *grid) compareTraces(t *testing.T, what string, all []evaluated) (traces int) {
	t.Helper()
	some := tier.Size(t, 4, 12, "a trace takes the controller and two agents some milliseconds")
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(maxTraces)
	for range some {
		q := all[g.random.IntN(len(all))]
		from, to := g.stations[q.from], g.stations[q.to]
		if from.through != "" || q.protocol == wire.ProtocolICMP && !to.pod {
			continue
		}
		traces++
		spec := diagnostics.TraceSpec{Source: targetOf(from), Destination: targetOf(to), Protocol: "ICMP"}
		if q.protocol != wire.ProtocolICMP {
			spec.Protocol, spec.Port = string(apiProtocol(q.protocol)), int32(q.port)
		}
		group.Go(func() error {
			got, err := g.trace(ctx, spec)
			if err != nil {
				return err
			}
			if want := q.Allowed && !q.silent; (got.Verdict == diagnostics.VerdictDelivered) != want || got.Verdict == diagnostics.VerdictUnknown {
				t.Errorf("%s: the trace of %+v is %s: %s; packets are delivered: %v (%+v)", what, spec, got.Verdict, got.Reason, want, q.Verdict)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	return traces
}

// targetOf returns a pod or a node as a trace names it.
func targetOf(s *station) string {
	if name, ok := strings.CutPrefix(s.Name, "pod "); ok {
		return "pod/" + name
	}
	return "node/" + s.Name
}

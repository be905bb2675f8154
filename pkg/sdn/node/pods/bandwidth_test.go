package pods

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// informerCache has the pods of the API, as a synced informer.
type informerCache struct{ api }

func (c informerCache) Cached(namespace, name string) *corev1.Pod { return c.api[namespace+"/"+name] }

// bandwidthNode is a node whose agents have a cache of pods, and the only pod on it.
type bandwidthNode struct {
	*node
	fake *ovs.Fake
}

func newBandwidthNode(t *testing.T) bandwidthNode {
	t.Helper()
	n := newNode(t)
	fake, ok := n.bridge.(*ovs.Fake)
	if !ok {
		t.Fatalf("got bridge %T, want the fake", n.bridge)
	}
	return bandwidthNode{n, fake}
}

// start starts an agent with a cache of pods, and waits until the switch has its flows.
func (n bandwidthNode) start(t *testing.T) (*agent, func()) {
	t.Helper()
	n.recovered, n.pods = make(chan struct{}), informerCache{n.api}
	a, stop := n.boot(t)
	if err := a.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(n.recovered)
	a.settle(t)
	return a, stop
}

// settle waits until the switch has all flows that were set before: its only writer adds and deletes a flow.
func (a *agent) settle(t *testing.T) {
	t.Helper()
	owner := pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}
	flow := &ovs.Flow{Table: 253, Priority: 1, Actions: []ovs.Action{goovs.Drop()}}
	for _, st := range []pipeline.State{{Flows: []*ovs.Flow{flow}}, {}} {
		if err := a.store.Set(owner, st).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// settleChanges is the number of changes of settle.
const settleChanges = 2

// annotate changes the annotations of the pod in the API, and notifies the agent.
func (n bandwidthNode) annotate(t *testing.T, a *agent, ingress, egress string) {
	t.Helper()
	pod := *n.api["default/web"]
	pod.Annotations = map[string]string{}
	if ingress != "" {
		pod.Annotations[config.IngressBandwidthAnnotation] = ingress
	}
	if egress != "" {
		pod.Annotations[config.EgressBandwidthAnnotation] = egress
	}
	n.api["default/web"] = &pod
	if a != nil {
		a.PodChanged(t.Context(), &pod)
		a.settle(t)
	}
}

// want compares the meters of bandwidth on the switch, and whether flows use them.
func (n bandwidthNode) want(t *testing.T, when, ingress, egress string) {
	t.Helper()
	var got, want []string
	for _, m := range n.fake.Meters() {
		if strings.Contains(m, "kbps") {
			got = append(got, m)
		}
	}
	for _, limit := range []struct{ id, rate string }{{"294914", egress}, {"557058", ingress}} {
		used := slices.ContainsFunc(n.fake.Flows(), func(f string) bool { return strings.Contains(f, "meter:"+limit.id) })
		if used != (limit.rate != "") {
			t.Errorf("%s: flows use meter %s: got %t, want %t", when, limit.id, used, limit.rate != "")
		}
		if limit.rate != "" {
			want = append(want, "meter="+limit.id+",kbps,burst,band=type=drop,"+limit.rate)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: got meters %q, want %q", when, got, want)
	}
}

const (
	tenMbit    = "rate=10000,burst_size=5000"
	twentyMbit = "rate=20000,burst_size=10000"
)

func TestBandwidthFollowsAnnotations(t *testing.T) {
	n := newBandwidthNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	n.annotate(t, nil, "10M", "")
	result := add(t, a, req)
	n.want(t, "after ADD", tenMbit, "")
	n.annotate(t, a, "10M", "20M")
	n.want(t, "after a second annotation", tenMbit, twentyMbit)
	n.annotate(t, a, "20M", "10M")
	n.want(t, "after a change", twentyMbit, tenMbit)
	if err := a.Check(t.Context(), check(t, req, result)); err != nil {
		t.Errorf("CHECK after a change: %v", err)
	}
	n.annotate(t, a, "", "10M")
	n.want(t, "after the removal of one", "", tenMbit)
	before := n.fake.Changes()
	n.annotate(t, a, "", "10M")
	if got := n.fake.Changes() - before - settleChanges; got != 0 {
		t.Errorf("got %d changes on the switch for an unchanged pod, want 0", got)
	}
	other := *n.api["default/web"]
	other.UID, other.Annotations = "another", map[string]string{config.EgressBandwidthAnnotation: "1k"}
	current := n.api["default/web"]
	n.api["default/web"] = &other
	a.PodChanged(t.Context(), &other)
	a.settle(t)
	n.api["default/web"] = current
	n.want(t, "after a change of another pod with that name", "", tenMbit)
	if err := a.Del(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	n.want(t, "after DEL", "", "")
	if value, ok := a.store.Value(inputs.Bandwidth(sandbox.Attachment{Sandbox: req.ContainerID, IfName: req.IfName}.Owner())); ok {
		t.Errorf("after DEL: got input %v, want none", value)
	}
	n.annotate(t, a, "10M", "10M")
	n.want(t, "after a change without a sandbox", "", "")
	if got := a.events.String(); got != "" {
		t.Errorf("got Events %s, want none", got)
	}
}

func TestInvalidBandwidthRetainsLimit(t *testing.T) {
	n := newBandwidthNode(t)
	a, stop := n.start(t)
	req := n.addPod("web", newNetns(t))
	n.annotate(t, nil, "ten", "")
	add(t, a, req)
	n.want(t, "after ADD with an invalid limit", "", "")
	a.events.want(t, "pod web: "+eventreason.InvalidBandwidth+": annotation kubernetes.io/ingress-bandwidth=ten: ")
	n.annotate(t, a, "10M", "20M")
	for _, invalid := range []string{"ten", "0", "1", "2P", "-10M"} {
		n.annotate(t, a, invalid, "20M")
		n.annotate(t, a, invalid, "20M")
		n.want(t, "after "+invalid, tenMbit, twentyMbit)
	}
	if got := a.events.count("pod web: " + eventreason.InvalidBandwidth); got != 6 {
		t.Errorf("got %d Events, want 6:\n%s", got, a.events)
	}
	a.events.want(t, "pod web: "+eventreason.InvalidBandwidth+": annotation kubernetes.io/ingress-bandwidth=2P: more than 1P; write bits per second from 1k to 1P, such as 10M; the pod's ingress bandwidth stays limited to 10000000 bit/s")
	stop()

	before := n.fake.Changes()
	again, stop := n.start(t)
	n.want(t, "after a restart", tenMbit, twentyMbit)
	again.events.want(t, "pod web: "+eventreason.InvalidBandwidth+": annotation kubernetes.io/ingress-bandwidth=-10M: less than 1k")
	stop()
	delete(n.api, "default/web")
	n.start(t)
	n.want(t, "after a restart without the pod's object", tenMbit, twentyMbit)
	if got := n.fake.Changes() - before - 2*settleChanges; got != 0 {
		t.Errorf("got %d changes on the switch by restarts, want 0", got)
	}
}

// The annotation changes while ADD runs: the agent is notified before it has the pod.
func TestBandwidthChangedDuringAdd(t *testing.T) {
	n := newBandwidthNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	n.annotate(t, nil, "10M", "")
	a.faults.cancelAt("after allocate", func() { n.annotate(t, a, "20M", "") })
	add(t, a, req)
	n.want(t, "after ADD", twentyMbit, "")
}

// A switch without meters refuses a pod that asks for a limit.
// Events of a pod whose limit the switch refuses do not repeat the attempt, which costs a comparison of all flows.
func TestPodChanged_limitRefused(t *testing.T) {
	n := newBandwidthNode(t)
	a, _ := n.start(t)
	add(t, a, n.addPod("web", newNetns(t)))
	var attempts atomic.Int32
	n.fake.RefuseFlow = func(f *ovs.Flow) string {
		text, err := ovs.FlowText(f)
		if err == nil && !strings.Contains(text, "meter:557058") {
			return ""
		}
		attempts.Add(1)
		return "OFPMMFC_OUT_OF_METERS"
	}
	n.annotate(t, a, "10M", "")
	before := attempts.Load()
	for range 10 {
		n.annotate(t, a, "10M", "")
	}
	if got := attempts.Load(); before == 0 || got != before {
		t.Errorf("got %d attempts after the first %d, want none", got-before, before)
	}
}

// An agent that can't read the limits from the switch does not start without them.
func TestRecover_metersUnreadable(t *testing.T) {
	n := newBandwidthNode(t)
	first, stop := n.start(t)
	add(t, first, n.addPod("web", newNetns(t)))
	stop()
	second, _ := n.boot(t)
	second.bridge = withoutMeters{second.bridge}
	if err := second.Recover(t.Context()); !errors.Is(err, errNoMeters) {
		t.Errorf("got error %v, want %v", err, errNoMeters)
	}
}

var errNoMeters = errors.New("no answer")

// withoutMeters is a switch that does not answer requests of meters.
type withoutMeters struct{ Switch }

func (withoutMeters) DumpMeters(context.Context) ([]ovs.Meter, error) { return nil, errNoMeters }

func TestAdd_limitRefused(t *testing.T) {
	n := newBandwidthNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	n.annotate(t, nil, "10M", "")
	n.fake.RefuseFlow = func(f *ovs.Flow) string {
		text, err := ovs.FlowText(f)
		if err == nil && !strings.Contains(text, "meter:557058") {
			return ""
		}
		return "OFPMMFC_OUT_OF_METERS"
	}
	if _, err := a.Add(t.Context(), req); err == nil || !strings.Contains(err.Error(), "OFPMMFC_OUT_OF_METERS") {
		t.Errorf("got error %v, want OFPMMFC_OUT_OF_METERS", err)
	}
	if left := n.fake.Flows(); len(left) > 0 {
		t.Errorf("got flows %q after the failed ADD, want none", left)
	}
}

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// The sizes of TestFullNodes. A node of 6 host bits has 61 addresses beside its own.
const (
	smallHostBits = 6
	podAddrs      = 1<<smallHostBits - 3
	longLived     = 50 // on each node
	oldOnNode     = 10 // of them at a time
	waveOnNode    = 25

	// wavesVariable is how many waves of pods come and go, beside those that stay.
	wavesVariable = "OVSDN_TEST_WAVES"
	defaultWaves  = 1
)

// fullTime is for a wave to pass: kubelet asks for an address again after 10 to 15 seconds (its worker's backOffPeriod and jitter).
const fullTime = 3 * time.Minute

// With more pods than addresses, pods wait for an address, and fail for no other reason; each gets the address of a deleted pod. In the end the
// nodes are as before.
func TestFullNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: 150 pods, which wait for addresses in turn")
	}
	waves := fixture.Repetitions(t, wavesVariable, defaultWaves)
	c := newCluster(t)
	c.settle(t)
	nodes := c.smallNodes(t)
	before := c.footprints(t, nodes...)
	ns := c.Namespace(t)
	began := time.Now()

	for i := range longLived / oldOnNode {
		wave := fmt.Sprint("old", i)
		c.createOn(t, ns, wave, oldOnNode, nodes)
		c.pass(t, ns, wave, oldOnNode*len(nodes), func(context.Context, *corev1.Pod) error { return nil })
	}
	t.Logf("%d pods that stay are ready after %.1fs", longLived*len(nodes), time.Since(began).Seconds())

	waited := 0
	for i := range waves {
		began := time.Now()
		wave := fmt.Sprint("wave", i)
		c.createOn(t, ns, wave, waveOnNode, nodes)
		c.isFull(t, nodes)
		c.pass(t, ns, wave, waveOnNode*len(nodes), func(ctx context.Context, p *corev1.Pod) error {
			return c.Kube.CoreV1().Pods(ns).Delete(ctx, p.Name, metav1.DeleteOptions{})
		})
		full := c.onlyFull(t, ns)
		t.Logf("%s: %d pods had their turn after %.1fs, %d waited for an address", wave, waveOnNode*len(nodes), time.Since(began).Seconds(), full)
		waited += full
	}
	if waited == 0 {
		t.Error("no pod ever waited for an address")
	}
	fixture.Within(t, waveTime, "delete the pods that stayed", func(ctx context.Context) error { return c.DeletePods(ctx, ns) })
	c.returnsTo(t, before)
	t.Logf("%d pods on %d nodes with addresses for %d, %d of which waited for one: %.1fs",
		len(nodes)*(longLived+waves*waveOnNode), len(nodes), len(nodes)*podAddrs, waited, time.Since(began).Seconds())
}

// smallNodes adds two nodes whose subnets are small, in a range of their own.
func (c *cluster) smallNodes(t *testing.T) []string {
	t.Helper()
	c.restoreRanges(t)
	var entries []networkv1.ClusterNetworkEntry
	for _, node := range []string{fixture.Node1, fixture.Node2} { // which leaves nothing for others
		entries = append(entries, networkv1.ClusterNetworkEntry{CIDR: c.Subnet(t, node).String(), HostSubnetLength: uint32(c.Shape().HostBits)})
	}
	entries = append(entries, networkv1.ClusterNetworkEntry{CIDR: "10.9.0.0/25", HostSubnetLength: smallHostBits})
	if err := c.setEntries(t.Context(), entries); err != nil {
		t.Fatal(err)
	}
	c.accepted(t, metav1.ConditionTrue, fmt.Sprintf("10.9.0.0/25 with %d host bits", smallHostBits))
	nodes := []string{c.addNode(t), c.addNode(t)}
	for _, node := range nodes {
		if bits := c.Subnet(t, node).Bits(); bits != 32-smallHostBits {
			t.Fatalf("%s has a /%d", node, bits)
		}
	}
	return nodes
}

// waveLabel is the label with a pod's wave.
const waveLabel = "wave"

// createOn makes so many pods on each node that do nothing and end at once.
func (c *cluster) createOn(t *testing.T, namespace, wave string, perNode int, nodes []string) {
	t.Helper()
	var making errgroup.Group
	making.SetLimit(8)
	none := int64(0)
	noToken := false // for kubelet waits but a second for what it mounts, and warns of what is later
	for i := range perNode * len(nodes) {
		making.Go(func() error {
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(wave, "-", i), Labels: map[string]string{waveLabel: wave}},
				Spec: corev1.PodSpec{
					NodeName: nodes[i%len(nodes)], DNSPolicy: corev1.DNSDefault, TerminationGracePeriodSeconds: &none,
					AutomountServiceAccountToken: &noToken,
					Containers:                   []corev1.Container{{Name: "pause", Image: fixture.PodImage, ImagePullPolicy: corev1.PullNever, Args: []string{"pause"}}},
				},
			}
			for {
				_, err := c.Kube.CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{})
				if !apierrors.IsForbidden(err) { // the namespace has no service account yet
					return err
				}
			}
		})
	}
	if err := making.Wait(); err != nil {
		t.Fatal(err)
	}
}

// isFull waits until no node has an address left.
func (c *cluster) isFull(t *testing.T, nodes []string) {
	t.Helper()
	for _, node := range nodes {
		m := c.Machine(t, node)
		fixture.Eventually(t, fullTime, "all addresses are taken", func(context.Context) error {
			taken, err := leases(m)
			if len(taken) > podAddrs {
				t.Fatalf("%s has %d addresses in use of %d", node, len(taken), podAddrs)
			}
			if err == nil && len(taken) < podAddrs {
				err = fmt.Errorf("%s has %d addresses in use", node, len(taken))
			}
			return err
		})
	}
}

// pass returns when so many pods of a wave have been ready, and does something with each that is.
func (c *cluster) pass(t *testing.T, namespace, wave string, count int, then func(context.Context, *corev1.Pod) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fullTime)
	defer cancel()
	done := map[string]bool{}
	for len(done) < count {
		if ctx.Err() != nil {
			t.Fatalf("%d pods of %s had their turn, want %d: %v", len(done), wave, count, context.Cause(ctx))
		}
		// Without a resource version, a watch first reports all existing objects; so a watch that the server ends is started again.
		events, err := c.Kube.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: waveLabel + "=" + wave})
		if err != nil {
			t.Fatal(err)
		}
		for e := range events.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok || done[p.Name] || !fixture.IsReady(p) {
				continue
			}
			done[p.Name] = true
			if err := then(ctx, p); err != nil {
				t.Fatal(err)
			}
			if len(done) == count {
				break
			}
		}
		events.Stop()
	}
}

// onlyFull fails for each warning about a pod except that its node had no free address. It returns the number of these pods, and deletes the
// Events.
func (c *cluster) onlyFull(t *testing.T, namespace string) int {
	t.Helper()
	events, err := c.Kube.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	full := map[string]bool{}
	for _, e := range events.Items {
		switch {
		case e.Type != corev1.EventTypeWarning:
		case strings.Contains(e.Message, "has no free address"):
			full[e.InvolvedObject.Name] = true
		case strings.Contains(e.Message, "Open vSwitch does not answer") && c.heldUp(t, e.Source.Host, e.FirstTimestamp.Time, e.LastTimestamp.Time):
			t.Logf("the machine held vswitchd of %s up: pod %s: %s", e.Source.Host, e.InvolvedObject.Name, e.Reason)
		default:
			t.Errorf("pod %s: %s: %s", e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
	if err := c.Kube.CoreV1().Events(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	return len(full)
}

// heldUp reports whether the machine delayed a node's vswitchd at that time. vswitchd logs each iteration of more than one second, and its CPU
// time (OVS' lib/timeval.c).
func (c *cluster) heldUp(t *testing.T, node string, from, to time.Time) bool {
	t.Helper()
	const enough = 5 * time.Second // half of the time in which an agent wants an answer
	log, err := os.ReadFile(filepath.Join(c.LogDir(), node+"-"+vswitchdService+".log"))
	if err != nil {
		t.Logf("unknown whether vswitchd of %q was delayed: %v", node, err)
		return false
	}
	var waited time.Duration
	turn := regexp.MustCompile(`(?m)^(\S+Z)\|\d+\|timeval\|WARN\|Unreasonably long (\d+ms) poll interval \((\d+ms) user, (\d+ms) system\)`)
	for _, m := range turn.FindAllStringSubmatch(string(log), -1) {
		end, err := time.Parse(time.RFC3339, m[1])
		if err != nil {
			t.Fatal(err)
		}
		var took, user, system time.Duration
		for i, d := range []*time.Duration{&took, &user, &system} {
			if *d, err = time.ParseDuration(m[2+i]); err != nil {
				t.Fatal(err)
			}
		}
		// kubelet reports a failure when the runtime's timeout expires, seconds after its start.
		if ran := user + system; 2*ran < took && end.After(from.Add(-20*time.Second)) && end.Add(-took).Before(to.Add(time.Second)) {
			waited += took - ran
		}
	}
	return waited >= enough
}

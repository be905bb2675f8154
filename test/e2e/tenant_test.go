package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
	"github.com/ovsdn/ovsdn/test/seed"
	"github.com/ovsdn/ovsdn/test/tier"
)

// Tenants have a lab of their own, in mode multitenant, for the time of their test. With tenantLabVariable the test uses an existing lab and does
// not remove it.
const (
	tenantLabVariable = "OVSDN_E2E_TENANTS_LAB"
	tenantLab         = "e2e-tenants"
)

// changesVariable is how often VNIDs change in TestTenants, changesDefault what fits into a run of all tests.
const (
	changesVariable = "OVSDN_E2E_CHANGES"
	changesDefault  = 12
)

func newTenantCluster(t *testing.T) *cluster {
	t.Helper()
	if name := os.Getenv(tenantLabVariable); name != "" {
		return openCluster(t, name)
	}
	return ownCluster(t, tenantLab, lab.Shape{Nodes: 3, Mode: lab.Multitenant, ServiceProxy: lab.External, Install: fixture.Install()})
}

// setMulticast writes OpenShift's annotation.
func (c *cluster) setMulticast(t *testing.T, namespace string, on bool) {
	t.Helper()
	value := `"true"`
	if !on {
		value = "null"
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, networkv1.MulticastEnabledAnnotation, value)
	if _, err := c.Network.NetworkV1().NetNamespaces().Patch(t.Context(), namespace, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// tenant is a namespace of the matrix.
type tenant struct {
	namespace string
	vnid      uint32
}

// member is a pod of the matrix.
type member struct {
	pod
	tenant int // its index
}

// matrix is namespaces with pods on all nodes, and what each may send to each.
type matrix struct {
	*cluster
	tenants []tenant
	members []member
}

// newMatrix starts the pods: all of them at once, and one of each namespace is probed by kubelet.
func newMatrix(t *testing.T, c *cluster, namespaces, podsEach int) *matrix {
	t.Helper()
	m := &matrix{cluster: c}
	nodes := []string{fixture.Node1, fixture.Node2, fixture.Node3}
	for i := range namespaces {
		m.tenants = append(m.tenants, tenant{namespace: c.Namespace(t)})
		for j := range podsEach {
			p := fixture.Netexec(fmt.Sprintf("p%d-%d", i, j), nodes[(i+j)%len(nodes)])
			if j > 0 {
				p.Spec.Containers[0].ReadinessProbe = nil
			}
			c.Create(t, m.tenants[i].namespace, p)
		}
	}
	for i, ns := range m.tenants {
		for j := range podsEach {
			m.members = append(m.members, member{c.readyWithin(t, ns.namespace, fmt.Sprintf("p%d-%d", i, j)), i})
		}
	}
	m.learn(t)
	return m
}

// readyWithin is ready for many pods at once.
func (c *cluster) readyWithin(t *testing.T, namespace, name string) pod {
	t.Helper()
	var object *corev1.Pod
	fixture.Eventually(t, fixture.PodTime, "pod "+name+" is ready", func(ctx context.Context) error {
		var err error
		if object, err = c.Kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if fixture.IsReady(object) {
			return nil
		}
		return c.Explain(ctx, object)
	})
	return c.Attached(t, object)
}

// learn reads the VNIDs that the namespaces have now.
func (m *matrix) learn(t *testing.T) {
	t.Helper()
	for i := range m.tenants {
		fixture.Eventually(t, fixture.SyncTime, "NetNamespace of "+m.tenants[i].namespace, func(ctx context.Context) error {
			var err error
			m.tenants[i].vnid, err = m.VNID(ctx, m.tenants[i].namespace)
			return err
		})
	}
}

// verdicts has, by index of sender and receiver, whether packets are allowed: within one VNID, and if either has 0.
type verdicts [][]bool

func (m *matrix) verdicts() verdicts {
	v := make(verdicts, len(m.members))
	for i, from := range m.members {
		v[i] = make([]bool, len(m.members))
		for j, to := range m.members {
			a, b := m.tenants[from.tenant].vnid, m.tenants[to.tenant].vnid
			v[i][j] = i != j && (a == b || a == 0 || b == 0)
		}
	}
	return v
}

// or is what either of two states allows.
func (v verdicts) or(other verdicts) verdicts {
	both := make(verdicts, len(v))
	for i := range v {
		both[i] = make([]bool, len(v))
		for j := range v {
			both[i][j] = v[i][j] || other[i][j]
		}
	}
	return both
}

// TestTenants: in mode multitenant VNIDs alone decide which packets arrive.
func TestTenants(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: has a lab of its own; TestCapabilities sees tenants and some faults")
	}
	c := newTenantCluster(t)
	t.Run("changes", func(t *testing.T) { testTenantChanges(t, c) })
	t.Run("edges", func(t *testing.T) { testTenantEdges(t, c) })
	t.Run("invalid netid", func(t *testing.T) { testInvalidNetID(t, c) })
	t.Run("gap", func(t *testing.T) { testTenantGap(t, c) })
	t.Run("policies", func(t *testing.T) { testTenantPolicies(t, c) })
	t.Run("nodes", func(t *testing.T) { testNodeSources(t, c) })
	t.Run("namespace created again", func(t *testing.T) { seeNamespaceAgain(t, trioOn(t, c)) })
	t.Run("faults", func(t *testing.T) { testFaults(t, c) })
	t.Run("modes", func(t *testing.T) { testModes(t, c) })
}

// testTenantChanges changes VNIDs at random while all pods send to all others. After each change the verdict of each pair follows the rule, with TCP,
// UDP and ICMP; and no packet arrives at any time that both the state before and the state after deny.
func testTenantChanges(t *testing.T, c *cluster) {
	const namespaces, podsEach = 6, 4
	m := newMatrix(t, c, namespaces, podsEach)
	r := newRecorder(t, m)
	changes := fixture.Repetitions(t, changesVariable, changesDefault)
	r.check(t)
	random := seed.Rand(t)
	stop := r.chatter(t)
	var took []time.Duration
	for n := range changes {
		i := random.IntN(namespaces)
		change := []string{"isolate", "global", "join:" + m.tenants[(i+1+random.IntN(namespaces-1))%namespaces].namespace}[random.IntN(3)]
		if r.oneGlobal(i) { // a matrix of which all are global shows little
			change = "isolate"
		}
		took = append(took, r.change(t, i, change))
		if t.Failed() {
			t.Fatalf("change %d: %s of namespace %d", n, change, i)
		}
	}
	stop()
	slices.Sort(took)
	t.Logf("%d changes; from the request until all nodes follow: %v median, %v at most", changes, took[len(took)/2], took[len(took)-1])
}

// change changes a tenant's VNID, and returns how long the nodes took to follow. No packet may arrive that both the state before and the state after
// deny, and in the end exactly the allowed ones.
func (r *recorder) change(t *testing.T, tenant int, change string) time.Duration {
	t.Helper()
	before := r.verdicts()
	r.allow(nil) // the allowed packets are not known yet: they are evaluated later
	began := time.Now()
	r.ChangeNetwork(t, r.tenants[tenant].namespace, change)
	r.learn(t)
	r.allow(before.or(r.verdicts()))
	r.converge(t, r.verdicts())
	took := time.Since(began)
	r.check(t)
	return took
}

// testTenantEdges: of the hosts outside of the pod network only the node itself has VNID 0.
func testTenantEdges(t *testing.T, c *cluster) {
	m := newMatrix(t, c, 3, 3)
	c.ChangeNetwork(t, m.tenants[2].namespace, "global")
	m.learn(t)
	m.edges(t)
}

// edges needs three tenants with a pod on each node, of which the last has VNID 0. It is the last part of a test: its own parts run when the test has returned.
func (m *matrix) edges(t *testing.T) {
	t.Helper()
	c := m.cluster
	ours, theirs, global := m.members[0], m.members[4], m.members[7]
	for _, p := range []struct {
		name string
		see  func(*testing.T)
	}{
		{"node to tenants", func(t *testing.T) {
			for _, node := range []string{fixture.Node1, fixture.Node2, fixture.Node3} {
				machine := c.Machine(t, node)
				for _, to := range []member{ours, theirs, global} {
					fixture.Meet(t, machine.NetNS, to.Addr)
				}
			}
		}},
		{"a host that routes through a node", func(t *testing.T) { testRoutedHost(t, c, ours, global) }},
		{"services", func(t *testing.T) { testTenantServices(t, m) }},
		{"DNS", func(t *testing.T) { c.resolves(t, ours.pod, apiName, c.apiAddr()) }},
		{"node ports", func(t *testing.T) { testTenantNodePorts(t, c, m, ours, theirs, global) }},
		{"multicast", func(t *testing.T) { testTenantMulticast(t, m) }},
	} {
		t.Run(p.name, func(t *testing.T) {
			tier.Parallel(t)
			p.see(t)
		})
	}
}

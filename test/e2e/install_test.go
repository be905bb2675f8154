package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// installLab is the name of the lab that the test of the installation brings up.
const installLab = "e2e-install"

// installTime is for each step from `kubectl apply -k` on, but for deleting it.
const installTime = fixture.NodeTime

// uninstallTime is longer: the API server's finalizers retry after minutes if objects remain.
const uninstallTime = 6 * time.Minute

// A cluster without a network gets one by `kubectl apply -k`, and `kubectl delete -k` restores its nodes. In between all parts are restarted without
// packet loss, and all nodes lose power.
func TestInstallation(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: asserts that no ping is lost; TestCapabilities installs and uninstalls")
	}
	c := ownCluster(t, installLab, lab.Shape{Nodes: 2, Mode: lab.NetworkPolicy, ServiceProxy: lab.External, Install: lab.None})
	before := c.allSettings(t)

	x := c.install(t)
	t.Run("rollout", func(t *testing.T) { testRollout(t, x) })
	t.Run("uninstallation", func(t *testing.T) {
		if err := c.DeletePods(t.Context(), x.namespace); err != nil {
			t.Fatal(err)
		}
		c.uninstall(t)
		c.haveSettings(t, before)
	})
	earlier := buildCommit(t)
	c.reload(t, earlier)
	if err := c.WaitDNS(t.Context()); err != nil {
		t.Fatal(err)
	}
	x = trioOn(t, c)
	t.Run("two versions", func(t *testing.T) { testTwoVersions(t, x, earlier) })
	t.Run("upgrade", func(t *testing.T) { testUpgrade(t, x, earlier) })
	t.Run("power", func(t *testing.T) { testPower(t, x) })
}

// install returns when two nodes are ready and pods on them talk.
func (c *cluster) install(t *testing.T) *trio {
	t.Helper()
	began := time.Now()
	fixture.Within(t, installTime, "install", c.Install)
	if t.Failed() {
		t.FailNow()
	}
	fixture.Eventually(t, installTime, "the nodes are ready", func(ctx context.Context) error {
		nodes, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range nodes.Items {
			if !isNodeReady(&n) {
				err = errors.Join(err, fmt.Errorf("%s is not", n.Name))
			}
		}
		return err
	})
	t.Logf("%d nodes are ready %.1fs after kubectl apply", len(c.Nodes()), time.Since(began).Seconds())
	x := trioOn(t, c)
	t.Logf("pods talk %.1fs after kubectl apply", time.Since(began).Seconds())
	fixture.Within(t, installTime, "rollout", c.WaitRollout)
	fixture.Within(t, installTime, "DNS", c.WaitDNS)
	if t.Failed() {
		t.FailNow()
	}
	return x
}

func isNodeReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (c *cluster) uninstall(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), uninstallTime)
	defer cancel()
	began := time.Now()
	slow := time.AfterFunc(time.Minute, func() { fixture.Progress("kubectl delete takes long: %s", c.remains(ctx)) })
	defer slow.Stop()
	if err := c.Uninstall(ctx); err != nil {
		t.Fatalf("%v: %s", err, c.remains(t.Context()))
	}
	t.Logf("kubectl delete took %.1fs", time.Since(began).Seconds())
}

// remains returns the remaining objects of an installation during its deletion, and the API server's status of it.
func (c *cluster) remains(ctx context.Context) string {
	const conditions = `{range .items[*]}{.metadata.name} since {.metadata.deletionTimestamp}: {.status.conditions[?(@.status=="True")]}{"\n"}{end}`
	var all strings.Builder
	for _, args := range [][]string{
		{"namespaces", "--output=jsonpath=" + conditions},
		{"customresourcedefinitions", "--output=jsonpath=" + conditions},
		{"pods", "--all-namespaces", "--output=wide"},
		{"nodes"},
	} {
		stdout, stderr, err := c.Kubectl(ctx, append([]string{"get"}, args...)...)
		fmt.Fprintf(&all, "\n%s%s", stdout, stderr)
		if err != nil {
			fmt.Fprintf(&all, "%v", err)
		}
	}
	return all.String()
}

// testRollout: agents and controllers are replaced under traffic.
func testRollout(t *testing.T, x *trio) {
	x.guard(t)
	x.settle(t)
	talks := x.converse(t)
	x.losesNothing(t, func() {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), installTime)
		defer cancel()
		if _, stderr, err := x.Kubectl(ctx, "--namespace=ovsdn-system", "rollout", "restart", "daemonset/ovsdn-node", "deployment/ovsdn-controller"); err != nil {
			t.Fatalf("%v: %s", err, stderr)
		}
		if err := x.WaitRollout(ctx); err != nil {
			t.Fatal(err)
		}
		t.Logf("all are replaced after %.1fs", time.Since(began).Seconds())
	}, fineStreamOf(x.a, x.c))
	talks.stay(t)
}

// testTwoVersions: this version's kubectl ovsdn has answers from controllers and agents of another commit, and from those of two commits, as during an upgrade.
func testTwoVersions(t *testing.T, x *trio, earlier lab.Build) {
	agent, controller := filepath.Join(earlier.BinDir, agentService), filepath.Join(earlier.BinDir, controllerService)
	from, to := "pod/"+x.namespace+"/"+x.a.Name, "pod/"+x.namespace+"/"+x.c.Name
	answer := func(t *testing.T) {
		for _, args := range [][]string{
			{"status"}, {"flows", fixture.Node1, from}, {"trace", from, to, "--tcp=80"}, {"probe", from, to, "--icmp"}, {"drops"}, {"top", "pods"},
			{"verify", "--namespace=" + x.namespace},
		} {
			fixture.Eventually(t, fixture.SyncTime, "kubectl ovsdn "+strings.Join(args, " "), func(ctx context.Context) error { return x.kubectlOVSDN(ctx, nil, args...) })
		}
	}
	t.Run("both of the other", answer)
	for _, v := range []struct{ name, agent, controller string }{
		{"agents of the other", agent, filepath.Join(x.BinDir(), controllerService)},
		{"controllers of the other", filepath.Join(x.BinDir(), agentService), controller},
	} {
		t.Run(v.name, func(t *testing.T) {
			x.reload(t, x.buildOf(t, v.agent, v.controller))
			answer(t)
		})
	}
	x.reload(t, earlier)
}

// testUpgrade: under traffic, another commit's installation is upgraded to this one, then to a version with other tables, then back.
func testUpgrade(t *testing.T, x *trio, earlier lab.Build) {
	changed := x.buildWith(t, buildChanged(t, toTaken()))
	x.guard(t)
	x.settle(t)
	talks, pings := x.converse(t), fineStreamOf(x.a, x.c)
	var own lab.Build
	now := earlier
	x.unlessDropped(t, func() []string {
		if now != earlier { // The machine dropped something: once more from there.
			x.reload(t, earlier)
		}
		return describe(x.measure(t, func() { x.reload(t, own); now = own }, []stream{pings}))
	})
	x.losesNothing(t, func() {
		x.reload(t, changed)
		x.hasTable(t, fixture.Node1, addedTable, true)
		x.reload(t, own)
		x.hasTable(t, fixture.Node1, addedTable, false)
	}, pings)
	talks.stay(t)
}

// guard evaluates the packets of a and c with a policy, until the test ends: they may reach each other, and nothing else.
func (x *trio) guard(t *testing.T) {
	t.Helper()
	const name = "a-and-c"
	only := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{x.a.Name, x.c.Name}}},
	}}}
	x.SetPolicy(t, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: x.namespace},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: *only[0].PodSelector,
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: only}},
			Egress:      []networkingv1.NetworkPolicyEgressRule{{To: only}},
		},
	})
	t.Cleanup(func() {
		if err := x.Kube.NetworkingV1().NetworkPolicies(x.namespace).Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete the policy: %v", err)
		}
	})
	isolated(t, x.a, x.b)
	isolated(t, x.b, x.c)
}

// conversations are many at once.
type conversations []*conversation

// converse begins connections across nodes that are quiet together: a hundred packets a second.
func (x *trio) converse(t *testing.T) conversations {
	t.Helper()
	talks := make(conversations, 200)
	for i := range talks {
		talks[i] = words{512, 2 * time.Second}.talk(t, x.a.End(), x.c.End())
	}
	return talks
}

// stay ends them all, if none has broken.
func (talks conversations) stay(t *testing.T) {
	t.Helper()
	var all errgroup.Group
	for _, c := range talks {
		all.Go(c.hear)
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, c := range talks {
		c.ends(t)
	}
	t.Logf("all of %d TCP streams go on", len(talks))
}

// testPower: all nodes lose power at once. Kubelet restarts everything without help.
func testPower(t *testing.T, x *trio) {
	ctx, cancel := context.WithTimeout(t.Context(), installTime)
	defer cancel()
	began := time.Now()
	if err := x.RebootNodes(ctx, t.Logf, x.Nodes()...); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, installTime, "the pods talk again", func(ctx context.Context) error {
		for _, from := range []string{"a", "b", "c"} {
			for _, to := range []string{"a", "b", "c"} {
				p, err := x.Kube.CoreV1().Pods(x.namespace).Get(ctx, to, metav1.GetOptions{})
				if err != nil {
					return err
				}
				stdout, stderr, err := x.Kubectl(ctx, "--namespace", x.namespace, "exec", from, "--", "ping", "-c1", "-W1", p.Status.PodIP)
				if err != nil {
					return fmt.Errorf("%s to %s: %w: %s%s", from, to, err, stdout, stderr)
				}
			}
		}
		return nil
	})
	t.Logf("every pod reaches every pod %.1fs after the nodes lost their power", time.Since(began).Seconds())
	if err := x.WaitRollout(ctx); err != nil {
		t.Fatal(err)
	}
}

// allSettings are those of all nodes, by name.
func (c *cluster) allSettings(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, node := range c.Nodes() {
		all[node] = c.settings(t, node)
	}
	return all
}

// haveSettings waits until the nodes have these settings again: kernel and kubelet may remove the last things a moment later.
func (c *cluster) haveSettings(t *testing.T, want map[string]string) {
	t.Helper()
	fixture.Eventually(t, fixture.ProgramTime, "the nodes are as before", func(context.Context) error {
		for node, settings := range want {
			if diff := cmp.Diff(strings.Split(settings, "\n"), strings.Split(c.settings(t, node), "\n")); diff != "" {
				return fmt.Errorf("%s (-before +now):\n%s", node, diff)
			}
		}
		return nil
	})
}

// settings is the state that an installation could leave on a node: files, interfaces, addresses, routes, firewall, sysctls and the switch. It
// omits the changing state of others: kube-proxy's table, counters, comments, and the results that the runtime's CNI library stores; state that
// only the first use of something creates; and state without a meaning: the empty tables of iptables, its lock, and the empty folder that kubelet
// creates for the agent's socket.
func (c *cluster) settings(t *testing.T, node string) string {
	t.Helper()
	return c.Output(t, node, "bash", "-c", `
		exec 2>&1
		find /etc/cni /opt/cni /var/lib/cni /var/lib/ovsdn /run/netns /run/openvswitch /run/ovsdn/* ! -path '/var/lib/cni/results*' ! -name '*.pid' ! -name '*.ctl' -printf '%p %y %l\n' | sort
		ip -oneline link show | cut -d: -f2
		ip -oneline address show | awk '{print $2, $4}'
		ip route show table all
		ip rule show
		iptables-save | grep -v -e '^[#*]' -e '^:[A-Z]* ACCEPT' -e COMMIT
		iptables-legacy-save | grep -v -e '^[#*]' -e '^:[A-Z]* ACCEPT' -e COMMIT
		nft list tables | grep -v -e kube-proxy -e 'table ip [a-z]*$'
		sysctl --all --ignore --pattern '^net' | grep -v -e 'nf_conntrack_count' -e random
		ovs-vsctl list-br
		ovs-vsctl --columns=other_config,external_ids list Open_vSwitch || true # fails on hosts without it`)
}

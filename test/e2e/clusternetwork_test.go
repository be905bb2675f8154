package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// setRanges edits the ClusterNetwork as in docs/clusternetwork.md.
func (c *cluster) setRanges(ctx context.Context, cidrs ...string) error {
	bits := uint32(c.Shape().HostBits)
	var entries []networkv1.ClusterNetworkEntry
	for _, cidr := range cidrs {
		entries = append(entries, networkv1.ClusterNetworkEntry{CIDR: cidr, HostSubnetLength: bits})
	}
	return c.setEntries(ctx, entries)
}

func (c *cluster) setEntries(ctx context.Context, entries []networkv1.ClusterNetworkEntry) error {
	patch, err := json.Marshal(map[string]any{"network": nil, "hostsubnetlength": nil, "clusterNetworks": entries})
	if err != nil {
		return err
	}
	_, err = c.Network.NetworkV1().ClusterNetworks().Patch(ctx, "default", types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (c *cluster) haveRanges(t *testing.T, cidrs ...string) {
	t.Helper()
	if err := c.setRanges(t.Context(), cidrs...); err != nil {
		t.Fatal(err)
	}
}

// restoreRanges undoes at the test's end what it has done to the cluster network, and waits until the nodes follow.
func (c *cluster) restoreRanges(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.PodTime)
		defer cancel()
		whole := c.Shape().ClusterNetwork.String()
		err := c.setRanges(ctx, whole)
		ticker := time.NewTicker(fixture.PollInterval)
		defer ticker.Stop()
		for err == nil {
			if err = c.follow(ctx, []string{fixture.Node1, fixture.Node2}, whole); err == nil {
				return
			}
			select {
			case <-ctx.Done():
				err = errors.Join(err, ctx.Err())
			case <-ticker.C:
				err = nil
			}
		}
		t.Errorf("restore the cluster network: %v", err)
	})
}

// accepted waits until the condition Accepted of the ClusterNetwork's current generation has the status and the words.
func (c *cluster) accepted(t *testing.T, status metav1.ConditionStatus, words ...string) {
	t.Helper()
	fixture.Eventually(t, fixture.ProgramTime, fmt.Sprintf("condition Accepted=%s with %q", status, words), func(ctx context.Context) error {
		o, err := c.Network.NetworkV1().ClusterNetworks().Get(ctx, "default", metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, err := config.Conditions(o)
		if err != nil {
			return err
		}
		got := meta.FindStatusCondition(conditions, config.ConditionAccepted)
		if got == nil || got.Status != status || got.ObservedGeneration != o.Generation || !fixture.ContainsAll(got.Message, words) {
			return fmt.Errorf("got for generation %d: %+v", o.Generation, got)
		}
		return nil
	})
}

// follow finds fault unless the nodes' routes, firewalls and flows are for these ranges, and for no others.
func (c *cluster) follow(ctx context.Context, nodes []string, ranges ...string) error {
	var errs []error
	for _, node := range nodes {
		routes, err := c.TryOutput(ctx, node, "ip", "-4", "route", "show", "dev", "tun0", "scope", "link")
		errs = append(errs, err, sameRanges(node+" routes", ranges, firstFields(routes)))
		rules, err := c.TryOutput(ctx, node, "iptables", "-t", "filter", "-S", "OVSDN-FORWARD")
		errs = append(errs, err, sameRanges(node+" forwards", ranges, behind(rules, "-s ")))
		rules, err = c.TryOutput(ctx, node, "iptables", "-t", "nat", "-S", "OVSDN-MASQUERADE")
		errs = append(errs, err, sameRanges(node+" masquerades", ranges, behind(rules, "OVSDN-MASQUERADE -s ")))
		flows, err := c.DumpFlows(ctx, node, "-O", "OpenFlow13")
		errs = append(errs, err, sameRanges(node+"'s flows lead to nodes", ranges, ranged(flows)))
	}
	return errors.Join(errs...)
}

func sameRanges(what string, want, got []string) error {
	want, got = slices.Clone(want), slices.Clone(got)
	slices.Sort(want)
	slices.Sort(got)
	if got = slices.Compact(got); !slices.Equal(want, got) {
		return fmt.Errorf("%s %q, want %q", what, got, want)
	}
	return nil
}

func firstFields(text string) (list []string) {
	for line := range strings.Lines(text) {
		list = append(list, strings.Fields(line)[0])
	}
	return list
}

// behind returns the words that follow an option.
func behind(text, option string) (list []string) {
	for line := range strings.Lines(text) {
		if _, rest, ok := strings.Cut(line, option); ok {
			list = append(list, strings.Fields(rest)[0])
		}
	}
	return list
}

// ranged returns what table route takes for the pods of other nodes.
func ranged(flows []flow) (list []string) {
	for _, f := range fixture.TableOf(flows, "30") {
		if match, ok := strings.CutSuffix(f, " actions=goto_table:90"); ok {
			list = append(list, behind(match, "nw_dst=")...)
		}
	}
	return list
}

// The ranges change while pods run, without a restart of agents.
func TestClusterNetworkChangesUnderTraffic(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: asserts that no ping is lost")
	}
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	x.restoreRanges(t)
	began := time.Now()
	starts := [2]int{x.starts(t, fixture.Node1, agentService), x.starts(t, fixture.Node2, agentService)}
	whole, one, two := x.Shape().ClusterNetwork.String(), x.Subnet(t, fixture.Node1).String(), x.Subnet(t, fixture.Node2).String()
	x.losesNothingRerouted(t, func() {
		for _, ranges := range [][]string{
			{one, two},                // no more than is used
			{two, "10.9.0.0/16", one}, // one more, in another order
			{"10.128.0.0/13"},         // a shorter mask
			{whole},
		} {
			x.haveRanges(t, ranges...)
			fixture.Eventually(t, fixture.SyncTime, fmt.Sprintf("the nodes follow %q", ranges), func(ctx context.Context) error {
				return x.follow(ctx, []string{fixture.Node1, fixture.Node2}, ranges...)
			})
			x.accepted(t, metav1.ConditionTrue, ranges...)
		}
	}, streamOf(x.a, x.c), streamOf(x.b, x.a))
	x.notWarned(t, began, "Node", fixture.Node1, agentService)
	if now := [2]int{x.starts(t, fixture.Node1, agentService), x.starts(t, fixture.Node2, agentService)}; now != starts {
		t.Errorf("agents were started %d times, before it was %d", now, starts)
	}
	x.returnsTo(t, before)
}

// A node without a free subnet reports it and waits, and joins as soon as the cluster network has grown. The other nodes reach it.
func TestFullClusterNetworkGrows(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: a node is added and removed, and waits for a subnet")
	}
	x := newTrio(t)
	x.settle(t)
	x.restoreRanges(t)
	one, two := x.Subnet(t, fixture.Node1).String(), x.Subnet(t, fixture.Node2).String()
	x.haveRanges(t, one, two)
	x.accepted(t, metav1.ConditionTrue, one, two)

	const third = "node3"
	added := make(chan string, 1)
	go func() { added <- x.addNode(t) }() // returns when the node is ready
	began := time.Now()
	x.condition(t, third, corev1.ConditionTrue, config.ReasonNoHostSubnet, "no subnet is free in the cluster network", "add a range to ClusterNetwork default")
	x.Warned(t, began, "Node", third, "no subnet is free", one, two)
	x.Warned(t, began, "Node", third, "node "+third+" has no HostSubnet yet", "ovsdn-controller creates it")
	starts := x.starts(t, third, agentService)
	x.killAgent(t, third) // which has to wait again
	x.condition(t, third, corev1.ConditionTrue, config.ReasonNoHostSubnet)

	const grown = "10.9.0.0/16"
	x.haveRanges(t, one, two, grown)
	select {
	case <-added:
	case <-time.After(fixture.NodeTime):
		t.Fatal("the node is not ready")
	}
	x.condition(t, third, corev1.ConditionFalse, config.ReasonReady, "10.9.0.0/23")
	if now := x.starts(t, third, agentService); now != starts+1 {
		t.Errorf("the agent was started %d times, once by this test", now)
	}
	fixture.Eventually(t, fixture.SyncTime, "all nodes follow", func(ctx context.Context) error { // the third reports that it is ready, not that others have its HostSubnet
		return x.follow(ctx, []string{fixture.Node1, fixture.Node2, third}, one, two, grown)
	})
	d := x.Run(t, x.namespace, fixture.Netexec("d", third))[0]
	if !netip.MustParsePrefix(grown).Contains(d.Addr) {
		t.Errorf("pod d has the address %s", d.Addr)
	}
	outside := end{Name: "outside", NetNS: x.outside.NetNS, Addr: lab.OutsideAddr()}
	for _, path := range []struct {
		from, to end
		source   netip.Addr
	}{
		{x.a.End(), d.End(), x.a.Addr},
		{d.End(), x.c.End(), d.Addr},
		{x.nodeEnd(t, x.node1), d.End(), x.a.Gateway()},
		{d.End(), outside, x.Addr(t, third)},
	} {
		fixture.Meet(t, path.from.NetNS, path.to.Addr)
		testTCP(t, path.from, path.to, path.source)
	}
	t.Run("back is refused while it is used", func(t *testing.T) {
		x.haveRanges(t, x.Shape().ClusterNetwork.String())
		x.accepted(t, metav1.ConditionFalse, "HostSubnet "+third+" is in use", "still active:", grown)
		if err := x.follow(t.Context(), []string{fixture.Node1, fixture.Node2, third}, one, two, grown); err != nil {
			t.Error(err)
		}
		fixture.Meet(t, x.a.NetNS, d.Addr)
	})
	// When no HostSubnet uses it, the edit is accepted without another action.
	x.leave(t, d, third)
	x.accepted(t, metav1.ConditionTrue, "active: "+x.Shape().ClusterNetwork.String())
}

// condition waits until the Node's condition NetworkUnavailable has the status, reason and words.
func (c *cluster) condition(t *testing.T, node string, status corev1.ConditionStatus, reason string, words ...string) {
	t.Helper()
	fixture.Eventually(t, fixture.PodTime, fmt.Sprintf("%s has NetworkUnavailable=%s for %s and %q", node, status, reason, words), func(ctx context.Context) error {
		n, err := c.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got := config.NetworkUnavailable(n)
		if got == nil || got.Status != status || got.Reason != reason || !fixture.ContainsAll(got.Message, words) {
			return fmt.Errorf("got %+v", got)
		}
		return nil
	})
}

// A refused edit is reported on the ClusterNetwork. Nodes continue with the active configuration, also agents that start in the meantime.
func TestClusterNetworkRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: an agent is killed for each of many refused edits")
	}
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	x.restoreRanges(t)
	whole := x.Shape().ClusterNetwork.String()
	for _, tc := range []struct {
		name   string
		ranges []string
		words  []string
	}{
		{"bits behind the mask", []string{"10.128.0.5/14"}, []string{"10.128.0.5/14 has bits set behind its mask: write 10.128.0.0/14"}},
		{"several faults", []string{"10.128.0.0/13", "10.129.0.0/16", "172.16.0.0/12"}, []string{
			"clusterNetworks[1].CIDR: 10.129.0.0/16 overlaps 10.128.0.0/13", "serviceNetwork: 172.30.0.0/16 overlaps the cluster network 172.16.0.0/12",
		}},
		{"over the nodes", []string{whole, "172.31.0.0/16"}, []string{"node node1: its address", "lies inside 172.31.0.0/16"}},
		{"without what is used", []string{"10.9.0.0/16"}, []string{"HostSubnet node1 is in use", "HostSubnet node2 is in use"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			began := time.Now()
			x.haveRanges(t, tc.ranges...)
			x.accepted(t, metav1.ConditionFalse, append(tc.words, "still active: "+whole)...)
			x.Warned(t, began, "ClusterNetwork", "default", tc.words...)
			x.killAgent(t, fixture.Node1)
			x.observed(t, fixture.Node1, fixture.Node2)
			if err := x.follow(t.Context(), []string{fixture.Node1, fixture.Node2}, whole); err != nil {
				t.Error(err)
			}
			later := x.Run(t, x.namespace, fixture.Netexec("later", fixture.Node1))[0]
			fixture.Meet(t, later.NetNS, x.c.Addr)
			if err := x.DeletePod(t.Context(), x.namespace, later.Name); err != nil {
				t.Fatal(err)
			}
			x.returnsTo(t, before)
			x.notWarned(t, began, "Node", fixture.Node1, agentService)
			x.haveRanges(t, whole)
			x.accepted(t, metav1.ConditionTrue, whole)
		})
	}
}

// A range that overlaps a route of one host is refused by that node: it reports this, its set-up does not change, and it follows once the route is deleted.
func TestClusterNetworkGrowsOverRoute(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: needs the shared lab; test of a rare fault")
	}
	x := newTrio(t)
	x.settle(t)
	x.restoreRanges(t)
	const grown, route = "10.9.0.0/16", "10.9.7.0/24"
	whole := x.Shape().ClusterNetwork.String()
	x.Output(t, fixture.Node2, "ip", "route", "add", "blackhole", route)
	remove := func(ctx context.Context) error {
		_, err := x.TryOutput(ctx, fixture.Node2, "ip", "route", "del", "blackhole", route)
		return err
	}
	removed := false
	t.Cleanup(func() {
		if !removed {
			fixture.Within(t, fixture.SyncTime, "remove the route", func(context.Context) error { return remove(context.WithoutCancel(t.Context())) })
		}
	})
	began := time.Now()
	x.haveRanges(t, whole, grown)
	x.Warned(t, began, "Node", fixture.Node2, "does not fit this node, whose set-up does not change", grown, "overlaps", route, "remove the route")
	fixture.Eventually(t, fixture.SyncTime, fixture.Node1+" follows", func(ctx context.Context) error { return x.follow(ctx, []string{fixture.Node1}, whole, grown) })
	if err := x.follow(t.Context(), []string{fixture.Node2}, whole); err != nil {
		t.Error(err)
	}
	fixture.Meet(t, x.a.NetNS, x.c.Addr)
	x.Run(t, x.namespace, fixture.Netexec("later", fixture.Node2))

	removed = true
	fixture.Within(t, fixture.SyncTime, "remove the route", remove)
	fixture.Eventually(t, fixture.PodTime, fixture.Node2+" follows", func(ctx context.Context) error { return x.follow(ctx, []string{fixture.Node2}, whole, grown) })
}

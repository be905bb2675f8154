package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/subnet"
)

// controllerNamespace and controllerLease name the Lease of the leader.
const (
	controllerNamespace = "ovsdn-system"
	controllerLease     = "ovsdn-controller"
)

const (
	pageSize             = 500 // objects of a list
	maxWarnings          = 10  // that are printed
	maxNamespaceWarnings = 3   // of them, on objects of one namespace: a tenant must not hide the others
	warningAge           = time.Hour
	maxWarningText       = 300 // bytes of a message that are printed
)

// clusterStatus is what concerns the cluster and not the agent of a node. What the user may not read is left out.
type clusterStatus struct {
	lines    []string       // after those of the nodes
	counts   map[string]any // of the objects, for -o json
	problems []string
	warnings []corev1.Event // the newest first
}

// readCluster reads the Lease, and once all else, of which there may be 50,000 objects. It fails only if the context ends.
func (s *statusLister) readCluster(ctx context.Context, statuses []diagnostics.NodeStatus) (clusterStatus, error) {
	if s.first == nil {
		s.first = &clusterStatus{}
		network, err := s.network.NetworkV1().ClusterNetworks().Get(ctx, networkv1.ClusterNetworkDefault, metav1.GetOptions{})
		if err != nil {
			network = nil
		}
		s.first.count(ctx, s, network)
		s.first.addNodes(ctx, s, statuses)
		s.first.addClusterNetwork(network)
		s.first.addWarnings(ctx, s)
	}
	c := clusterStatus{lines: slices.Clone(s.first.lines), counts: s.first.counts, problems: slices.Clone(s.first.problems), warnings: s.first.warnings}
	return c, c.addLeader(ctx, s)
}

// count counts the subnets and VNIDs. Without a ClusterNetwork (nil) the subnets have no total.
func (c *clusterStatus) count(ctx context.Context, s *statusLister, network *networkv1.ClusterNetwork) {
	c.counts = map[string]any{}
	if list, err := s.network.NetworkV1().HostSubnets().List(ctx, metav1.ListOptions{}); err == nil {
		if usage, ok := subnetUsage(network, list.Items); ok {
			used := usage.Total - usage.Free
			c.lines = append(c.lines, fmt.Sprintf("Subnets:     %d of %d", used, usage.Total))
			c.counts["subnets"] = map[string]any{"used": int64(used), "total": int64(usage.Total)} //nolint:gosec // at most the addresses of IPv4
		} else {
			c.lines = append(c.lines, fmt.Sprintf("Subnets:     %d", len(list.Items)))
			c.counts["subnets"] = map[string]any{"used": int64(len(list.Items))}
		}
	}
	if list, err := s.network.NetworkV1().NetNamespaces().List(ctx, metav1.ListOptions{}); err == nil {
		vnids := map[string]bool{}
		for _, nn := range list.Items {
			vnids[vnidOf(nn).String()] = true
		}
		c.lines = append(c.lines, fmt.Sprintf("VNIDs:       %d of %d namespaces", len(vnids), len(list.Items)))
		c.counts["vnids"], c.counts["namespaces"] = int64(len(vnids)), int64(len(list.Items))
	}
}

// subnetUsage returns the use of the active network's subnets, as the controller counts it; false without an active network.
func subnetUsage(network *networkv1.ClusterNetwork, all []networkv1.HostSubnet) (subnet.Usage, bool) {
	if network == nil {
		return subnet.Usage{}, false
	}
	active, err := config.ActiveNetwork(network)
	if err != nil {
		return subnet.Usage{}, false
	}
	allocator := subnet.NewAllocator()
	for i := range all {
		if p, err := netip.ParsePrefix(all[i].Subnet); err == nil { // those of external machines may have none
			allocator.MarkAllocated(all[i].Name, p)
		}
	}
	err = allocator.SetNetworks(active.ClusterNetworks, func([]subnet.Allocation) error { return nil })
	return allocator.Usage(), err == nil
}

// addNodes adds the Nodes that have no HostSubnet, and no agent that reports it.
func (c *clusterStatus) addNodes(ctx context.Context, s *statusLister, statuses []diagnostics.NodeStatus) {
	if len(s.nodes) > 0 {
		return
	}
	known := map[string]bool{}
	for _, o := range statuses {
		known[o.Name] = true
	}
	options := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := s.kube.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return
		}
		for _, node := range list.Items {
			if known[node.Name] {
				continue
			}
			text := node.Name + ": no HostSubnet"
			if condition := config.NetworkUnavailable(&node); condition != nil && condition.Status == corev1.ConditionTrue {
				text += ": " + oneLine(condition.Reason) + ": " + oneLine(condition.Message)
			}
			c.problems = append(c.problems, text)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return
		}
	}
}

func (c *clusterStatus) addClusterNetwork(o *networkv1.ClusterNetwork) {
	if o == nil {
		return
	}
	conditions, err := config.Conditions(o)
	if err != nil {
		return
	}
	if accepted := meta.FindStatusCondition(conditions, config.ConditionAccepted); accepted != nil && accepted.Status == metav1.ConditionFalse {
		c.problems = append(c.problems, fmt.Sprintf("ClusterNetwork %s: not accepted: %s: %s", o.Name, accepted.Reason, oneLine(accepted.Message)))
	}
}

// addWarnings adds the Events of agents and controllers; if nodes were given, those on objects with their names.
func (c *clusterStatus) addWarnings(ctx context.Context, s *statusLister) {
	for _, source := range []string{"ovsdn-controller", "ovsdn-node"} {
		list, err := s.kube.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "type=Warning,source=" + source, Limit: pageSize})
		if err != nil {
			continue
		}
		for _, e := range list.Items {
			// Events can be written by others, with any time.
			if age := time.Since(e.LastTimestamp.Time); -time.Minute < age && age < warningAge && (len(s.nodes) == 0 || slices.Contains(s.nodes, e.InvolvedObject.Name)) {
				c.warnings = append(c.warnings, e)
			}
		}
	}
	slices.SortStableFunc(c.warnings, func(a, b corev1.Event) int { return b.LastTimestamp.Compare(a.LastTimestamp.Time) })
}

// addLeader adds the holder of the Lease, and the problem that it does not renew it.
func (c *clusterStatus) addLeader(ctx context.Context, s *statusLister) error {
	get := func(ctx context.Context) (*coordinationv1.Lease, error) {
		return s.kube.CoordinationV1().Leases(controllerNamespace).Get(ctx, controllerLease, metav1.GetOptions{})
	}
	lease, err := get(ctx)
	if err != nil {
		return ctx.Err()
	}
	holder := ""
	if lease.Spec.HolderIdentity != nil {
		holder = *lease.Spec.HolderIdentity
	}
	c.lines = append(c.lines, "Leader:      "+orNone(holder))
	if holder == "" {
		c.problems = append(c.problems, "no controller leads: the Lease has no holder")
		return nil
	}
	length, renewed := leaseOf(lease)
	if length == 0 || isFresh(length, renewed) {
		return nil
	}
	// Either it has expired, or the clocks differ: a leader renews it before it expires.
	err = wait.PollUntilContextTimeout(ctx, time.Second, length, false, func(ctx context.Context) (bool, error) {
		now, err := get(ctx)
		if err != nil {
			return false, nil // counts as not renewed
		}
		_, again := leaseOf(now)
		return !again.Equal(renewed), nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		c.problems = append(c.problems, fmt.Sprintf("no controller leads: %s has not renewed the Lease for %s", holder, duration.HumanDuration(max(length, time.Since(renewed)))))
	}
	return nil
}

// leaseOf returns how long a Lease is valid after it was renewed; 0 if that is unknown.
func leaseOf(lease *coordinationv1.Lease) (length time.Duration, renewed time.Time) {
	if lease.Spec.LeaseDurationSeconds == nil || lease.Spec.RenewTime == nil {
		return 0, time.Time{}
	}
	const longest = 60 * time.Second // to wait for
	return min(time.Duration(*lease.Spec.LeaseDurationSeconds)*time.Second, longest), lease.Spec.RenewTime.Time
}

// isFresh reports whether the Lease is valid by this machine's clock, if that is not behind by more than its length.
func isFresh(length time.Duration, renewed time.Time) bool {
	age := time.Since(renewed)
	return -length < age && age < length
}

// printNodes prints how many nodes are ready, and the versions of their agents.
func printNodes(out io.Writer, statuses []diagnostics.NodeStatus) {
	ready, all, versions := 0, 0, map[string]int{}
	for _, o := range statuses {
		if !o.Status.NoAgent {
			all++
		}
		if o.Status.Error == "" && o.Status.Ready {
			ready++
		}
		if o.Status.AgentVersion != "" {
			versions[o.Status.AgentVersion]++
		}
	}
	fmt.Fprintf(out, "\nNodes ready: %d/%d\n", ready, all)
	var texts []string
	for _, v := range slices.Sorted(maps.Keys(versions)) {
		texts = append(texts, fmt.Sprintf("%s (%d)", v, versions[v]))
	}
	fmt.Fprintf(out, "Versions:    %s\n", orNone(strings.Join(texts, ", ")))
}

func (c *clusterStatus) print(out io.Writer) {
	for _, line := range c.lines {
		fmt.Fprintln(out, line)
	}
}

func (c *clusterStatus) printWarnings(out io.Writer) {
	if len(c.warnings) == 0 {
		return
	}
	fmt.Fprintln(out, "Warnings of the last hour:")
	printed, of := 0, map[string]int{} // by namespace
	for _, e := range c.warnings {
		o := e.InvolvedObject
		if of[o.Namespace]++; printed == maxWarnings || o.Namespace != "" && of[o.Namespace] > maxNamespaceWarnings {
			continue
		}
		printed++
		object := strings.ToLower(o.Kind) + "/" + o.Name
		if o.Namespace != "" {
			object = strings.ToLower(o.Kind) + "/" + o.Namespace + "/" + o.Name
		}
		age := duration.HumanDuration(max(0, time.Since(e.LastTimestamp.Time)))
		fmt.Fprintf(out, "  %s ago  %s: %s: %s\n", age, oneLine(object), oneLine(e.Reason), oneLine(e.Message))
	}
	if more := len(c.warnings) - printed; more > 0 {
		fmt.Fprintf(out, "  and %d more: kubectl get events -A --field-selector type=Warning\n", more)
	}
}

// oneLine returns the beginning of a text, without what would move the terminal's cursor.
func oneLine(text string) string {
	text = strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ")
	if len(text) > maxWarningText {
		text = strings.ToValidUTF8(text[:maxWarningText], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, cmp.Or(text, "<none>"))
}

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// flow is a line of dump-flows.
type flow struct {
	table   string // a number, or a name
	cookie  string
	packets uint64
	// text is "priority=100,ip,nw_dst=… actions=…": what the flow is, without what it counts.
	text string
}

// dumpFlows runs ovs-ofctl dump-flows br0 on a node, with options before.
func (c *cluster) dumpFlows(ctx context.Context, node string, options ...string) ([]flow, error) {
	command := append(append([]string{"ovs-ofctl"}, options...), "dump-flows", "br0")
	out, err := c.tryExec(ctx, node, command...)
	if err != nil {
		return nil, err
	}
	var flows []flow
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "actions=") { // the reply's header
			continue
		}
		f, err := parseFlow(strings.TrimSpace(line))
		if err != nil {
			return nil, fmt.Errorf("%w in %q", err, line)
		}
		flows = append(flows, f)
	}
	return flows, nil
}

func parseFlow(line string) (flow, error) {
	match, actions, _ := strings.Cut(line, " actions=")
	f := flow{table: "0"} // OpenFlow 1.0 does not say it
	var kept []string
	for field := range strings.SplitSeq(match, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		switch key {
		case "table":
			f.table = strings.Trim(value, `"`) // names with a hyphen are quoted
		case "cookie":
			f.cookie = value
		case "n_packets":
			var err error
			if f.packets, err = strconv.ParseUint(value, 10, 64); err != nil {
				return f, err
			}
		case "duration", "n_bytes", "idle_age", "hard_age":
		default:
			kept = append(kept, strings.TrimSpace(field))
		}
	}
	f.text = strings.Join(kept, ",") + " actions=" + actions
	return f, nil
}

// flows are those of OpenFlow 1.3, in which the facts about the switch are written.
func (c *cluster) flows(t *testing.T, node string) []flow {
	t.Helper()
	var flows []flow
	within(t, syncTime, "dump the flows of "+node, func(ctx context.Context) (err error) {
		flows, err = c.dumpFlows(ctx, node, "-O", "OpenFlow13")
		return err
	})
	return flows
}

// tableOf are the flows of a table, without cookies, sorted.
func tableOf(flows []flow, table string) []string {
	var lines []string
	for _, f := range flows {
		if f.table == table {
			lines = append(lines, f.text)
		}
	}
	slices.Sort(lines)
	return lines
}

// packets is how many a flow of a table has counted. There must be that flow.
func packets(t *testing.T, flows []flow, table, text string) uint64 {
	t.Helper()
	for _, f := range flows {
		if f.table == table && f.text == text {
			return f.packets
		}
	}
	t.Fatalf("table %s has no flow %q: it has %q", table, text, tableOf(flows, table))
	return 0
}

// footprint is everything that pods leave on a node as long as they are there.
type footprint struct {
	Flows  []string // with cookies
	Ports  []string // of br0, in OVSDB
	Veths  []string
	Leases []string // addresses in the IPAM directory
}

func (c *cluster) footprint(ctx context.Context, node machine) (footprint, error) {
	var f footprint
	flows, err := c.dumpFlows(ctx, node.name, "-O", "OpenFlow13")
	if err != nil {
		return f, err
	}
	for _, flow := range flows {
		f.Flows = append(f.Flows, fmt.Sprintf("cookie=%s,table=%s,%s", flow.cookie, flow.table, flow.text))
	}
	ports, err := c.tryExec(ctx, node.name, "ovs-vsctl", "list-ports", "br0")
	if err != nil {
		return f, err
	}
	f.Ports = strings.Fields(ports)
	if f.Veths, err = veths(node); err != nil {
		return f, err
	}
	if f.Leases, err = leases(node); err != nil {
		return f, err
	}
	for _, list := range [][]string{f.Flows, f.Ports, f.Veths, f.Leases} {
		slices.Sort(list)
	}
	return f, nil
}

// leases are the addresses that the node's IPAM has given out.
func leases(node machine) (addrs []string, err error) {
	files, err := os.ReadDir(filepath.Join(node.root, "var/lib/cni/networks/ovsdn"))
	for _, f := range files {
		if strings.Count(f.Name(), ".") == 3 { // beside addresses there are a lock and the last address given
			addrs = append(addrs, f.Name())
		}
	}
	return addrs, err
}

func veths(node machine) (names []string, err error) {
	err = node.netns.Do(func() error {
		links, err := netlinksafe.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if l.Type() == "veth" {
				names = append(names, l.Attrs().Name)
			}
		}
		return nil
	})
	return names, err
}

// footprints are those of the nodes now, by name.
func (c *cluster) footprints(t *testing.T, nodes ...string) map[string]footprint {
	t.Helper()
	all := map[string]footprint{}
	for _, node := range nodes {
		f, err := c.footprint(t.Context(), c.machine(t, node))
		if err != nil {
			t.Fatal(err)
		}
		all[node] = f
	}
	return all
}

// settle waits until nothing of other tests' pods and services is left, so that what this test leaves is its own.
func (c *cluster) settle(t *testing.T) {
	t.Helper()
	eventually(t, podTime, "other tests' namespaces are gone", func(ctx context.Context) error {
		all, err := c.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, ns := range all.Items {
			if ns.Status.Phase == corev1.NamespaceTerminating {
				return fmt.Errorf("namespace %s is being deleted", ns.Name)
			}
		}
		return nil
	})
}

// returnsTo waits until the nodes have the footprints again. Pods that the API server has forgotten may still be there a while.
func (c *cluster) returnsTo(t *testing.T, want map[string]footprint) {
	t.Helper()
	machines := map[string]machine{}
	for node := range want {
		machines[node] = c.machine(t, node)
	}
	eventually(t, podTime, "the nodes are as before", func(ctx context.Context) error {
		for node, before := range want {
			now, err := c.footprint(ctx, machines[node])
			if err != nil {
				return err
			}
			if diff := cmp.Diff(before, now); diff != "" {
				return fmt.Errorf("%s (-before +now):\n%s", node, diff)
			}
		}
		return nil
	})
}

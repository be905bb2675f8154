package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// footprint is the state of a node that pods change while they exist.
type footprint struct {
	Flows  []string // with cookies
	Ports  []string // of br0, in OVSDB
	Veths  []string
	Leases []string // addresses in the IPAM directory
	Host   []string // what the host has for the pod network and for egress IPs: routes, neighbours, entries of sets
}

func (c *cluster) footprint(ctx context.Context, node machine) (footprint, error) {
	var f footprint
	flows, err := c.DumpFlows(ctx, node.Name, "-O", "OpenFlow13")
	if err != nil {
		return f, err
	}
	for _, flow := range flows {
		f.Flows = append(f.Flows, fmt.Sprintf("cookie=%s,table=%s,%s", flow.Cookie, flow.Table, flow.Text))
	}
	ports, err := c.TryOutput(ctx, node.Name, "ovs-vsctl", "list-ports", "br0")
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
	if f.Host, err = hostEntries(node); err != nil {
		return f, err
	}
	for _, list := range [][]string{f.Flows, f.Ports, f.Veths, f.Leases, f.Host} {
		slices.Sort(list)
	}
	return f, nil
}

// hostEntries are the routes and the permanent neighbours of tun0, the proxy neighbours of all interfaces, and the hosted egress IPs that the firewall knows.
func hostEntries(node machine) (entries []string, err error) {
	err = node.NetNS.Do(func() error {
		tun0, err := netlinksafe.LinkByName("tun0")
		if err != nil {
			return err
		}
		routes, err := netlinksafe.RouteList(tun0, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, r := range routes {
			entries = append(entries, fmt.Sprintf("route %s via %s, protocol %d", r.Dst, r.Gw, r.Protocol))
		}
		for what, filter := range map[string]netlink.Ndmsg{
			"neighbour": {Index: uint32(tun0.Attrs().Index), State: netlink.NUD_PERMANENT}, "proxy neighbour": {Flags: netlink.NTF_PROXY},
		} {
			filter.Family = unix.AF_INET
			neighbours, err := netlink.NeighListExecute(filter)
			for errors.Is(err, netlink.ErrDumpInterrupted) {
				neighbours, err = netlink.NeighListExecute(filter)
			}
			if err != nil {
				return err
			}
			for _, n := range neighbours {
				entries = append(entries, fmt.Sprintf("%s %s %s", what, n.IP, n.HardwareAddr))
			}
		}
		set, err := netlink.IpsetList(egressSet)
		if err != nil {
			return nil // a kernel without sets has none, nor has a node that has hosted no egress IP
		}
		for _, e := range set.Entries {
			entries = append(entries, "egress IP "+e.IP.String())
		}
		return nil
	})
	return entries, err
}

// egressSet is the kernel's set of the egress IPs that a node hosts (ipset(8)).
const egressSet = "OVSDN-EGRESS-IPS"

// leases are the allocated addresses in the node's IPAM.
func leases(node machine) (addrs []string, err error) {
	files, err := os.ReadDir(filepath.Join(node.Root, "var/lib/cni/networks/ovsdn"))
	for _, f := range files {
		if strings.Count(f.Name(), ".") == 3 { // beside addresses there are a lock and the last address given
			addrs = append(addrs, f.Name())
		}
	}
	return addrs, err
}

func veths(node machine) (names []string, err error) {
	err = node.NetNS.Do(func() error {
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
		f, err := c.footprint(t.Context(), c.Machine(t, node))
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
	fixture.Eventually(t, fixture.PodTime, "other tests' namespaces are deleted", func(ctx context.Context) error {
		all, err := c.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
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

// returnsTo waits until the nodes have the footprints again. Pods that the API server has deleted may still exist on a node for a while.
func (c *cluster) returnsTo(t *testing.T, want map[string]footprint) {
	t.Helper()
	machines := map[string]machine{}
	for node := range want {
		machines[node] = c.Machine(t, node)
	}
	fixture.Eventually(t, fixture.PodTime, "the nodes are as before", func(ctx context.Context) error {
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

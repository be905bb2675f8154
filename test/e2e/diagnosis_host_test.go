package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

func hostDiagnoses() []diagnosis {
	repaired := func(inject func(*testing.T, *faultMatrix)) func(*testing.T, *diagnosed) func() {
		return func(t *testing.T, w *diagnosed) func() {
			inject(t, w.faultMatrix)
			return nil
		}
	}
	onNode1 := func(reason string) func(*diagnosed) []string {
		return containing("node/" + fixture.Node1 + ": " + reason)
	}
	return []diagnosis{
		{name: "a port deleted", inject: repaired(deletePort), ask: status, words: onNode1(eventreason.PodPortsRebuilt)},
		{
			name: "the ofport of a pod used by another port", inject: takeOFPort, ask: status,
			words: containing("node/" + fixture.Node2 + ": " + eventreason.PodPortsRebuilt),
		},
		{
			name: "flows to another node deleted", ask: status, words: onNode1(eventreason.FlowsRestored),
			inject: func(t *testing.T, w *diagnosed) func() {
				w.Output(t, fixture.Node1, "ovs-ofctl", "-O", "OpenFlow13", "del-flows", "br0", "ip,nw_dst="+w.Subnet(t, fixture.Node2).String())
				return nil
			},
		},
		{
			name: "the host's firewall flushed", ask: status, words: onNode1(eventreason.FirewallRestored),
			inject: func(t *testing.T, w *diagnosed) func() {
				w.Output(t, fixture.Node1, "iptables", "-t", "nat", "-F")
				return nil
			},
		},
		{name: "br0 deleted", inject: repaired(deleteBridge), ask: status, words: onNode1(eventreason.BridgeRestored)},
		{name: "leases lost", inject: repaired(loseLeases), ask: status, words: onNode1(eventreason.AddressLeasesRestored)},
		{name: "CNI configuration deleted", inject: repaired(deleteCNIConfiguration), ask: status, words: onNode1(eventreason.CNIFilesWritten)},
		{
			name: "a veth deleted", prepare: func(t *testing.T, w *diagnosed) { startVictim(t, w.faultMatrix) }, inject: repaired(deleteVeth), ask: status,
			words: func(w *diagnosed) []string {
				return []string{"pod/" + w.namespace + "/" + w.victim + ": " + eventreason.NetworkInterfaceDeleted}
			},
		},
		{name: "all addresses of a node in use", inject: fillNode, ask: status, words: containing(fixture.Node3 + ": no address of the subnet is free")},
		{
			name: "a route overlaps the cluster network", ask: status,
			inject: func(t *testing.T, w *diagnosed) func() {
				route := w.Subnet(t, fixture.Node1).String()
				w.Output(t, fixture.Node3, "ip", "route", "add", "blackhole", route)
				return func() { w.Output(t, fixture.Node3, "ip", "route", "del", "blackhole", route) }
			},
			words: containing(fixture.Node3+": not ready: ", "overlaps this host's route"),
		},
		{name: "MTU of the underlay too small", inject: lowUnderlay, ask: status, words: containing(fixture.Node3+": from ", ": the overlay loses packets of ")},
		{
			name: "a node is cut off", ask: status,
			inject: func(t *testing.T, w *diagnosed) func() {
				w.cut(t, fixture.Node3, true)
				return func() { w.cut(t, fixture.Node3, false) }
			},
			words: containing(fixture.Node3+": no route to the node", fixture.Node3+": from ", ": neither the overlay nor the underlay answers"),
		},
	}
}

// takeOFPort replaces the port of pod c by another one with its ofport.
func takeOFPort(t *testing.T, w *diagnosed) func() {
	port := w.port(t, w.c)
	ofport := strings.TrimSpace(w.Output(t, fixture.Node2, "ovs-vsctl", "get", "interface", port, "ofport"))
	w.Output(t, fixture.Node2, "ovs-vsctl", "--timeout=20", "del-port", port,
		"--", "add-port", "br0", "taker", "--", "set", "interface", "taker", "type=internal", "ofport_request="+ofport)
	if got := strings.TrimSpace(w.Output(t, fixture.Node2, "ovs-vsctl", "get", "interface", "taker", "ofport")); got != ofport {
		t.Errorf("the other port has number %s, want %s", got, ofport)
	}
	return func() { w.Output(t, fixture.Node2, "ovs-vsctl", "--timeout=20", "del-port", "taker") }
}

// fillNode creates more pods on node3 than it has addresses.
func fillNode(t *testing.T, w *diagnosed) func() {
	const wave = "filling"
	w.createOn(t, w.namespace, wave, 1<<diagnosisHostBits, []string{fixture.Node3})
	return func() {
		pods := w.Kube.CoreV1().Pods(w.namespace)
		filling := metav1.ListOptions{LabelSelector: waveLabel + "=" + wave}
		if err := pods.DeleteCollection(t.Context(), metav1.DeleteOptions{}, filling); err != nil {
			t.Error(err)
		}
		fixture.Eventually(t, fixture.PodTime, "the pods that filled the node are deleted", func(ctx context.Context) error {
			list, err := pods.List(ctx, filling)
			if err == nil && len(list.Items) > 0 {
				err = fmt.Errorf("%d remain", len(list.Items))
			}
			return err
		})
	}
}

// lowUnderlay has the network of the nodes drop what is larger than 1,400 bytes on its way to node3.
func lowUnderlay(t *testing.T, w *diagnosed) func() {
	fabric := w.Machine(t, lab.ControlPlane).NetNS
	set := func(mtu int) {
		err := fabric.Do(func() error {
			port, err := netlinksafe.LinkByName("v-" + fixture.Node3)
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(port, mtu)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	set(1400)
	return func() { set(1500) }
}

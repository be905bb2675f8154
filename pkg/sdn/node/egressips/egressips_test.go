package egressips

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

const (
	unusable = "255.255.255.255" // the source of pods whose packets to outside are dropped

	local  = "192.0.2.100->"
	remote = "192.0.2.101->192.0.2.2"
)

func TestEgressIPs_usedByPods(t *testing.T) {
	c := newCluster(t)
	c.hostSubnets.Add(hostSubnet("node1", "192.0.2.100"))
	c.hostSubnets.Add(hostSubnet("node2", "192.0.2.101", "192.0.2.109"))
	c.netNamespaces.Add(netNamespace("shop@u1", "192.0.2.100"))
	c.netNamespaces.Add(netNamespace("bank@u2", "192.0.2.101"))
	c.netNamespaces.Add(netNamespace("none@u3"))
	a, _ := c.start(t, "shop@u1/5", "shop@u1/6", "bank@u2/7", "none@u3/8")
	a.want("5=192.0.2.100", "6=192.0.2.100", "7=192.0.2.101", "8=node", local, remote)
	a.wantHost("host [192.0.2.100] flows [192.0.2.100]")

	c.netNamespaces.Modify(netNamespace("none@u3", "192.0.2.109"))
	a.want("5=192.0.2.100", "6=192.0.2.100", "7=192.0.2.101", "8=192.0.2.109", local, remote, "192.0.2.109->192.0.2.2")
	c.netNamespaces.Modify(netNamespace("none@u3"))
	a.want("5=192.0.2.100", "6=192.0.2.100", "7=192.0.2.101", "8=node", local, remote)
}

// The packets of a namespace without a usable egress IP are dropped, and do not use the flows of another namespace.
func TestEgressIPs_unusable(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.hostSubnets.Add(hostSubnet("node1", "192.0.2.100"))
	c.hostSubnets.Add(hostSubnet("node2", "192.0.2.101"))
	c.netNamespaces.Add(netNamespace("shop@u1", "192.0.2.100"))
	c.netNamespaces.Add(netNamespace("bank@u2", "192.0.2.101"))
	c.netNamespaces.Add(netNamespace("other@u3", "192.0.2.102"))                   // no node hosts it
	c.netNamespaces.Add(netNamespace("invalid@u4", "192.0.2.999", "ffff::1", "!")) // no address
	c.netNamespaces.Add(netNamespace("reserved@u5", "10.128.0.5", "172.30.0.1"))   // in the cluster's networks
	c.netNamespaces.Add(netNamespace("node@u6", "192.0.2.2"))                      // that of a node
	a, _ := c.start(t, "shop@u1/5", "bank@u2/7", "other@u3/8", "invalid@u4/9", "reserved@u5/10", "node@u6/11")
	dropped := []string{"8=" + unusable, "9=" + unusable, "10=" + unusable, "11=" + unusable}
	a.want(append(dropped, "5=192.0.2.100", "7=192.0.2.101", local, remote)...)

	// Two namespaces have an IP.
	c.netNamespaces.Modify(netNamespace("bank@u2", "192.0.2.100", "192.0.2.101"))
	a.want(append(dropped, "5="+unusable, "7=192.0.2.101", remote)...)
	a.wantHost("host [] flows []")
	c.netNamespaces.Modify(netNamespace("bank@u2", "192.0.2.101"))
	a.want(append(dropped, "5=192.0.2.100", "7=192.0.2.101", local, remote)...)

	// Two nodes host an IP.
	c.hostSubnets.Modify(hostSubnet("node2", "192.0.2.100", "192.0.2.101"))
	a.want(append(dropped, "5="+unusable, "7=192.0.2.101", remote)...)
	// A HostSubnet has the address of this node.
	c.hostSubnets.Modify(hostSubnet("node2", "192.0.2.101"))
	impostor := hostSubnet("node3", "192.0.2.102")
	impostor.HostIP = "192.0.2.1"
	c.hostSubnets.Add(impostor)
	a.want("5=192.0.2.100", "7=192.0.2.101", "8="+unusable, "9="+unusable, "10="+unusable, "11="+unusable, local, remote)
	// An invalid address retains the last valid one.
	invalid := hostSubnet("node2", "192.0.2.101", "192.0.2.102")
	invalid.HostIP = "node2"
	c.hostSubnets.Modify(invalid)
	c.hostSubnets.Delete(impostor)
	a.want("5=192.0.2.100", "7=192.0.2.101", "8=192.0.2.102", "9="+unusable, "10="+unusable, "11="+unusable, local, remote, "192.0.2.102->192.0.2.2")
}

// When a node fails, its egress IPs' pods use those of other nodes; without others they retain them.
func TestEgressIPs_unreachableNode(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.hostSubnets.Add(hostSubnet("node2", "192.0.2.102"))
	c.hostSubnets.Add(hostSubnet("node3", "192.0.2.103"))
	c.netNamespaces.Add(netNamespace("shop@u1", "192.0.2.102", "192.0.2.103"))
	pods, flows := []string{"shop@u1/5", "shop@u1/6", "shop@u1/7", "shop@u1/8"}, []string{"192.0.2.102->192.0.2.2", "192.0.2.103->192.0.2.3"}
	a, _ := c.start(t, pods...)
	sources := func(ips ...string) []string {
		value, _ := a.store.Value(inputs.NamespaceEgressIPs("shop", "u1"))
		all := append([]string{}, flows...)
		for _, last := range []string{"5", "6", "7", "8"} {
			if ips == nil {
				e, _ := value.(inputs.EgressIPs)
				all = append(all, last+"="+e.Of([]netip.Addr{netip.MustParseAddr("10.128.0." + last)}).String())
			} else {
				all = append(all, last+"="+ips[0])
			}
		}
		return all
	}
	both := sources()
	a.want(both...)
	bundles := c.bridge.Bundles()
	c.hostSubnets.Modify(unreachable(hostSubnet("node2", "192.0.2.102")))
	a.want(sources("192.0.2.103")...)
	if got := c.bridge.Bundles() - bundles; got != 1 {
		t.Errorf("got %d bundles, want 1", got)
	}
	c.hostSubnets.Modify(unreachable(hostSubnet("node3", "192.0.2.103")))
	a.want(both...)
	c.hostSubnets.Modify(hostSubnet("node2", "192.0.2.102"))
	a.want(sources("192.0.2.102")...)
	// The controller moves the IP of the node that failed.
	c.hostSubnets.Modify(unreachable(hostSubnet("node3")))
	c.hostSubnets.Modify(hostSubnet("node2", "192.0.2.102", "192.0.2.103"))
	flows[1] = "192.0.2.103->192.0.2.2"
	a.want(append(both[2:], flows...)...)
}

// The flows of an egress IP and its pods change in one update of the store, which is one bundle.
func TestEgressIPs_oneUpdate(t *testing.T) {
	c := newCluster(t)
	c.hostSubnets.Add(hostSubnet("node1", "192.0.2.100"))
	c.netNamespaces.Add(netNamespace("shop@u1", "192.0.2.100"))
	a, _, _ := c.boot(t) // handles no events
	a.attach("shop@u1/5")
	c.hostSubnets.Modify(hostSubnet("node1"))
	await.OK(t, testTimeout, func(context.Context) error {
		if o := reconcile.Cached[networkv1.HostSubnet](a.options.HostSubnets, "node1"); len(o.EgressIPs) > 0 {
			return errors.New("the cache has the previous HostSubnet")
		}
		return nil
	})
	a.EgressIPs.mu.Lock()
	defer a.EgressIPs.mu.Unlock()
	change := a.newChange()
	a.hostSubnetChange(change, "node1")
	change.build()
	if u := change.update; len(u.Changes) != 1 || len(u.Publish) != 1 {
		t.Errorf("got %d changes of flows and %d inputs in the update, want one of each", len(u.Changes), len(u.Publish))
	}
}

// The pods of a previous Namespace of the same name get none of the current one's egress IPs.
func TestEgressIPs_previousNamespace(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.hostSubnets.Add(hostSubnet("node1", "192.0.2.100"))
	c.netNamespaces.Add(netNamespace("shop@u1", "192.0.2.100"))
	c.netNamespaces.Add(netNamespace("free@f1"))
	a, _ := c.start(t, "shop@u1/5", "free@f1/7")
	a.want("5=192.0.2.100", "7=node", local)
	withoutUID := netNamespace("shop@u1", "192.0.2.100")
	withoutUID.Annotations = nil
	c.netNamespaces.Modify(withoutUID)
	c.netNamespaces.Modify(netNamespace("free@f2", "192.0.2.100"))
	a.want("5="+unusable, "7=node")
	c.netNamespaces.Delete(netNamespace("free@f2"))
	a.want("5=192.0.2.100", "7=node", local)

	c.netNamespaces.Delete(netNamespace("shop@u1"))
	a.want("5="+unusable, "7=node")
	c.netNamespaces.Add(netNamespace("shop@u2", "192.0.2.100"))
	a.want("5="+unusable, "7=node", local)
	a.attach("shop@u2/6")
	a.want("5="+unusable, "6=192.0.2.100", "7=node", local)
	c.netNamespaces.Modify(netNamespace("shop@u2"))
	a.want("5="+unusable, "6=node", "7=node")
	// The UID was wrong for a moment.
	c.netNamespaces.Modify(netNamespace("shop@u1", "192.0.2.100"))
	a.want("5=192.0.2.100", "6=node", "7=node", local)
}

// A restarted agent installs the same flows, also those of pods whose Namespace it does not know.
func TestEgressIPs_restart(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.hostSubnets.Add(hostSubnet("node1", "192.0.2.100"))
	c.hostSubnets.Add(hostSubnet("node2", "192.0.2.101"))
	c.netNamespaces.Add(netNamespace("shop@u1", "192.0.2.100"))
	c.netNamespaces.Add(netNamespace("bank@u2", "192.0.2.101"))
	c.netNamespaces.Add(netNamespace("free@u3"))
	pods := []string{"shop@u1/5", "bank@u2/6", "free@u3/7"}
	a, stop := c.start(t, pods...)
	want := []string{"5=192.0.2.100", "6=192.0.2.101", "7=node", local, remote}
	a.want(want...)
	a.wantHost("host [192.0.2.100] flows [192.0.2.100]")
	stop()

	changes, sets := c.bridge.Changes(), len(c.log)
	a, start, stop := c.boot(t)
	for _, pod := range pods {
		a.attach(pod)
	}
	if got := len(c.log); got != sets {
		t.Error("the host changed before the first write")
	}
	start()
	await.OK(t, testTimeout, func(context.Context) error {
		a.cluster.mu.Lock()
		defer a.cluster.mu.Unlock()
		if len(a.log) == sets {
			return errors.New("the host's egress IPs are not set")
		}
		return nil
	})
	a.wantHost("host [192.0.2.100] flows [192.0.2.100]")
	a.want(want...)
	if got := c.bridge.Changes() - changes; got != 0 {
		t.Errorf("the second agent changed %d flows", got)
	}
	stop()

	// The namespaces lose their IPs while no agent runs, and the cache does not have the pods.
	c.netNamespaces.Modify(netNamespace("shop@u1"))
	c.netNamespaces.Modify(netNamespace("bank@u2"))
	c.hostSubnets.Modify(hostSubnet("node1"))
	a, start, _ = c.boot(t)
	for pod, namespace := range map[string]string{"shop@u1/5": "shop", "bank@u2/6": "bank", "free@u3/7": "free"} {
		a.attachUnknown(namespace, pod)
	}
	start()
	a.want("5="+unusable, "6="+unusable, "7=node")
	a.wantHost("host [] flows []")
}

// Only what changed is compiled and written, with many namespaces and egress IPs.
func TestEgressIPs_manyNamespaces(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	const namespaces, ips = 1_000, 100
	var all []string
	for i := range ips {
		all = append(all, fmt.Sprintf("198.51.100.%d", i+1))
	}
	c.hostSubnets.Add(hostSubnet("node1", all[:50]...))
	c.hostSubnets.Add(hostSubnet("node2", all[50:]...))
	for i := range namespaces {
		c.netNamespaces.Add(netNamespace(fmt.Sprintf("n%d@u%d", i, i), all[i%ips])) // in conflict, but for those below
	}
	for i := ips; i < namespaces; i++ {
		c.netNamespaces.Modify(netNamespace(fmt.Sprintf("n%d@u%d", i, i)))
	}
	a, _ := c.start(t, "n1@u1/5", "n2@u2/6", "n500@u500/7")
	a.wantHost(fmt.Sprintf("host %v flows %v", addrsOf(all[:50]), sortedTexts(all[:50])))
	await.OK(t, testTimeout, func(context.Context) error {
		a.EgressIPs.mu.Lock()
		defer a.EgressIPs.mu.Unlock()
		if got := len(a.namespaces); got != ips+1 {
			return fmt.Errorf("the agent has %d namespaces in memory, want those with egress IPs and those with pods: %d", got, ips+1)
		}
		return nil
	})
	settle := func(what string, want int, change func(), source string) {
		t.Helper()
		before := c.bridge.Changes()
		change()
		await.OK(t, testTimeout, func(context.Context) error {
			for _, s := range a.sources() {
				if s == source {
					return nil
				}
			}
			return fmt.Errorf("%s: no %s in the flows", what, source)
		})
		if got := c.bridge.Changes() - before; got != want {
			t.Errorf("%s: changed %d flows, want %d", what, got, want)
		}
	}
	const localFlows, remoteFlows = 5, 1
	settle("a namespace gets an IP", a.podChanges("7")+localFlows, func() {
		c.hostSubnets.Modify(hostSubnet("node1", append(all[:50:50], "198.51.100.200")...))
		a.awaitHosting("198.51.100.200", "node1")
		c.netNamespaces.Modify(netNamespace("n500@u500", "198.51.100.200"))
	}, "7=198.51.100.200")
	settle("a namespace without pods here gets a second IP", remoteFlows, func() {
		c.hostSubnets.Modify(hostSubnet("node2", append(all[50:100:100], "198.51.100.201")...))
		a.awaitHosting("198.51.100.201", "node2")
		c.netNamespaces.Modify(netNamespace("n600@u600", "198.51.100.201"))
	}, "198.51.100.201->192.0.2.2")
}

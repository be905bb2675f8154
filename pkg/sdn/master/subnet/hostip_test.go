package subnet

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// cluster is a controller whose caches are always up to date.
type cluster struct {
	*testing.T
	*fixture
}

func newCluster(t *testing.T) *cluster { return &cluster{t, newFixture(t, state{})} }

// node creates or replaces a Node.
func (c *cluster) node(name string, internalIPs ...string) {
	c.Helper()
	o := testNode("uid-"+name, internalIPs...)
	o.Name = name
	nodes := c.kube.CoreV1().Nodes()
	_, err := nodes.Create(c.Context(), o, metav1.CreateOptions{})
	if err != nil {
		_, err = nodes.Update(c.Context(), o, metav1.UpdateOptions{})
	}
	if err != nil {
		c.Fatal(err)
	}
	if err := c.nodeIndexer.Update(o); err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) deleteNode(name string) {
	c.Helper()
	if err := c.kube.CoreV1().Nodes().Delete(c.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
	if err := c.nodeIndexer.Delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		c.Fatal(err)
	}
}

// hostSubnet creates a HostSubnet of that age.
func (c *cluster) hostSubnet(name, hostIP, subnet string, age time.Duration, annotations map[string]string) {
	c.Helper()
	o := testHostSubnet("", hostIP, subnet)
	o.Name, o.Host, o.Annotations = name, name, annotations
	o.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-age))
	if err := c.network.Tracker().Add(o); err != nil {
		c.Fatal(err)
	}
	if err := c.hostSubnetIndexer.Add(o); err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) hostSubnetOfNode(name, hostIP, subnet string, age time.Duration) {
	c.Helper()
	c.hostSubnet(name, hostIP, subnet, age, map[string]string{networkv1.NodeUIDAnnotation: "uid-" + name})
}

// syncAll syncs the names one after the other until each is confirmed, and returns the last error of each.
func (c *cluster) syncAll(names ...string) map[string]error {
	c.Helper()
	errs := map[string]error{}
	for _, name := range names {
		for range 3 { // propose, confirm, correct
			errs[name] = c.sync(c.Context(), name)
			o, err := c.network.NetworkV1().HostSubnets().Get(c.Context(), name, metav1.GetOptions{})
			if err != nil {
				if old, ok, _ := c.hostSubnetIndexer.GetByKey(name); ok {
					err = c.hostSubnetIndexer.Delete(old)
				} else {
					err = nil
				}
			} else {
				err = c.hostSubnetIndexer.Update(o)
			}
			if err != nil {
				c.Fatal(err)
			}
		}
	}
	return errs
}

// want compares the hostIP of each HostSubnet, "" for none.
func (c *cluster) want(hostIPs map[string]string) {
	c.Helper()
	for name, want := range hostIPs {
		got := ""
		if o, err := c.network.NetworkV1().HostSubnets().Get(c.Context(), name, metav1.GetOptions{}); err == nil {
			got = o.HostIP
		}
		if got != want {
			c.Errorf("HostSubnet %s: got hostIP %q, want %q", name, got, want)
		}
	}
}

func (c *cluster) wantEvent(reason string, words ...string) {
	c.Helper()
	events := c.recorded()
	if !slices.ContainsFunc(events, func(e string) bool {
		return strings.HasPrefix(e, "Warning "+reason+" ") && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e, w) })
	}) {
		c.Errorf("got Events %q, want %s with %q", events, reason, words)
	}
}

// A compromised kubelet reports the address of another node. Its HostSubnet is older or younger than that of the other node, or does not exist.
func TestHostIP_ofAnotherNode(t *testing.T) {
	for name, age := range map[string]time.Duration{"older": time.Hour, "younger": -time.Hour, "none": 0} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.node("victim", "192.0.2.1")
			c.hostSubnetOfNode("victim", "192.0.2.1", "10.128.0.0/23", 0)
			previous := ""
			if age != 0 {
				previous = "192.0.2.2"
				c.hostSubnetOfNode("attacker", previous, "10.128.2.0/23", age)
			}
			c.node("attacker", "192.0.2.1")
			c.syncAll("attacker", "victim")
			c.want(map[string]string{"victim": "192.0.2.1", "attacker": previous})
			c.wantEvent("NodeAddressUnusable", "192.0.2.1 belongs to HostSubnet victim", "delete Node victim")

			// Another InternalIP is used.
			c.node("attacker", "192.0.2.1", "192.0.2.3")
			c.syncAll("attacker", "victim")
			c.want(map[string]string{"victim": "192.0.2.1", "attacker": "192.0.2.3"})
		})
	}
}

// Earlier versions could create two HostSubnets with the same hostIP.
func TestHostIP_ofTheOlder(t *testing.T) {
	c := newCluster(t)
	c.node("a", "192.0.2.1")
	c.node("b", "192.0.2.1")
	c.hostSubnetOfNode("a", "192.0.2.1", "10.128.0.0/23", 0)
	c.hostSubnetOfNode("b", "192.0.2.1", "10.128.2.0/23", time.Hour)
	errs := c.syncAll("b", "a")
	if errs["b"] != nil || errs["a"] == nil {
		t.Errorf("got errors %v, want one for a", errs)
	}
	c.wantEvent("NodeAddressUnusable", "192.0.2.1 belongs to HostSubnet b")
}

func TestHostIP_swapped(t *testing.T) {
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		c := newCluster(t)
		c.node("a", "192.0.2.1")
		c.node("b", "192.0.2.2")
		c.syncAll("a", "b")
		c.want(map[string]string{"a": "192.0.2.1", "b": "192.0.2.2"})
		c.node("a", "192.0.2.2") // the kubelet of a is first
		c.syncAll("a")
		c.want(map[string]string{"a": "192.0.2.1", "b": "192.0.2.2"})
		c.node("b", "192.0.2.1")
		c.syncAll(order...)
		c.want(map[string]string{"a": "192.0.2.2", "b": "192.0.2.1"})
	}
}

// Two Nodes report an address in turn, each before the other has stopped to: it belongs to one of them at any time, no subnet changes, and each Node that
// has to wait gets an Event.
func TestHostIP_claimedInTurn(t *testing.T) {
	const shared, rounds = "192.0.2.9", 20
	own := map[string]string{"a": "192.0.2.1", "b": "192.0.2.2"}
	c := newCluster(t)
	for name, addr := range own {
		c.node(name, addr)
	}
	c.syncAll("a", "b")
	subnets := c.subnets()
	c.node("b", shared)
	c.syncAll("b", "a")
	before := c.updates()
	for i := range rounds {
		claims, holds := "a", "b"
		if i%2 == 1 {
			claims, holds = holds, claims
		}
		c.node(claims, shared)
		c.syncAll(claims, holds)
		c.want(map[string]string{holds: shared, claims: own[claims]})
		c.wantEvent("NodeAddressUnusable", shared+" belongs to HostSubnet "+holds)
		c.node(holds, own[holds])
		c.syncAll(claims, holds, claims)
		c.want(map[string]string{claims: shared, holds: own[holds]})
		if diff := cmp.Diff(subnets, c.subnets()); diff != "" {
			t.Fatalf("round %d: subnets (-want +got):\n%s", i, diff)
		}
	}
	if got := c.updates() - before; got != 2*rounds {
		t.Errorf("got %d updates of HostSubnets, want %d: one for each address that moved", got, 2*rounds)
	}
}

// subnets returns the subnets by name of the HostSubnet.
func (c *cluster) subnets() map[string]string {
	c.Helper()
	list, err := c.network.NetworkV1().HostSubnets().List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	all := map[string]string{}
	for _, o := range list.Items {
		all[o.Name] = o.Subnet
	}
	return all
}

// updates returns the number of writes of HostSubnets so far.
func (c *cluster) updates() (count int) {
	for _, a := range c.network.Actions() {
		if a.GetVerb() != "get" && a.GetVerb() != "list" {
			count++
		}
	}
	return count
}

func TestHostIP_ofAReinstalledNode(t *testing.T) {
	t.Run("old Node deleted", func(t *testing.T) {
		c := newCluster(t)
		c.node("old", "192.0.2.1")
		c.syncAll("old")
		c.node("new", "192.0.2.1")
		c.syncAll("new")
		c.want(map[string]string{"old": "192.0.2.1", "new": ""})
		c.deleteNode("old")
		c.syncAll("new") // also before the HostSubnet is deleted
		c.want(map[string]string{"new": "192.0.2.1"})
		c.syncAll("old")
		c.want(map[string]string{"old": "", "new": "192.0.2.1"})
	})
	t.Run("old Node reports another", func(t *testing.T) {
		c := newCluster(t)
		c.node("old", "192.0.2.1")
		c.syncAll("old")
		c.node("old", "192.0.2.7")
		c.node("new", "192.0.2.1")
		c.syncAll("new", "old")
		c.want(map[string]string{"old": "192.0.2.7", "new": "192.0.2.1"})
	})
	t.Run("same name", func(t *testing.T) {
		c := newCluster(t)
		c.node("old", "192.0.2.1")
		c.hostSubnetOfNode("old", "192.0.2.1", "10.128.0.0/23", 0)
		o := testNode("uid2", "192.0.2.1")
		o.Name = "old"
		if _, err := c.kube.CoreV1().Nodes().Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := c.nodeIndexer.Update(o); err != nil {
			t.Fatal(err)
		}
		c.syncAll("old")
		c.want(map[string]string{"old": "192.0.2.1"})
	})
}

// The HostSubnet of an external machine has no Node, and owns its hostIP while it exists.
func TestHostIP_ofAnExternalMachine(t *testing.T) {
	machine := map[string]string{networkv1.AssignHostSubnetAnnotation: "true"}
	t.Run("first", func(t *testing.T) {
		c := newCluster(t)
		c.hostSubnet("machine", "192.0.2.1", "10.128.0.0/23", 0, machine)
		c.node("node", "192.0.2.1")
		c.syncAll("machine", "node")
		c.want(map[string]string{"machine": "192.0.2.1", "node": ""})
		c.wantEvent("NodeAddressUnusable", "192.0.2.1 belongs to HostSubnet machine")
	})
	t.Run("second", func(t *testing.T) {
		c := newCluster(t)
		c.node("node", "192.0.2.1")
		c.syncAll("node")
		c.hostSubnet("machine", "192.0.2.1", "10.128.2.0/23", time.Hour, machine)
		errs := c.syncAll("machine", "node")
		if errs["node"] != nil || errs["machine"] == nil {
			t.Errorf("got errors %v, want one for machine", errs)
		}
		c.wantEvent("InvalidHostSubnet", "hostIP: 192.0.2.1 belongs to HostSubnet node")
	})
}

// The cache does not have the owner's Node yet: the controller reads it from the API server.
func TestHostIP_ownerNotCached(t *testing.T) {
	c := newCluster(t)
	c.node("victim", "192.0.2.1")
	c.hostSubnetOfNode("victim", "192.0.2.1", "10.128.0.0/23", 0)
	if err := c.nodeIndexer.Delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "victim"}}); err != nil {
		t.Fatal(err)
	}
	c.node("attacker", "192.0.2.1")
	c.syncAll("attacker")
	c.want(map[string]string{"attacker": ""})
}

func TestAddByHostIP(t *testing.T) {
	c := newCluster(t)
	c.node("old", "192.0.2.1")
	c.syncAll("old")
	c.node("new", "192.0.2.1")
	c.addByHostIP("192.0.2.1")
	got := c.emptyQueue(t)
	slices.Sort(got)
	if want := []string{"new", "old"}; !slices.Equal(got, want) {
		t.Errorf("got queued %q, want %q", got, want)
	}
}

func TestCompareHostSubnets(t *testing.T) {
	o := func(name string, age time.Duration, annotation string) *networkv1.HostSubnet {
		h := testHostSubnet("", "192.0.2.1", "")
		h.Name, h.CreationTimestamp = name, metav1.NewTime(time.Unix(1000, 0).Add(-age))
		if annotation != "" {
			h.Annotations = map[string]string{annotation: "1"}
		}
		return h
	}
	list := []*networkv1.HostSubnet{
		o("z", 2*time.Second, networkv1.NodeUIDAnnotation), o("y", time.Second, networkv1.NodeUIDAnnotation),
		o("a", 3*time.Second, networkv1.AssignHostSubnetAnnotation), o("b", 3*time.Second, ""),
	}
	if !slices.IsSortedFunc(list, config.CompareHostSubnets) {
		t.Error("got another order, want Nodes' first, then the older, then by name")
	}
}

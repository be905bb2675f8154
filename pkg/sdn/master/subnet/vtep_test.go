package subnet

import (
	"slices"
	"strings"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// vteps is the controller with Nodes and HostSubnets, of any names, that its caches have as soon as the API server does.
type vteps struct {
	*testing.T
	*fixture
}

func newVTEPs(t *testing.T) *vteps { return &vteps{t, newFixture(t, scene{})} }

// node creates or replaces a Node.
func (v *vteps) node(name string, internalIPs ...string) {
	v.Helper()
	o := testNode("uid-"+name, internalIPs...)
	o.Name = name
	nodes := v.kube.CoreV1().Nodes()
	_, err := nodes.Create(v.Context(), o, metav1.CreateOptions{})
	if err != nil {
		_, err = nodes.Update(v.Context(), o, metav1.UpdateOptions{})
	}
	if err != nil {
		v.Fatal(err)
	}
	if err := v.reported.Update(o); err != nil {
		v.Fatal(err)
	}
}

func (v *vteps) deleteNode(name string) {
	v.Helper()
	if err := v.kube.CoreV1().Nodes().Delete(v.Context(), name, metav1.DeleteOptions{}); err != nil {
		v.Fatal(err)
	}
	if err := v.reported.Delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		v.Fatal(err)
	}
}

// hostSubnet creates one, as old as age.
func (v *vteps) hostSubnet(name, hostIP, subnet string, age time.Duration, annotations map[string]string) {
	v.Helper()
	o := testHostSubnet("", hostIP, subnet)
	o.Name, o.Host, o.Annotations = name, name, annotations
	o.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-age))
	if err := v.network.Tracker().Add(o); err != nil {
		v.Fatal(err)
	}
	if err := v.written.Add(o); err != nil {
		v.Fatal(err)
	}
}

func (v *vteps) nodesHostSubnet(name, hostIP, subnet string, age time.Duration) {
	v.Helper()
	v.hostSubnet(name, hostIP, subnet, age, map[string]string{networkv1.NodeUIDAnnotation: "uid-" + name})
}

// serve syncs the names in turn, and returns the last error of each.
func (v *vteps) serve(names ...string) map[string]error {
	v.Helper()
	errs := map[string]error{}
	for _, name := range names {
		for range 3 { // propose, confirm, correct
			errs[name] = v.sync(v.Context(), name)
			o, err := v.network.NetworkV1().HostSubnets().Get(v.Context(), name, metav1.GetOptions{})
			if err != nil {
				if old, ok, _ := v.written.GetByKey(name); ok {
					err = v.written.Delete(old)
				} else {
					err = nil
				}
			} else {
				err = v.written.Update(o)
			}
			if err != nil {
				v.Fatal(err)
			}
		}
	}
	return errs
}

// want compares the hostIP of each HostSubnet, "" for none.
func (v *vteps) want(hostIPs map[string]string) {
	v.Helper()
	for name, want := range hostIPs {
		got := ""
		if o, err := v.network.NetworkV1().HostSubnets().Get(v.Context(), name, metav1.GetOptions{}); err == nil {
			got = o.HostIP
		}
		if got != want {
			v.Errorf("HostSubnet %s: got hostIP %q, want %q", name, got, want)
		}
	}
}

func (v *vteps) wantEvent(reason string, words ...string) {
	v.Helper()
	events := v.recorded()
	if !slices.ContainsFunc(events, func(e string) bool {
		return strings.HasPrefix(e, "Warning "+reason+" ") && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e, w) })
	}) {
		v.Errorf("got Events %q, want %s with %q", events, reason, words)
	}
}

// A stolen kubelet reports another node's address, with an older or a younger HostSubnet than the other's, or with none yet.
func TestVTEP_belongsToTheNodeThatHasIt(t *testing.T) {
	for name, age := range map[string]time.Duration{"older": time.Hour, "younger": -time.Hour, "none yet": 0} {
		t.Run(name, func(t *testing.T) {
			v := newVTEPs(t)
			v.node("victim", "192.0.2.1")
			v.nodesHostSubnet("victim", "192.0.2.1", "10.128.0.0/23", 0)
			had := ""
			if age != 0 {
				had = "192.0.2.2"
				v.nodesHostSubnet("thief", had, "10.128.2.0/23", age)
			}
			v.node("thief", "192.0.2.1")
			v.serve("thief", "victim")
			v.want(map[string]string{"victim": "192.0.2.1", "thief": had})
			v.wantEvent("NodeAddressUnusable", "192.0.2.1 belongs to HostSubnet victim", "delete Node victim")

			// Another InternalIP is used.
			v.node("thief", "192.0.2.1", "192.0.2.3")
			v.serve("thief", "victim")
			v.want(map[string]string{"victim": "192.0.2.1", "thief": "192.0.2.3"})
		})
	}
}

// Two HostSubnets of one address, from before it was unique: the older holds it.
func TestVTEP_belongsToTheOlder(t *testing.T) {
	v := newVTEPs(t)
	v.node("a", "192.0.2.1")
	v.node("b", "192.0.2.1")
	v.nodesHostSubnet("a", "192.0.2.1", "10.128.0.0/23", 0)
	v.nodesHostSubnet("b", "192.0.2.1", "10.128.2.0/23", time.Hour)
	errs := v.serve("b", "a")
	if errs["b"] != nil || errs["a"] == nil {
		t.Errorf("got errors %v, want one for a", errs)
	}
	v.wantEvent("NodeAddressUnusable", "192.0.2.1 belongs to HostSubnet b")
}

func TestVTEP_swapped(t *testing.T) {
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		v := newVTEPs(t)
		v.node("a", "192.0.2.1")
		v.node("b", "192.0.2.2")
		v.serve("a", "b")
		v.want(map[string]string{"a": "192.0.2.1", "b": "192.0.2.2"})
		v.node("a", "192.0.2.2") // its kubelet reports first
		v.serve("a")
		v.want(map[string]string{"a": "192.0.2.1", "b": "192.0.2.2"})
		v.node("b", "192.0.2.1")
		v.serve(order...)
		v.want(map[string]string{"a": "192.0.2.2", "b": "192.0.2.1"})
	}
}

func TestVTEP_ofAReinstalledNode(t *testing.T) {
	t.Run("old Node deleted", func(t *testing.T) {
		v := newVTEPs(t)
		v.node("old", "192.0.2.1")
		v.serve("old")
		v.node("new", "192.0.2.1")
		v.serve("new")
		v.want(map[string]string{"old": "192.0.2.1", "new": ""})
		v.deleteNode("old")
		v.serve("new") // also before the HostSubnet is deleted
		v.want(map[string]string{"new": "192.0.2.1"})
		v.serve("old")
		v.want(map[string]string{"old": "", "new": "192.0.2.1"})
	})
	t.Run("old Node reports another", func(t *testing.T) {
		v := newVTEPs(t)
		v.node("old", "192.0.2.1")
		v.serve("old")
		v.node("old", "192.0.2.7")
		v.node("new", "192.0.2.1")
		v.serve("new", "old")
		v.want(map[string]string{"old": "192.0.2.7", "new": "192.0.2.1"})
	})
	t.Run("same name", func(t *testing.T) {
		v := newVTEPs(t)
		v.node("old", "192.0.2.1")
		v.nodesHostSubnet("old", "192.0.2.1", "10.128.0.0/23", 0)
		o := testNode("uid2", "192.0.2.1")
		o.Name = "old"
		if _, err := v.kube.CoreV1().Nodes().Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := v.reported.Update(o); err != nil {
			t.Fatal(err)
		}
		v.serve("old")
		v.want(map[string]string{"old": "192.0.2.1"})
	})
}

// A machine's HostSubnet has no Node: users wrote it, and it holds its address while it exists.
func TestVTEP_ofAMachine(t *testing.T) {
	machine := map[string]string{networkv1.AssignHostSubnetAnnotation: "true"}
	t.Run("first", func(t *testing.T) {
		v := newVTEPs(t)
		v.hostSubnet("machine", "192.0.2.1", "10.128.0.0/23", 0, machine)
		v.node("node", "192.0.2.1")
		v.serve("machine", "node")
		v.want(map[string]string{"machine": "192.0.2.1", "node": ""})
		v.wantEvent("NodeAddressUnusable", "192.0.2.1 belongs to HostSubnet machine")
	})
	t.Run("second", func(t *testing.T) {
		v := newVTEPs(t)
		v.node("node", "192.0.2.1")
		v.serve("node")
		v.hostSubnet("machine", "192.0.2.1", "10.128.2.0/23", time.Hour, machine)
		errs := v.serve("machine", "node")
		if errs["node"] != nil || errs["machine"] == nil {
			t.Errorf("got errors %v, want one for the machine", errs)
		}
		v.wantEvent("InvalidHostSubnet", "hostIP: 192.0.2.1 belongs to HostSubnet node")
	})
}

// The cache has not heard of the holder's Node: the API server is asked.
func TestVTEP_cacheLacksTheNode(t *testing.T) {
	v := newVTEPs(t)
	v.node("victim", "192.0.2.1")
	v.nodesHostSubnet("victim", "192.0.2.1", "10.128.0.0/23", 0)
	if err := v.reported.Delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "victim"}}); err != nil {
		t.Fatal(err)
	}
	v.node("thief", "192.0.2.1")
	v.serve("thief")
	v.want(map[string]string{"thief": ""})
}

// An address that becomes free is work for the others that report it.
func TestVTEP_freedWakesItsClaimants(t *testing.T) {
	v := newVTEPs(t)
	v.node("old", "192.0.2.1")
	v.serve("old")
	v.node("new", "192.0.2.1")
	v.queueClaimants("192.0.2.1")
	got := v.emptyQueue(t)
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

package e2e

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// testInvalidNetID: with a reserved netid, running and new pods use the assigned VNID, before and after the agents are restarted.
func testInvalidNetID(t *testing.T, c *cluster) {
	m := newMatrix(t, c, 2, 3)
	r := newRecorder(t, m)
	r.check(t)
	namespace := m.tenants[0].namespace
	before := c.events(t, namespace)
	patch := func(text string) {
		t.Helper()
		if _, err := c.network.NetworkV1().NetNamespaces().Patch(t.Context(), namespace, types.MergePatchType, []byte(text), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"netid":5}`)
	eventually(t, syncTime, "the controller reports it", func(ctx context.Context) error {
		if c.events(t, namespace) == before {
			return fmt.Errorf("no Event InvalidNetNamespace")
		}
		return nil
	})
	r.check(t)
	for i, node := range []string{node1, node2, node3} {
		c.killAgent(t, node)
		later := c.run(t, namespace, netexec(fmt.Sprint("later", i), node))[0]
		meet(t, later.netns, m.members[0].addr)
		mustNotReach(t, "new pod of another tenant", asksHTTP(later.netns, m.members[3].addr, httpPort), asksHTTP(later.netns, m.members[0].addr, httpPort))
	}
	r.check(t)
	o, err := c.network.NetworkV1().NetNamespaces().Get(t.Context(), namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := config.ParseNetNamespace(o); err != nil || uint32(n.VNID) != m.tenants[0].vnid || o.NetID != 5 {
		t.Errorf("got %+v, %v, want netid 5 and VNID %d in use", n, err, m.tenants[0].vnid)
	}
	c.changeNetwork(t, namespace, "isolate")
	m.learn(t)
	r.converge(t, m.verdicts())
	r.check(t)
}

// events counts the Events that report the NetNamespace as invalid.
func (c *cluster) events(t *testing.T, netNamespace string) (n int32) {
	t.Helper()
	list, err := c.kube.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{
		FieldSelector: "reason=InvalidNetNamespace,involvedObject.name=" + netNamespace,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		n += max(e.Count, 1)
	}
	return n
}

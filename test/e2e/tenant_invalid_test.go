package e2e

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
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
		if _, err := c.Network.NetworkV1().NetNamespaces().Patch(t.Context(), namespace, types.MergePatchType, []byte(text), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"netid":5}`)
	fixture.Eventually(t, fixture.SyncTime, "the controller reports it", func(ctx context.Context) error {
		if c.events(t, namespace) == before {
			return fmt.Errorf("no Event InvalidNetNamespace")
		}
		return nil
	})
	r.check(t)
	for i, node := range []string{fixture.Node1, fixture.Node2, fixture.Node3} {
		c.killAgent(t, node)
		later := c.Run(t, namespace, fixture.Netexec(fmt.Sprint("later", i), node))[0]
		fixture.Meet(t, later.NetNS, m.members[0].Addr)
		fixture.MustNotReach(t, "new pod of another tenant", fixture.AsksHTTP(later.NetNS, m.members[3].Addr, fixture.HTTPPort), fixture.AsksHTTP(later.NetNS, m.members[0].Addr, fixture.HTTPPort))
	}
	r.check(t)
	o, err := c.Network.NetworkV1().NetNamespaces().Get(t.Context(), namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := config.ParseNetNamespace(o); err != nil || uint32(n.VNID) != m.tenants[0].vnid || o.NetID != 5 {
		t.Errorf("got %+v, %v, want netid 5 and VNID %d in use", n, err, m.tenants[0].vnid)
	}
	c.ChangeNetwork(t, namespace, "isolate")
	m.learn(t)
	r.converge(t, m.verdicts())
	r.check(t)
}

// events counts the Events that report the NetNamespace as invalid.
func (c *cluster) events(t *testing.T, netNamespace string) (n int32) {
	t.Helper()
	list, err := c.Kube.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{
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

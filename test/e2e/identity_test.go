package e2e

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
	"github.com/ovsdn/ovsdn/test/tier"
)

// identityLab is the name of the lab of TestIdentity_restartedAgent.
const identityLab = "e2e-identity"

// TestIdentity_restartedAgent: an agent that restarts takes a sandbox whose pod was deleted for no other pod, and its namespace for no other. The lab runs
// the agents itself, since kubelet is stopped in the meantime.
func TestIdentity_restartedAgent(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: has a lab of its own; TestCapabilities sees the same with the running agent")
	}
	c := ownCluster(t, identityLab, lab.Shape{Nodes: 2, Mode: lab.Multitenant, ServiceProxy: lab.External, Install: lab.Processes})
	x := trioOn(t, c)
	t.Run("namespace created again", func(t *testing.T) { seeNamespaceAgain(t, x) })
	c.haveMode(t, config.ModeNetworkPolicy)
	t.Run("pod replaced", func(t *testing.T) { seePodReplaced(t, x) })
}

// A sandbox runs on after its pod was deleted, since kubelet is stopped. In mode multitenant another namespace of the same name is another tenant, for the
// running agent and for a restarted one.
func seeNamespaceAgain(t *testing.T, x *trio) {
	const name = "e2e-again"
	namespaces := x.Kube.CoreV1().Namespaces()
	x.namedNamespace(t, name, nil)
	old := x.Run(t, name, fixture.Netexec("old", fixture.Node2))[0]
	x.forceDelete(t, name, old)
	if err := namespaces.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, fixture.PodTime, "namespace "+name+" is deleted", func(ctx context.Context) error {
		ns, err := reconcile.OrNil(namespaces.Get(ctx, name, metav1.GetOptions{}))
		if ns != nil {
			err = errors.New("it exists")
		}
		return err
	})
	if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pods := x.Run(t, name, fixture.Netexec("new", fixture.Node1), fixture.Netexec("peer", fixture.Node1))
	separate := func(t *testing.T) {
		control := fixture.AsksHTTP(pods[1].NetNS, pods[0].Addr, fixture.HTTPPort)
		for direction, try := range map[string]func(context.Context) error{
			"from": fixture.AsksHTTP(old.NetNS, pods[0].Addr, fixture.HTTPPort), "to": fixture.AsksHTTP(pods[0].NetNS, old.Addr, fixture.HTTPPort),
		} {
			t.Run(direction, func(t *testing.T) {
				tier.Parallel(t)
				fixture.MustNotReach(t, direction+" a sandbox of the previous namespace", try, control)
			})
		}
	}
	x.beforeAndAfterRestart(t, separate)
	x.startKubelet(t)
}

// A sandbox runs on after its pod was replaced by one of the same name with other labels: policies treat it as the pod that it was, or as an unknown one.
func seePodReplaced(t *testing.T, x *trio) {
	ns := x.Namespace(t)
	x.SetPolicy(t, ingressPolicy(ns, "server", "server", "admin"))
	client := fixture.Netexec("client", fixture.Node2)
	pods := x.Run(t, ns, fixture.Netexec("server", fixture.Node2), client)
	server, old := pods[0], pods[1]
	x.forceDelete(t, ns, old)
	replaced := fixture.Netexec("client", fixture.Node1)
	replaced.Labels["app"] = "admin"
	admin := x.Run(t, ns, replaced)[0]
	separate := func(t *testing.T) {
		fixture.MustNotReach(t, "a server that admits the pod's successor",
			fixture.AsksHTTP(old.NetNS, server.Addr, fixture.HTTPPort), fixture.AsksHTTP(admin.NetNS, server.Addr, fixture.HTTPPort))
	}
	x.beforeAndAfterRestart(t, separate)
	x.startKubelet(t)
}

// forceDelete stops kubelet on node2, where the pod runs, and deletes the pod, whose processes continue.
func (x *trio) forceDelete(t *testing.T, namespace string, p pod) {
	t.Helper()
	x.service(t, fixture.Node2, kubeletService, (*lab.Service).Stop)
	t.Cleanup(func() { x.startKubelet(t) })
	now := int64(0)
	if err := x.Kube.CoreV1().Pods(namespace).Delete(t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
}

// beforeAndAfterRestart also runs the test with a restarted agent, unless the stopped kubelet would have to start it.
func (x *trio) beforeAndAfterRestart(t *testing.T, test func(*testing.T)) {
	t.Helper()
	t.Run("running agent", test)
	if x.Shape().Install != lab.Processes {
		return
	}
	x.killAgent(t, fixture.Node2)
	x.available(t, fixture.Node2)
	t.Run("restarted agent", test)
}

// startKubelet starts kubelet on node2, which ends sandboxes of deleted pods.
func (x *trio) startKubelet(t *testing.T) {
	t.Helper()
	x.service(t, fixture.Node2, kubeletService, (*lab.Service).Start)
}

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// ovsLab is the name of the lab whose nodes have no Open vSwitch of their own.
const ovsLab = "e2e-ovs"

// Hosts without Open vSwitch report it on their Nodes, get one by deploy/overlays/ovs, retain their network when it is replaced, and are restored.
func TestOpenVSwitchFromItsImage(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: has a lab of its own")
	}
	c := ownCluster(t, ovsLab, lab.Shape{Nodes: 2, Mode: lab.Subnet, ServiceProxy: lab.External, Install: lab.None, Switch: lab.ImageSwitch})
	before := c.allSettings(t)

	t.Run("hosts without any report the remedy", func(t *testing.T) {
		began := time.Now()
		c.applyWithoutSwitch(t)
		words := []string{"no Open vSwitch runs on this host", "deploy/overlays/ovs"}
		c.unavailable(t, fixture.Node1, words...)
		c.unavailable(t, fixture.Node2, words...)
		c.Warned(t, began, "Node", fixture.Node1, words...)
	})
	x := c.install(t)
	t.Run("a new pod of it retains the database", func(t *testing.T) { testNewSwitch(t, x) })
	t.Run("uninstallation", func(t *testing.T) {
		if err := c.DeletePods(t.Context(), x.namespace); err != nil {
			t.Fatal(err)
		}
		c.uninstall(t)
		for node := range before {
			// The folder stays, with nothing in it. The bridge of the underlay is the administrator's.
			c.Output(t, node, "sh", "-ec", "rmdir /run/openvswitch; ip link delete br-ex; ip link delete ovs-netdev")
		}
		c.haveSettings(t, before)
	})
}

// applyWithoutSwitch installs without Open vSwitch.
func (c *cluster) applyWithoutSwitch(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	installed, err := filepath.Rel(dir, c.InstallDir())
	if err != nil {
		t.Fatal(err)
	}
	kustomization := `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- ` + installed + `
patches:
- patch: |-
    $patch: delete
    apiVersion: apps/v1
    kind: DaemonSet
    metadata: {name: ovsdn-ovs, namespace: ovsdn-system}
`
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, err := c.Kubectl(t.Context(), "apply", "-k", dir); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
}

// testNewSwitch deletes the pod: everything works again with the next one.
func testNewSwitch(t *testing.T, x *trio) {
	ports := []string{"ovs-vsctl", "--format=csv", "--columns=name,type,ofport,external_ids", "find", "Interface"}
	before, old := x.Output(t, fixture.Node1, ports...), x.switchPod(t, fixture.Node1)

	began := time.Now()
	if err := x.DeletePod(t.Context(), old.Namespace, old.Name); err != nil {
		t.Fatal(err)
	}
	deleted := time.Since(began)
	fixture.Eventually(t, fixture.PodTime, "another pod of Open vSwitch is ready", func(ctx context.Context) error {
		if now := x.switchPod(t, fixture.Node1); now.UID == old.UID || !fixture.IsReady(now) {
			return fmt.Errorf("%s is %s", now.Name, now.Status.Phase)
		}
		return nil
	})
	fixture.Meet(t, x.a.NetNS, x.b.Addr)
	fixture.Meet(t, x.a.NetNS, x.c.Addr)
	fixture.Meet(t, x.c.NetNS, x.a.Addr)
	t.Logf("pods reach each other again %.1fs after Open vSwitch's pod was deleted, which ended after %.1fs", time.Since(began).Seconds(), deleted.Seconds())
	if diff := cmp.Diff(before, x.Output(t, fixture.Node1, ports...)); diff != "" {
		t.Errorf("the switch has other ports (-before +now):\n%s", diff)
	}
}

// switchPod is the pod with the node's Open vSwitch. While there is none, it has no name.
func (c *cluster) switchPod(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	pods, err := c.Kube.CoreV1().Pods("ovsdn-system").List(t.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=ovsdn-ovs", FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil || len(pods.Items) > 1 {
		t.Fatalf("%d pods of Open vSwitch on %s: %v", len(pods.Items), node, err)
	}
	if len(pods.Items) == 0 {
		return &corev1.Pod{}
	}
	return &pods.Items[0]
}

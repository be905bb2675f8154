package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// cluster is the lab as a test uses it.
type cluster struct{ *fixture.Cluster }

type (
	machine     = fixture.Machine
	pod         = fixture.Pod
	end         = fixture.End
	flow        = fixture.Flow
	servicePort = fixture.ServicePort
)

// newCluster returns the lab that TestMain, or the author of a test, has brought up.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	return &cluster{run().Cluster(t)}
}

// openCluster is of a lab that is up.
func openCluster(t *testing.T, name string) *cluster {
	t.Helper()
	return &cluster{fixture.Open(t, name)}
}

// ownCluster brings a lab up that is taken down when the test ends.
func ownCluster(t *testing.T, name string, shape lab.Shape) *cluster {
	t.Helper()
	return &cluster{fixture.Own(t, name, shape)}
}

// service does something with a process of a machine.
func (c *cluster) service(t *testing.T, machine, name string, do func(*lab.Service, context.Context) error) {
	t.Helper()
	s, err := c.Service(machine, name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.ProgramTime)
	defer cancel()
	if err := do(s, ctx); err != nil {
		t.Fatal(err)
	}
}

// The names of the product's processes.
const (
	agentService      = "ovsdn-node"
	controllerService = "ovsdn-controller"
)

// product is one of the product's programs, to be run once more beside itself.
type product struct {
	*cluster
	machine string
	pod     string // in which it runs, if kubelet has started it
	args    []string
}

// productCommand is the program with the flags that it runs with.
func (c *cluster) productCommand(t *testing.T, machine, name string) product {
	t.Helper()
	if c.Shape().Install == lab.Processes {
		return product{cluster: c, machine: machine, args: c.serviceArgs(t, machine, name)}
	}
	options := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + name}
	if machine != lab.ControlPlane {
		options.FieldSelector = "spec.nodeName=" + machine
	}
	var one corev1.Pod
	fixture.Eventually(t, fixture.PodTime, "a pod of "+name+" is ready", func(ctx context.Context) error {
		pods, err := c.Kube.CoreV1().Pods("ovsdn-system").List(ctx, options)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return fixture.IsReady(&p) })
		if at < 0 {
			return fmt.Errorf("of %d none is", len(pods.Items))
		}
		one = pods.Items[at]
		return nil
	})
	return product{cluster: c, pod: one.Name, args: c.serviceArgs(t, one.Spec.NodeName, name)}
}

// run runs it with one more flag.
func (p product) run(ctx context.Context, flag string) (stdout, stderr string, err error) {
	args := slices.Concat(p.args, []string{flag})
	if p.pod == "" {
		return p.Exec(ctx, p.machine, args...)
	}
	return p.Kubectl(ctx, slices.Concat([]string{"--namespace=ovsdn-system", "exec", p.pod, "--"}, args)...)
}

// agentArgs is the command line of a node's agent.
func (c *cluster) agentArgs(t *testing.T, node string) []string {
	t.Helper()
	return c.serviceArgs(t, node, agentService)
}

func (c *cluster) serviceArgs(t *testing.T, machine, name string) (args []string) {
	t.Helper()
	fixture.Eventually(t, fixture.ProgramTime, name+" runs", func(ctx context.Context) error {
		s, err := c.Service(machine, name)
		if err != nil {
			return err
		}
		status, err := s.Status(ctx)
		if err != nil {
			return err
		}
		if status.PID == 0 {
			return fmt.Errorf("it is %s: %s", status.State, status.LastEnd)
		}
		cmdline, err := c.TryOutput(ctx, machine, "cat", fmt.Sprintf("/proc/%d/cmdline", status.PID))
		if err != nil {
			return err
		}
		args = strings.Split(strings.TrimSuffix(cmdline, "\x00"), "\x00")
		return nil
	})
	return args
}

// addNode adds a node to the lab that the test removes at the latest when it ends.
func (c *cluster) addNode(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.NodeTime)
	defer cancel()
	began := time.Now()
	name, err := c.AddNode(ctx, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("added %s in %.1fs", name, time.Since(began).Seconds())
	t.Cleanup(func() {
		if slices.Contains(c.Nodes(), name) {
			c.removeNode(t, name)
		}
	})
	return name
}

// removeNode removes the node for good. The controller retains its HostSubnet, and releases it as soon as the Node was deleted long ago, which the test
// writes to the annotation instead of waiting.
func (c *cluster) removeNode(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.NodeTime)
	defer cancel()
	if err := c.RemoveNode(ctx, name, t.Logf); err != nil {
		t.Fatal(err)
	}
	hostSubnets := c.Network.NetworkV1().HostSubnets()
	fixture.Eventually(t, fixture.SyncTime, "HostSubnet "+name+" is that of a deleted Node", func(ctx context.Context) error {
		hs, err := hostSubnets.Get(ctx, name, metav1.GetOptions{})
		if err == nil && !config.IsRetained(hs) {
			err = fmt.Errorf("it has annotations %v", hs.Annotations)
		}
		return err
	})
	longAgo := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, config.NodeDeletedAnnotation, time.Now().Add(-24*time.Hour).UTC().Format(time.RFC3339))
	if _, err := hostSubnets.Patch(ctx, name, types.MergePatchType, longAgo, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, fixture.ProgramTime, "the controller releases HostSubnet "+name, func(ctx context.Context) error {
		hs, err := hostSubnets.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("it exists with annotations %v", hs.Annotations)
		}
		return err
	})
}

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// The lab's first nodes.
const (
	node1 = "node1"
	node2 = "node2"
)

// cluster is the lab as a test uses it.
type cluster struct {
	*lab.Lab
	kube    kubernetes.Interface
	network networkclient.Interface
}

// newCluster finds the lab that TestMain, or whoever is writing a test, has brought up.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	return openCluster(t, os.Getenv(labVariable))
}

// openCluster is of a lab that is up.
func openCluster(t *testing.T, name string) *cluster {
	t.Helper()
	l, err := lab.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	config, err := l.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Lab: l}
	if c.kube, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if c.network, err = networkclient.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	return c
}

// ownCluster brings a lab up that is taken down when the test ends.
func ownCluster(t *testing.T, name string, shape lab.Shape) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	ctx, cancel := context.WithTimeout(t.Context(), upTimeout)
	defer cancel()
	t.Cleanup(func() {
		if t.Failed() {
			if err := saveLogs(name); err != nil {
				t.Log(err)
			}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), downTimeout)
		defer cancel()
		if _, err := lab.Down(ctx, name, progress); err != nil {
			t.Errorf("take the lab down: %v", err)
		}
	})
	if _, err := lab.Up(ctx, lab.Options{Name: name, Shape: shape, Progress: progress}); err != nil {
		t.Fatalf("bring the lab up: %v", err)
	}
	return openCluster(t, name)
}

// machine is a node, the host outside, or the control plane.
type machine struct {
	name  string
	netns wire.NetNS
	root  string // its file system, as a path on this host
}

func (c *cluster) machine(t *testing.T, name string) machine {
	t.Helper()
	// The command line that enters a machine names the PID of its init.
	args, err := c.ExecArgs(t.Context(), name, "true")
	if err != nil {
		t.Fatal(err)
	}
	at := slices.Index(args, "--target")
	if at < 0 || at+1 == len(args) {
		t.Fatalf("%q does not say which process it joins", args)
	}
	proc := filepath.Join("/proc", args[at+1])
	return machine{name: name, netns: wire.NetNS(filepath.Join(proc, "ns/net")), root: filepath.Join(proc, "root")}
}

// addr is a node's address on the fabric.
func (c *cluster) addr(t *testing.T, node string) netip.Addr {
	t.Helper()
	addr, err := c.NodeAddr(node)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// exec runs a command on a machine and returns what it writes to its standard output.
func (c *cluster) exec(t *testing.T, machine string, command ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), syncTime)
	defer cancel()
	out, err := c.tryExec(ctx, machine, command...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c *cluster) tryExec(ctx context.Context, machine string, command ...string) (string, error) {
	stdout, stderr, err := c.Exec(ctx, machine, command...)
	if err != nil {
		return "", fmt.Errorf("%s on %s: %w: %s%s", strings.Join(command, " "), machine, err, stderr, stdout)
	}
	return stdout, nil
}

// service does something with a process of a machine.
func (c *cluster) service(t *testing.T, machine, name string, do func(*lab.Service, context.Context) error) {
	t.Helper()
	s, err := c.Service(machine, name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), programTime)
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
	eventually(t, podTime, "a pod of "+name+" is ready", func(ctx context.Context) error {
		pods, err := c.kube.CoreV1().Pods("ovsdn-system").List(ctx, options)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return isReady(&p) })
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
	eventually(t, programTime, name+" runs", func(ctx context.Context) error {
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
		cmdline, err := c.tryExec(ctx, machine, "cat", fmt.Sprintf("/proc/%d/cmdline", status.PID))
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
	ctx, cancel := context.WithTimeout(t.Context(), nodeTime)
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

func (c *cluster) removeNode(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), nodeTime)
	defer cancel()
	if err := c.RemoveNode(ctx, name, t.Logf); err != nil {
		t.Fatal(err)
	}
}

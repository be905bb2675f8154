package master_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
)

const timeout = 90 * time.Second // a loaded machine is slow

// cluster is a real API server, with the credentials of an administrator and of the controller.
type cluster struct {
	kube    kubernetes.Interface
	network networkclient.Interface
	admin   *rest.Config
	master  *rest.Config
}

// log collects log lines.
type log struct {
	mu    sync.Mutex
	lines []string
}

func (l *log) contains(s string) bool { return l.count(s) > 0 }

// count returns how many lines contain the text.
func (l *log) count(s string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, s) {
			n++
		}
	}
	return n
}

// run starts a controller and returns its log and the function that stops it, which also runs when the test ends. The test fails if the
// controller ends by itself, returns an error or leaks a goroutine.
func (c *cluster) run(t *testing.T, edit func(*master.Config)) (l *log, stop func()) {
	t.Helper()
	c.noLeaks(t)
	return c.start(t, edit)
}

// noLeaks fails the test if at its end a goroutine runs that does not run at the call.
func (c *cluster) noLeaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		// Retry: only idle connections can be closed, and that of a watch is idle shortly after the watch has ended.
		eventually(t, func(context.Context) error {
			c.disconnect()
			return goleak.Find(before)
		})
	})
}

// start is run without the check for leaks, for tests with several controllers.
func (c *cluster) start(t *testing.T, edit func(*master.Config)) (l *log, stop func()) {
	t.Helper()
	cfg := master.Defaults()
	cfg.REST = c.master
	cfg.HealthzAddress, cfg.Metrics.Address = "0", "0" // tests run in parallel
	cfg.Mode = config.ModeSubnet.String()
	cfg.HostSubnetRetention = 0 // most tests wait for released subnets
	if edit != nil {
		edit(&cfg)
	}
	l = &log{}
	logger := funcr.New(func(prefix, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, prefix+args)
	}, funcr.Options{LogTimestamp: true})

	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	ended := make(chan error, 1)
	go func() { ended <- master.Run(ctx, cfg) }()
	stop = sync.OnceFunc(func() {
		select {
		case err := <-ended:
			t.Errorf("the controller ended before stop: %v", err)
		default:
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("Run: %v", err)
				}
			case <-time.After(timeout):
				t.Errorf("the controller did not stop within %v", timeout)
			}
		}
		if t.Failed() {
			t.Log(strings.Join(l.lines, "\n"))
		}
	})
	t.Cleanup(stop)
	return l, stop
}

// disconnect closes the administrator's connections, whose goroutines are no leak of the controller.
func (c *cluster) disconnect() {
	apitest.Disconnect(c.kube, c.network)
}

// wipe deletes all objects that tests and controllers created.
func (c *cluster) wipe(t *testing.T) {
	ctx := context.Background() // the test's context has ended
	all, now := metav1.ListOptions{}, metav1.DeleteOptions{}
	for _, err := range []error{
		c.kube.CoreV1().Nodes().DeleteCollection(ctx, now, all),
		c.kube.CoreV1().Events("default").DeleteCollection(ctx, now, all),
		c.network.NetworkV1().HostSubnets().DeleteCollection(ctx, now, all),
		c.network.NetworkV1().NetNamespaces().DeleteCollection(ctx, now, all),
		c.network.NetworkV1().ClusterNetworks().DeleteCollection(ctx, now, all),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}

func eventually(t *testing.T, check func(context.Context) error) {
	t.Helper()
	await.OK(t, timeout, check)
}

func must[T any](o T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
}

func (c *cluster) addNode(t *testing.T, name, internalIP string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: internalIP}}
	return must(c.kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}))(t)
}

func (c *cluster) deleteNode(t *testing.T, name string) {
	t.Helper()
	if err := c.kube.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// setAddress replaces the node's InternalIPs by one; "": by none.
func (c *cluster) setAddress(t *testing.T, name, internalIP string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		node, err := c.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status.Addresses = nil
		if internalIP != "" {
			node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: internalIP}}
		}
		_, err = c.kube.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

// hostSubnet waits for a confirmed HostSubnet for which check, if not nil, returns no error.
func (c *cluster) hostSubnet(t *testing.T, name string, check func(*networkv1.HostSubnet) error) *networkv1.HostSubnet {
	t.Helper()
	var hs *networkv1.HostSubnet
	eventually(t, func(ctx context.Context) (err error) {
		if hs, err = c.network.NetworkV1().HostSubnets().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if config.IsProposed(hs) {
			return errors.New("the subnet is only proposed")
		}
		if check == nil {
			return nil
		}
		return check(hs)
	})
	return hs
}

// hostSubnets returns the HostSubnets whose subnets are confirmed, by name.
func (c *cluster) hostSubnets(t *testing.T) map[string]networkv1.HostSubnet {
	t.Helper()
	byName := map[string]networkv1.HostSubnet{}
	for _, hs := range must(c.network.NetworkV1().HostSubnets().List(t.Context(), metav1.ListOptions{}))(t).Items {
		if !config.IsProposed(&hs) {
			byName[hs.Name] = hs
		}
	}
	return byName
}

// waitCount waits for n confirmed HostSubnets and returns them.
func (c *cluster) waitCount(t *testing.T, n int) map[string]networkv1.HostSubnet {
	t.Helper()
	eventually(t, func(context.Context) error {
		if got := len(c.hostSubnets(t)); got != n {
			return fmt.Errorf("got %d HostSubnets, want %d", got, n)
		}
		return nil
	})
	return c.hostSubnets(t)
}

func has(subnet string) func(*networkv1.HostSubnet) error {
	return func(hs *networkv1.HostSubnet) error {
		if hs.Subnet != subnet {
			return fmt.Errorf("got subnet %s of %s, want %s", hs.Subnet, hs.Name, subnet)
		}
		return nil
	}
}

// event waits for a warning about the object that contains the text.
func (c *cluster) event(t *testing.T, kind, name, reason, text string) {
	t.Helper()
	c.eventOf(t, corev1.EventTypeWarning, kind, name, reason, text)
}

func (c *cluster) eventOf(t *testing.T, typ, kind, name, reason, text string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		list, err := c.kube.CoreV1().Events("default").List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name + ",reason=" + reason,
		})
		if err != nil {
			return err
		}
		var got []string
		for _, e := range list.Items {
			if e.Type == typ && strings.Contains(e.Message, text) {
				return nil
			}
			got = append(got, e.Message)
		}
		return fmt.Errorf("no Event %s about %s %s that contains %q; got %q", reason, kind, name, text, got)
	})
}

func (c *cluster) clusterNetwork(t *testing.T) *networkv1.ClusterNetwork {
	t.Helper()
	var o *networkv1.ClusterNetwork
	eventually(t, func(ctx context.Context) (err error) {
		o, err = c.network.NetworkV1().ClusterNetworks().Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return o
}

// edit changes ClusterNetwork default.
func (c *cluster) edit(t *testing.T, change func(*networkv1.ClusterNetwork)) *networkv1.ClusterNetwork {
	t.Helper()
	var o *networkv1.ClusterNetwork
	eventually(t, func(ctx context.Context) (err error) {
		if o, err = c.network.NetworkV1().ClusterNetworks().Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err
		}
		change(o)
		o, err = c.network.NetworkV1().ClusterNetworks().Update(ctx, o, metav1.UpdateOptions{})
		return err
	})
	return o
}

// accepted waits until the condition Accepted of the current generation matches, and the active network has these ranges.
func (c *cluster) accepted(t *testing.T, status metav1.ConditionStatus, reason, message string, ranges ...string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		o, err := c.network.NetworkV1().ClusterNetworks().Get(ctx, "default", metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, err := config.Conditions(o)
		if err != nil {
			return err
		}
		got := meta.FindStatusCondition(conditions, config.ConditionAccepted)
		if got == nil || got.ObservedGeneration != o.Generation || got.Status != status || got.Reason != reason ||
			!strings.Contains(got.Message, message) || got.LastTransitionTime.IsZero() {
			return fmt.Errorf("generation %d has conditions %v", o.Generation, conditions)
		}
		network, err := config.ActiveNetwork(o)
		if err != nil {
			return err
		}
		var active []string
		for _, r := range network.ClusterNetworks {
			active = append(active, r.String())
		}
		if !slices.Equal(active, ranges) {
			return fmt.Errorf("active ranges: got %q, want %q", active, ranges)
		}
		return nil
	})
}

// condition waits until the node's condition NetworkUnavailable has the status and reason, and a message that contains the text.
func (c *cluster) condition(t *testing.T, name string, status corev1.ConditionStatus, reason, message string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		node, err := c.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got := config.NetworkUnavailable(node)
		if got == nil || got.Status != status || got.Reason != reason || !strings.Contains(got.Message, message) {
			return fmt.Errorf("Node %s has NetworkUnavailable %+v", name, got)
		}
		return nil
	})
}

// store creates a ClusterNetwork with this mode, range and 9 host bits.
func (c *cluster) store(t *testing.T, mode, cidr string) *networkv1.ClusterNetwork {
	t.Helper()
	o := &networkv1.ClusterNetwork{
		ObjectMeta:      metav1.ObjectMeta{Name: "default"},
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: cidr, HostSubnetLength: 9}},
		ServiceNetwork:  "172.30.0.0/16", PluginName: mode,
	}
	return must(c.network.NetworkV1().ClusterNetworks().Create(t.Context(), o, metav1.CreateOptions{}))(t)
}

// forward copies connections to another address until it is closed.
func forward(listener net.Listener, to string) (stop func()) {
	var running sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	running.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				return
			}
			mu.Lock()
			open = append(open, in, out)
			mu.Unlock()
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				running.Go(func() {
					_, _ = io.Copy(pair[0], pair[1]) // ends with either connection
					pair[0].Close()
				})
			}
		}
	})
	return sync.OnceFunc(func() {
		listener.Close()
		mu.Lock()
		for _, conn := range open {
			conn.Close()
		}
		mu.Unlock()
		running.Wait()
	})
}

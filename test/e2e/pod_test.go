package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// podImage is on every node of a lab.
const podImage = "localhost/agnhost:lab"

// The ports on which netexec serves.
const (
	httpPort = 8080
	udpPort  = 8081
)

// namespace makes a namespace that goes with the test, after its pods.
func (c *cluster) namespace(t *testing.T) string {
	t.Helper()
	ns, err := c.kube.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), podTime)
		defer cancel()
		err := c.deletePods(ctx, ns.Name)
		if err := errors.Join(err, c.kube.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{})); err != nil {
			t.Errorf("clean up namespace %s: %v", ns.Name, err)
		}
	})
	return ns.Name
}

// deletePods returns when kubelet has ended the namespace's pods.
func (c *cluster) deletePods(ctx context.Context, namespace string) error {
	grace := int64(1)
	pods := c.kube.CoreV1().Pods(namespace)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &grace}, metav1.ListOptions{}); err != nil {
		return err
	}
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		left, err := pods.List(ctx, metav1.ListOptions{})
		if err == nil && len(left.Items) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, fmt.Errorf("%d pods of namespace %s do not end: %w", len(left.Items), namespace, ctx.Err()))
		case <-ticker.C:
		}
	}
}

// deletePod returns when kubelet has ended the pod.
func (c *cluster) deletePod(ctx context.Context, namespace, name string) error {
	ctx, cancel := context.WithTimeout(ctx, podTime)
	defer cancel()
	pods := c.kube.CoreV1().Pods(namespace)
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		_, err := pods.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, fmt.Errorf("pod %s does not end: %w", name, ctx.Err()))
		case <-ticker.C:
		}
	}
}

// leave takes a node out of the cluster while its pod runs. Nobody is left then to say that the pod has ended, and
// Kubernetes itself forgets it only after a while.
func (x *trio) leave(t *testing.T, p pod, node string) {
	t.Helper()
	x.removeNode(t, node)
	now := int64(0)
	if err := x.kube.CoreV1().Pods(x.namespace).Delete(t.Context(), p.name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
}

// netexec is a pod that serves HTTP and UDP, and that kubelet probes.
func netexec(name, node string) *corev1.Pod {
	grace, noToken := int64(1), false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken:  &noToken, // less for kubelet to wait for
			Containers: []corev1.Container{{
				Name: "agnhost", Image: podImage, ImagePullPolicy: corev1.PullNever,
				Args: []string{"netexec", fmt.Sprintf("--http-port=%d", httpPort), fmt.Sprintf("--udp-port=%d", udpPort)},
				ReadinessProbe: &corev1.Probe{
					ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(httpPort)}},
					// Kubelet spreads its first probe over a period.
					PeriodSeconds: 1, FailureThreshold: 100,
				},
			}},
		},
	}
}

// pod is a pod that is ready, with all that one needs to speak for it.
type pod struct {
	name  string
	node  string
	addr  netip.Addr
	mac   net.HardwareAddr
	netns wire.NetNS
}

func (p pod) gateway() netip.Addr {
	// The lab's nodes have 9 bits of their own.
	return netip.PrefixFrom(p.addr, 23).Masked().Addr().Next()
}

// macOf is the rule by which pods and tun0 get their MACs.
func macOf(addr netip.Addr) net.HardwareAddr {
	return append(net.HardwareAddr{0x0a, 0x58}, addr.AsSlice()...)
}

// run starts pods and returns when kubelet calls all of them ready.
func (c *cluster) run(t *testing.T, namespace string, pods ...*corev1.Pod) []pod {
	t.Helper()
	for _, p := range pods {
		c.create(t, namespace, p)
	}
	running := make([]pod, len(pods))
	for i, p := range pods {
		running[i] = c.ready(t, namespace, p.Name)
	}
	return running
}

func (c *cluster) create(t *testing.T, namespace string, p *corev1.Pod) {
	t.Helper()
	eventually(t, syncTime, "create pod "+p.Name, func(ctx context.Context) error {
		_, err := c.kube.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
		if err != nil && !apierrors.IsForbidden(err) { // the namespace has no service account yet
			t.Fatal(err)
		}
		return err
	})
}

func (c *cluster) ready(t *testing.T, namespace, name string) pod {
	t.Helper()
	var object *corev1.Pod
	eventually(t, podTime, "pod "+name+" is ready", func(ctx context.Context) error {
		var err error
		if object, err = c.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if isReady(object) {
			return nil
		}
		return c.explain(ctx, object)
	})
	return c.attached(t, object)
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// explain says what the pod's last Event says.
func (c *cluster) explain(ctx context.Context, p *corev1.Pod) error {
	events, err := c.kube.CoreV1().Events(p.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + p.Name})
	if err != nil || len(events.Items) == 0 {
		return fmt.Errorf("it is %s", p.Status.Phase)
	}
	last := events.Items[len(events.Items)-1]
	return fmt.Errorf("it is %s: %s: %s", p.Status.Phase, last.Reason, last.Message)
}

// attached completes a pod by what OVSDB remembers of it.
func (c *cluster) attached(t *testing.T, object *corev1.Pod) pod {
	t.Helper()
	node := object.Spec.NodeName
	out := c.exec(t, node, "ovs-vsctl", "--format=json", "--columns=external_ids", "find", "Interface", "external_ids:pod-uid="+string(object.UID))
	var table struct {
		Data [][][]json.RawMessage
	}
	if err := json.Unmarshal([]byte(out), &table); err != nil || len(table.Data) != 1 {
		t.Fatalf("OVSDB on %s has %d ports of pod %s, want one (%v): %s", node, len(table.Data), object.Name, err, out)
	}
	var pairs [][2]string
	if err := json.Unmarshal(table.Data[0][0][1], &pairs); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ids := map[string]string{}
	for _, pair := range pairs {
		ids[pair[0]] = pair[1]
	}
	addr, err := netip.ParseAddr(object.Status.PodIP)
	if err != nil {
		t.Fatal(err)
	}
	if ids["ip"] != addr.String() || ids["mac"] != macOf(addr).String() || ids["pod-name"] != object.Name || ids["pod-namespace"] != object.Namespace {
		t.Fatalf("OVSDB on %s remembers of pod %s/%s with the address %s: %v", node, object.Namespace, object.Name, addr, ids)
	}
	return pod{
		name: object.Name, node: node, addr: addr, mac: macOf(addr),
		// In a machine /var/run is a link to /run.
		netns: wire.NetNS(filepath.Join(c.machine(t, node).root, strings.TrimPrefix(ids["netns"], "/var"))),
	}
}

// meet returns when two can ping each other: the first packet to a new neighbour may be lost, and a switch may have just been started.
func meet(t *testing.T, from wire.NetNS, to netip.Addr) {
	t.Helper()
	eventually(t, syncTime, "reach "+to.String(), func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return from.Ping(ctx, to, wire.Echo{})
	})
}

// echoed returns when the echo was answered. A lone packet may be lost by the machine, or by a device whose MTU has just changed
// (losesNothingLasting), and is sent again; any other error is final.
func echoed(t *testing.T, from wire.NetNS, to netip.Addr, e wire.Echo) {
	t.Helper()
	var final error
	what := fmt.Sprintf("ping %s with %+v", to, e)
	eventually(t, packetTime, what, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		err := from.Ping(ctx, to, e)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		final = err
		return nil
	})
	if final != nil {
		t.Errorf("%s: %v", what, final)
	}
}

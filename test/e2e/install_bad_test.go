package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// awayVariable is how long the API server does not answer; by default 20s.
const awayVariable = "OVSDN_TEST_AWAY"

const apiServerService = "kube-apiserver"

// The container runtime's directories, and the agent's files in them.
const (
	cniConfDir = "/etc/cni/net.d"
	cniConf    = cniConfDir + "/10-ovsdn.conflist"
	cniBinDir  = "/opt/cni/bin"
	cniPlugin  = cniBinDir + "/ovsdn-cni"
)

// Directories of the container runtime that are read-only when agents start: the Node reports which, running pods are not affected, and agents
// recover by themselves.
func TestReadOnlyCNIDirectories(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: asserts that no ping is lost")
	}
	x := newTrio(t)
	cases := []struct{ node, dir, file string }{{fixture.Node1, cniConfDir, cniConf}}
	if x.Shape().Install != lab.Processes { // where the lab puts the plugin there
		cases = append(cases, struct{ node, dir, file string }{fixture.Node2, cniBinDir, cniPlugin})
	}
	x.losesNothing(t, func() {
		t.Run("all", func(t *testing.T) {
			for _, tc := range cases {
				t.Run(tc.dir, func(t *testing.T) {
					t.Parallel()
					x.readOnly(t, tc.node, tc.dir, tc.file)
				})
			}
		})
	}, streamOf(x.a, x.c), streamOf(x.a, x.b))
	for _, tc := range cases {
		later := x.Run(t, x.namespace, fixture.Netexec("later-"+tc.node, tc.node))[0]
		fixture.Meet(t, later.NetNS, x.a.Addr)
	}
}

// readOnly starts the node's agent where its file is missing and can't be made.
func (c *cluster) readOnly(t *testing.T, node, dir, file string) {
	t.Helper()
	remount := func(mode string) {
		fixture.Within(t, fixture.SyncTime, "remount", func(context.Context) error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.SyncTime)
			defer cancel()
			_, err := c.TryOutput(ctx, node, "mount", "-o", "remount,"+mode, dir)
			return err
		})
	}
	// The running agent may write it again in between.
	c.Output(t, node, "sh", "-c", "until rm -f "+file+" && mount -o remount,ro "+dir+" && ! test -e "+file+"; do mount -o remount,rw "+dir+"; done")
	writable := sync.OnceFunc(func() { remount("rw") })
	t.Cleanup(writable)
	began := time.Now()
	c.service(t, node, agentService, (*lab.Service).Restart)
	c.Warned(t, began, "Node", node, dir, "read-only", "must be writable")
	c.unavailable(t, node, dir, "read-only", "must be writable")
	c.notReady(t, node, dir, "read-only", "must be writable")
	writable()
	c.available(t, node)
	c.Output(t, node, "test", "-e", file)
}

// unavailable waits until the Node's condition NetworkUnavailable is True with all of the words.
func (c *cluster) unavailable(t *testing.T, node string, words ...string) {
	t.Helper()
	fixture.Eventually(t, fixture.PodTime, "the condition of "+node, func(ctx context.Context) error {
		n, err := c.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if is := config.NetworkUnavailable(n); is == nil || is.Status != corev1.ConditionTrue || !fixture.ContainsAll(is.Message, words) {
			return fmt.Errorf("it is %v, want %q", is, words)
		}
		return nil
	})
}

// available waits until the agent is ready, and the Node's condition reports an available network.
func (c *cluster) available(t *testing.T, node string) {
	t.Helper()
	fixture.Eventually(t, fixture.PodTime, node+" is well", func(ctx context.Context) error {
		n, err := c.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if is := config.NetworkUnavailable(n); is == nil || is.Status != corev1.ConditionFalse {
			return fmt.Errorf("its condition is %v", is)
		}
		ok, output, err := c.readyz(ctx, t, node)
		if err == nil && !ok {
			err = fmt.Errorf("its agent reports %q", output)
		}
		return err
	})
}

// notReady waits until the node's agent fails kubelet's readiness probe, with all of the words.
func (c *cluster) notReady(t *testing.T, node string, words ...string) {
	t.Helper()
	fixture.Eventually(t, fixture.PodTime, "the probe of the agent of "+node, func(ctx context.Context) error {
		ok, output, err := c.readyz(ctx, t, node)
		if err == nil && (ok || !fixture.ContainsAll(output, words)) {
			err = fmt.Errorf("got %q, want %q", output, words)
		}
		return err
	})
}

// testAPIServerAway: while the API server does not answer, running pods continue with the last policies, a sandbox that dies is re-created from
// the agent's cache, and an agent that starts waits and changes nothing. STATUS reports it, and everything works afterwards.
func testAPIServerAway(t *testing.T, c *cluster) {
	away := 20 * time.Second
	if text := os.Getenv(awayVariable); text != "" {
		var err error
		if away, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", awayVariable, err)
		}
	}
	g := newGuarded(t, c)
	mortal := c.Run(t, g.namespace, fixture.Netexec("mortal", fixture.Node1))[0]
	fixture.Meet(t, g.friend.NetNS, mortal.Addr)
	starts := c.starts(t, fixture.Node2, agentService)
	g.losesNothing(t, func() {
		began := time.Now()
		c.service(t, lab.ControlPlane, apiServerService, (*lab.Service).Stop)
		restore := sync.OnceFunc(func() { c.restoreAPIServer(t) })
		defer restore()

		mortal = c.killSandbox(t, mortal)
		fixture.Meet(t, g.friend.NetNS, mortal.Addr)
		for _, node := range []string{fixture.Node1, fixture.Node2} {
			c.notReady(t, node, "API server", "existing flows stay")
		}
		before := c.footprints(t, fixture.Node1)
		pause(t, away-10*time.Second-time.Since(began)) // an agent that starts reports after some seconds what it waits for
		c.killAgent(t, fixture.Node1)
		c.notReady(t, fixture.Node1, "API server", "--kube-apiserver", "existing flows stay")
		if out, err := c.TryOutput(t.Context(), fixture.Node1, "sh", "-c", cniStatus); err == nil || !fixture.ContainsAll(err.Error(), []string{"API server"}) {
			t.Errorf("STATUS answers %q, %v", out, err)
		}
		pause(t, away-time.Since(began))
		c.returnsTo(t, before)
		restore()
		back := time.Now()
		for _, node := range []string{fixture.Node1, fixture.Node2} {
			c.available(t, node)
		}
		t.Logf("all is well %.1fs after the API server was back", time.Since(back).Seconds())
	}, streamOf(g.friend, g.target), streamOf(g.target, g.friend))
	g.held(t, "the API server away")
	if now := c.starts(t, fixture.Node2, agentService); now != starts {
		t.Errorf("the agent of %s was started %d times in the meantime", fixture.Node2, now-starts)
	}
	fixture.Eventually(t, fixture.PodTime, "the API has the new sandbox's address", func(ctx context.Context) error {
		p, err := c.Kube.CoreV1().Pods(g.namespace).Get(ctx, mortal.Name, metav1.GetOptions{})
		if err == nil && p.Status.PodIP != mortal.Addr.String() {
			err = fmt.Errorf("it is %s, want %s", p.Status.PodIP, mortal.Addr)
		}
		return err
	})
	later := c.Run(t, g.namespace, fixture.Netexec("later", fixture.Node1))[0]
	fixture.Meet(t, g.friend.NetNS, later.Addr)
	isolated(t, later, g.target)
}

// restoreAPIServer starts it and returns when it answers.
func (c *cluster) restoreAPIServer(t *testing.T) {
	t.Helper()
	c.service(t, lab.ControlPlane, apiServerService, (*lab.Service).Start)
	fixture.Eventually(t, fixture.PodTime, "the API server answers", func(ctx context.Context) error {
		_, err := c.Kube.CoreV1().Nodes().Get(ctx, fixture.Node1, metav1.GetOptions{})
		return err
	})
}

// killSandbox kills a pod's sandbox and returns the pod when kubelet has made it another.
func (c *cluster) killSandbox(t *testing.T, p pod) pod {
	t.Helper()
	sandboxes := func(ctx context.Context) ([]string, error) {
		out, err := c.TryOutput(ctx, p.Node, "ovs-vsctl", "--bare", "--columns=external_ids", "find", "Interface", "external_ids:pod-name="+p.Name)
		return strings.Fields(out), err
	}
	was, err := sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	value := func(ids []string, key string) string {
		for _, id := range ids {
			if v, ok := strings.CutPrefix(id, key+"="); ok {
				return strings.Trim(v, `"`)
			}
		}
		return ""
	}
	sandbox := value(was, "sandbox")
	c.Output(t, p.Node, "ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=KILL", sandbox)
	fixture.Eventually(t, fixture.PodTime, "pod "+p.Name+" has another sandbox", func(ctx context.Context) error {
		is, err := sandboxes(ctx)
		if err != nil {
			return err
		}
		if now := value(is, "sandbox"); now == "" || now == sandbox {
			return fmt.Errorf("it has %q", is)
		}
		was = is
		return nil
	})
	if p.Addr, err = netip.ParseAddr(value(was, "ip")); err != nil {
		t.Fatal(err)
	}
	p.MAC = fixture.MACOf(p.Addr)
	p.NetNS = wire.NetNS(filepath.Join(c.Machine(t, p.Node).Root, strings.TrimPrefix(value(was, "netns"), "/var")))
	return p
}

// readyz asks a node's agent as kubelet does.
func (c *cluster) readyz(ctx context.Context, t *testing.T, node string) (ok bool, output string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9411/readyz", nil)
	if err != nil {
		return false, "", err
	}
	client := c.Machine(t, node).NetNS.HTTP()
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return false, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode == http.StatusOK, string(body), err
}

// A second agent on a node ends at once with an error that names the first, and changes nothing.
func TestSecondAgentOnANode(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: asserts that no ping is lost")
	}
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node1)
	starts := x.starts(t, fixture.Node1, agentService)
	second := x.productCommand(t, fixture.Node1, agentService)
	x.losesNothing(t, func() {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), exitTime)
		defer cancel()
		_, stderr, err := second.run(ctx, "--mtu=1300")
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !fixture.ContainsAll(stderr, []string{"another agent", "cni.sock", "ovsdn-node", "started"}) {
			t.Errorf("it ends with %v: %s", err, stderr)
		}
		x.Warned(t, began, "Node", fixture.Node1, "another agent", "cni.sock")
	}, fineStreamOf(x.a, x.c))
	x.serves(t, fixture.Node1)
	if now := x.starts(t, fixture.Node1, agentService); now != starts {
		t.Errorf("the first was started %d times in the meantime", now-starts)
	}
	x.returnsTo(t, before)
}

// An ovs-vswitchd that hangs is reported, by a running agent and by one that starts, and both recover without help when it answers again.
func TestSwitchDoesNotAnswer(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: asserts that no ping is lost")
	}
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	t.Run("all", func(t *testing.T) {
		t.Run("stopped", func(t *testing.T) {
			t.Parallel()
			signal := func(s string) {
				fixture.Within(t, fixture.SyncTime, s, func(context.Context) error {
					ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.SyncTime)
					defer cancel()
					_, err := x.TryOutput(ctx, fixture.Node2, "pkill", "-"+s, "-x", "ovs-vswitchd")
					return err
				})
			}
			signal("STOP")
			goOn := sync.OnceFunc(func() { signal("CONT") })
			t.Cleanup(goOn)
			// On the userspace datapath the node itself has no network now.
			x.notReady(t, fixture.Node2, "Open vSwitch", "does not answer")
			goOn()
			x.available(t, fixture.Node2)
		})
		t.Run("to an agent that starts", func(t *testing.T) {
			t.Parallel()
			x.losesNothing(t, func() {
				x.service(t, fixture.Node1, agentService, (*lab.Service).Stop)
				answer := x.silence(t, x.node1)
				began := time.Now()
				x.service(t, fixture.Node1, agentService, (*lab.Service).Start)
				x.unavailable(t, fixture.Node1, "Open vSwitch", "does not answer")
				x.notReady(t, fixture.Node1, "Open vSwitch", "does not answer")
				x.Warned(t, began, "Node", fixture.Node1, "Open vSwitch", "does not answer")
				answer()
				x.serves(t, fixture.Node1)
				x.available(t, fixture.Node1)
			}, streamOf(x.a, x.b))
		})
	})
	x.returnsTo(t, before)
	fixture.Meet(t, x.a.NetNS, x.c.Addr)
}

// silence replaces the bridge's OpenFlow socket by one on which no server answers, until restore is called, at the latest when the test ends.
func (c *cluster) silence(t *testing.T, m machine) (restore func()) {
	t.Helper()
	return c.interpose(t, m, func(client net.Conn, _ string) {
		_, _ = io.Copy(io.Discard, client) // until it gives up
		client.Close()
	})
}

// The agent's rules are in the backend of iptables in which kubelet and kube-proxy have theirs, and in no other: pods reach hosts outside with either.
func TestIPTablesOfTheHost(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: asserts that no ping is lost")
	}
	x := newTrio(t)
	const canary = "KUBE-KUBELET-CANARY"
	for _, step := range []struct{ backend, other string }{{"iptables-legacy", "iptables-nft"}, {"iptables-nft", "iptables-legacy"}} {
		t.Run(step.backend, func(t *testing.T) {
			x.Output(t, fixture.Node1, step.backend, "-w", "-t", "mangle", "-N", canary)
			t.Cleanup(func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.SyncTime)
				defer cancel()
				if _, err := x.TryOutput(ctx, fixture.Node1, step.backend, "-w", "-t", "mangle", "-X", canary); err != nil {
					t.Error(err)
				}
			})
			x.losesNothing(t, func() {
				x.service(t, fixture.Node1, agentService, (*lab.Service).Restart)
				x.serves(t, fixture.Node1)
			}, streamOf(x.a, x.c))
			for _, table := range []string{"filter", "nat", "mangle"} {
				if rules := x.Output(t, fixture.Node1, step.backend, "-w", "-t", table, "-S"); !strings.Contains(rules, "OVSDN-") {
					t.Errorf("%s, which the host uses, has in table %s\n%s", step.backend, table, rules)
				}
				if rules := x.Output(t, fixture.Node1, step.other, "-w", "-t", table, "-S"); strings.Contains(rules, "OVSDN-") {
					t.Errorf("%s, which the host does not use, has in table %s\n%s", step.other, table, rules)
				}
			}
			// Hosts outside have no route to pods: they answer to the node.
			fixture.Meet(t, x.a.NetNS, lab.OutsideAddr())
			fixture.Meet(t, x.node1.NetNS, x.a.Addr)
		})
	}
}

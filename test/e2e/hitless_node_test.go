package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
	"github.com/ovsdn/ovsdn/test/seed"
)

// An agent that is killed repeatedly during the first set-up of a node, and a node that loses power, result in the same node.
func TestNodeSetUp(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: kills an agent at random times, and reboots a node")
	}
	x := newTrio(t)
	node := x.addNode(t)
	empty := x.footprints(t, node)

	t.Run("killed while it sets up", func(t *testing.T) {
		x.killSetUp(t, node)
		x.serves(t, node)
		x.returnsTo(t, empty)
	})

	d := x.Run(t, x.namespace, fixture.Netexec("d", node))[0]
	fixture.Meet(t, x.c.NetNS, d.Addr)
	defer x.leave(t, d, node)
	t.Run("reboot", func(t *testing.T) {
		before := x.footprints(t, node)[node]
		ctx, cancel := context.WithTimeout(t.Context(), fixture.NodeTime)
		defer cancel()
		began := time.Now()
		if err := x.RebootNodes(ctx, t.Logf, node); err != nil {
			t.Fatal(err)
		}
		m := x.Machine(t, node)
		fixture.Eventually(t, fixture.PodTime, "the node has one pod", func(ctx context.Context) error {
			now, err := x.footprint(ctx, m)
			if err != nil {
				return err
			}
			if diff := cmp.Diff(sizes(before), sizes(now)); diff != "" {
				return fmt.Errorf("how much there is (-before +now):\n%s", diff)
			}
			return nil
		})
		fixture.Eventually(t, fixture.PodTime, "kubelet reports the pod's restart", func(ctx context.Context) error {
			p, err := x.Kube.CoreV1().Pods(x.namespace).Get(ctx, d.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, s := range p.Status.ContainerStatuses {
				if r := s.State.Running; r != nil && !r.StartedAt.Time.Before(began.Truncate(time.Second)) {
					return nil
				}
			}
			return x.Explain(ctx, p)
		})
		again := x.Ready(t, x.namespace, d.Name)
		fixture.Meet(t, x.c.NetNS, again.Addr)
		fixture.Meet(t, again.NetNS, x.c.Addr)
	})
}

// killSetUp kills the agent repeatedly while it sets up a node without a network.
func (x *trio) killSetUp(t *testing.T, node string) {
	t.Helper()
	const kills = 12
	const setUpTime = 600 * time.Millisecond
	rng := seed.Rand(t)
	x.service(t, node, agentService, (*lab.Service).Stop)
	x.Output(t, node, "sh", "-ec", "ovs-vsctl del-br br0; rm -rf /etc/cni/net.d/* /var/lib/cni/networks/ovsdn; iptables -F; iptables -t nat -F")
	for range kills {
		x.service(t, node, agentService, (*lab.Service).Start)
		pause(t, time.Duration(rng.Int64N(int64(setUpTime))))
		x.service(t, node, agentService, (*lab.Service).Kill)
	}
}

// sizes is how much a footprint holds: pods of another life have other names.
func sizes(f footprint) map[string]int {
	return map[string]int{"flows": len(f.Flows), "ports": len(f.Ports), "veths": len(f.Veths), "leases": len(f.Leases)}
}

// An Open vSwitch that is too old is reported on the Node and to the container runtime, with the required version. Pods retain their network.
func TestTooOldOpenVSwitch(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: needs the shared lab; pkg/ovs has unit tests of versions")
	}
	x := newTrio(t)
	x.settle(t)
	first, _, _ := strings.Cut(x.Output(t, fixture.Node1, "ovs-vswitchd", "--version"), "\n")
	is := first[strings.LastIndex(first, " ")+1:]
	old := "2" + is[1:]
	x.service(t, fixture.Node1, agentService, (*lab.Service).Stop)
	began := time.Now()
	restore := x.pretend(t, x.node1, is, old)
	x.service(t, fixture.Node1, agentService, (*lab.Service).Start)

	x.Warned(t, began, "Node", fixture.Node1, old, "3.1", "upgrade")
	x.unavailable(t, fixture.Node1, old, "3.1")
	fixture.Eventually(t, fixture.SyncTime, "STATUS reports it", func(ctx context.Context) error {
		out, err := x.TryOutput(ctx, fixture.Node1, "sh", "-c", cniStatus)
		if err == nil || !fixture.ContainsAll(err.Error(), []string{old, "3.1"}) {
			return fmt.Errorf("STATUS answers %q, %w", out, err)
		}
		return nil
	})
	fixture.Meet(t, x.a.NetNS, x.c.Addr)
	restore()
	x.available(t, fixture.Node1)
}

// pretend inserts a relay before the bridge's OpenFlow socket, which replaces the switch's version, until restore is called, at the latest when
// the test ends.
func (c *cluster) pretend(t *testing.T, m machine, is, reported string) (restore func()) {
	t.Helper()
	return c.interpose(t, m, func(client net.Conn, real string) { relay(client, real, is, reported) })
}

// interpose serves the connections that are made to the bridge's OpenFlow socket from now on, until restore is called, at the latest when the
// test ends. The function is given each, and where the switch itself is.
func (c *cluster) interpose(t *testing.T, m machine, serve func(client net.Conn, real string)) (restore func()) {
	t.Helper()
	socket := filepath.Join(m.Root, "run/openvswitch/br0.mgmt")
	real := socket + ".real"
	if err := os.Rename(socket, real); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn, real)
		}
	}()
	restore = sync.OnceFunc(func() {
		if err := errors.Join(l.Close(), os.Rename(real, socket)); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	return restore
}

// relay copies in both directions until either side ends. The switch's version is in one message, and in one read.
func relay(client net.Conn, real, is, reported string) {
	defer client.Close()
	server, err := net.Dial("unix", real)
	if err != nil {
		return // the client sees it
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client) // either side's end is the other's
		server.Close()
	}()
	buffer := make([]byte, 1<<16)
	for {
		n, err := server.Read(buffer)
		if n > 0 {
			if _, err := client.Write(bytes.ReplaceAll(buffer[:n], []byte(is), []byte(reported))); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

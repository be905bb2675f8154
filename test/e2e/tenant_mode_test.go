package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// testModes changes the mode of a running cluster and back. Agents do not restart, pods that reach each other in both modes lose no packet, and
// namespaces are isolated from each other and connected again. Services work in both; connections through them from mode subnet continue, those
// from mode multitenant do not (docs/tenants.md).
func testModes(t *testing.T, c *cluster) {
	c.restoreMode(t)
	ours, theirs := c.Namespace(t), c.Namespace(t)
	pods := append(c.Run(t, ours, fixture.Netexec("a", fixture.Node1), fixture.Netexec("b", fixture.Node2)), c.Run(t, theirs, fixture.Netexec("c", fixture.Node1), fixture.Netexec("d", fixture.Node2))...)
	pairs := [][2]pod{{pods[0], pods[1]}, {pods[3], pods[2]}} // of one namespace, on two nodes
	strangers := [][2]pod{{pods[0], pods[2]}, {pods[0], pods[3]}, {pods[3], pods[0]}}
	var streams []stream
	var talks []*conversation
	for _, p := range pairs {
		fixture.Meet(t, p[0].NetNS, p[1].Addr)
		streams = append(streams, streamOf(p[0], p[1]))
		talks = append(talks, talk(t, p[0].End(), p[1].End()))
	}
	service := c.Expose(t, ours, "of-b", servicePort{Protocol: "TCP", Port: servicePortHTTP, Target: fixture.HTTPPort}, pods[1])
	before := c.allStarts(t)

	c.losesNothing(t, func() {
		for range 2 {
			c.haveMode(t, config.ModeSubnet)
			for _, s := range strangers {
				fixture.Meet(t, s[0].NetNS, s[1].Addr)
			}
			serves(t, "the service in mode subnet", pods[0].NetNS.HTTP(), service)
			client := oneConnection(t, pods[0].NetNS)
			serves(t, "the service in mode subnet, by a new connection", client, service)
			c.haveMode(t, config.ModeMultitenant)
			serves(t, "the service in mode multitenant, by a connection made before", client, service)
			serves(t, "the service in mode multitenant", pods[0].NetNS.HTTP(), service)
			for _, s := range strangers {
				fixture.MustNotReach(t, s[0].Name+" to "+s[1].Name, pinging(s[0], s[1]), pinging(s[0], partner(s[0], pairs)))
			}
			for _, c := range talks {
				c.goesOn(t)
			}
		}
	}, streams...)
	for _, c := range talks {
		c.ends(t)
	}
	if after := c.allStarts(t); after != before {
		t.Errorf("processes were started: %s, before it was %s", after, before)
	}
}

const servicePortHTTP = 80

// serves waits until the service answers.
func serves(t *testing.T, what string, client *http.Client, service netip.Addr) {
	t.Helper()
	fixture.Eventually(t, fixture.SyncTime, what, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, fixture.PacketTime)
		defer cancel()
		_, err := fixture.HostnameBy(ctx, client, service, servicePortHTTP)
		return err
	})
}

// oneConnection is a client that opens one connection, and no other after that one ends.
func oneConnection(t *testing.T, from wire.NetNS) *http.Client {
	t.Helper()
	var made atomic.Bool
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if made.Swap(true) {
			return nil, errors.New("the connection has ended")
		}
		return from.DialContext(ctx, network, address)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// allStarts is how often agents and the controller were started.
func (c *cluster) allStarts(t *testing.T) string {
	t.Helper()
	text := fmt.Sprintf("controller %d", c.starts(t, lab.ControlPlane, controllerService))
	for _, node := range c.Nodes() {
		text += fmt.Sprintf(", %s %d", node, c.starts(t, node, agentService))
	}
	return text
}

// partner is the other pod of the pod's namespace.
func partner(p pod, pairs [][2]pod) pod {
	for _, pair := range pairs {
		if pair[0].Addr == p.Addr {
			return pair[1]
		}
	}
	return p
}

func pinging(from, to pod) func(context.Context) error {
	return func(ctx context.Context) error { return from.NetNS.Ping(ctx, to.Addr, wire.Echo{}) }
}

// haveMode changes the mode as in docs/clusternetwork.md, and returns when all nodes have followed.
func (c *cluster) haveMode(t *testing.T, mode config.Mode) {
	t.Helper()
	began := time.Now()
	if err := c.setMode(t.Context(), mode); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, fixture.SyncTime, "the nodes follow mode "+mode.String(), func(ctx context.Context) error { return c.inMode(ctx, mode) })
	t.Logf("all nodes are in mode %s after %v", mode, time.Since(began))
	c.accepted(t, metav1.ConditionTrue, "mode "+mode.String())
}

func (c *cluster) setMode(ctx context.Context, mode config.Mode) error {
	patch := fmt.Appendf(nil, `{"pluginName":%q}`, mode.PluginName())
	_, err := c.Network.NetworkV1().ClusterNetworks().Patch(ctx, "default", types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// inMode returns an error unless the tables of all nodes are of this mode.
func (c *cluster) inMode(ctx context.Context, mode config.Mode) error {
	for _, node := range c.Nodes() {
		flows, err := c.DumpFlows(ctx, node, "-O", "OpenFlow13")
		if err != nil {
			return err
		}
		if err := hasFlow(flows, "253", fmt.Sprintf(" actions=note:%02x.", uint8(mode))); err != nil {
			return fmt.Errorf("%s: %w", node, err)
		}
	}
	return nil
}

// hasFlow finds fault unless a flow of the table begins like that.
func hasFlow(flows []flow, table, prefix string) error {
	of := fixture.TableOf(flows, table)
	for _, f := range of {
		if strings.HasPrefix(f, prefix) {
			return nil
		}
	}
	return fmt.Errorf("table %s has no flow %q, but %q", table, prefix, of)
}

// restoreMode brings the lab's mode back at the test's end.
func (c *cluster) restoreMode(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.SyncTime)
		defer cancel()
		ticker := time.NewTicker(fixture.PollInterval)
		defer ticker.Stop()
		err := c.setMode(ctx, config.ModeMultitenant)
		for err == nil {
			if err = c.inMode(ctx, config.ModeMultitenant); err == nil {
				return
			}
			select {
			case <-ctx.Done():
				err = errors.Join(err, ctx.Err())
			case <-ticker.C:
				err = nil
			}
		}
		t.Errorf("restore mode %s: %v", config.ModeMultitenant, err)
	})
}

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// exitTime is the limit for a program that must end at once.
const exitTime = 20 * time.Second

// A program with invalid flags ends at once, with a remedy.
func TestBadFlags(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: needs the shared lab; the programs have unit tests of their flags")
	}
	c := newCluster(t)
	agent := c.productCommand(t, fixture.Node1, agentService)
	controller := c.productCommand(t, lab.ControlPlane, controllerService)
	for _, tc := range []struct {
		name    string
		program product
		flag    string
		code    int
		words   []string
	}{
		{"interface", agent, "--iface=nosuch", 1, []string{"nosuch", "--iface", "br-ex", c.Addr(t, fixture.Node1).String()}},
		{"interface pattern", agent, "--iface-regex=^nosuch", 1, []string{"--iface-regex", "br-ex"}},
		{"address", agent, "--node-ip=192.0.2.77", 1, []string{"192.0.2.77", "--node-ip", "br-ex"}},
		{"agent's flag", agent, "--no-such-flag", 2, []string{"--no-such-flag"}},
		{"agent's datapath", agent, "--datapath=x", 2, []string{"--datapath", "netdev"}},
		{"controller's flag", controller, "--no-such-flag", 2, []string{"--no-such-flag"}},
		{"network that does not parse", controller, "--cluster-network=nonsense", 2, []string{"nonsense", "not an IPv4 range"}},
		{"network with bits behind its mask", controller, "--cluster-network=10.128.0.5/14", 2, []string{"10.128.0.5/14", "10.128.0.0/14"}},
		{"network in the services'", controller, "--cluster-network=172.16.0.0/12", 2, []string{"172.16.0.0/12", "overlaps", "172.30.0.0/16"}},
		{"host bits", controller, "--host-bits=40", 2, []string{"host", "40"}},
		{"mode", controller, "--mode=x", 2, []string{"subnet", "multitenant"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), exitTime)
			defer cancel()
			stdout, stderr, err := tc.program.run(ctx, tc.flag)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != tc.code {
				t.Fatalf("it ends with %v, want exit status %d: %s%s", err, tc.code, stdout, stderr)
			}
			if !fixture.ContainsAll(stderr, tc.words) {
				t.Errorf("got %[2]s, want all of %[1]q", tc.words, stderr)
			}
		})
	}
}

// The agent does not change a host that routes the cluster network elsewhere, and reports it.
func TestClusterNetworkOverlapsRoute(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: needs the shared lab; test of a rare fault")
	}
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node2)
	const route = "10.131.0.0/24"
	x.Output(t, fixture.Node2, "ip", "route", "add", "blackhole", route)
	remove := func(ctx context.Context) error {
		_, err := x.TryOutput(ctx, fixture.Node2, "ip", "route", "del", "blackhole", route)
		return err
	}
	removed := false
	t.Cleanup(func() {
		if !removed {
			fixture.Within(t, fixture.SyncTime, "remove the route", func(context.Context) error { return remove(context.WithoutCancel(t.Context())) })
		}
	})
	began := time.Now()
	x.service(t, fixture.Node2, agentService, (*lab.Service).Restart)
	x.Warned(t, began, "Node", fixture.Node2, x.Shape().ClusterNetwork.String(), "overlaps", route, "remove the route")
	x.returnsTo(t, before)
	fixture.Meet(t, x.a.NetNS, x.c.Addr)

	removed = true
	fixture.Within(t, fixture.SyncTime, "remove the route", remove)
	pods := x.Run(t, x.namespace, fixture.Netexec("later", fixture.Node2))
	fixture.Meet(t, x.a.NetNS, pods[0].Addr)
}

// An invalid request of the runtime is a CNI error, and leaves nothing behind.
func TestBadCNIRequests(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: needs the shared lab; test/cni has the errors of the plugin")
	}
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node1)
	config := x.cniConfig(t, fixture.Node1)
	netns := strings.TrimPrefix(string(x.b.NetNS), x.node1.Root)
	args := func(name string) string {
		return fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=e2e", x.namespace, name)
	}
	for _, tc := range []struct {
		name   string
		args   string
		netns  string
		config string
		code   uint
		words  []string
	}{
		{"pod that is not in the API", args("nosuch"), netns, config, types.ErrUnknownContainer, []string{x.namespace + "/nosuch", fixture.Node1}},
		{"netns that does not exist", args("a"), "/run/netns/nosuch", config, types.ErrInvalidNetNS, []string{"/run/netns/nosuch"}},
		{"netns that is none", args("a"), "/etc/hostname", config, types.ErrInvalidNetNS, []string{"/etc/hostname"}},
		{"the node's own netns", args("a"), "/proc/1/ns/net", config, types.ErrInvalidNetNS, []string{"/proc/1/ns/net"}},
		{"no pod at all", "", "/run/netns/nosuch", config, types.ErrInvalidEnvironmentVariables, []string{"K8S_POD_NAME"}},
		{"configuration that does not parse", args("a"), "/run/netns/nosuch", "{", types.ErrDecodingFailure, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := x.callPlugin(t, fixture.Node1, map[string]string{
				"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "e2e", "CNI_IFNAME": "eth0", "CNI_NETNS": tc.netns, "CNI_ARGS": tc.args, "CNI_PATH": "/opt/cni/bin",
			}, tc.config)
			if got == nil {
				t.Fatal("it succeeds")
			}
			if got.Code != tc.code || !fixture.ContainsAll(got.Msg+" "+got.Details, tc.words) {
				t.Errorf("got %d: %s: %s\nwant code %d and %q", got.Code, got.Msg, got.Details, tc.code, tc.words)
			}
			x.returnsTo(t, before)
		})
	}
	t.Run("DEL of what never was", func(t *testing.T) {
		if err := x.callPlugin(t, fixture.Node1, map[string]string{
			"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "e2e", "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/netns/nosuch", "CNI_PATH": "/opt/cni/bin",
		}, config); err != nil {
			t.Errorf("it fails: %v", err)
		}
	})
}

// cniConfig is what the runtime passes to the plugin: the list's entry, with its name and a version that it knows.
func (c *cluster) cniConfig(t *testing.T, node string) string {
	t.Helper()
	var list struct {
		CNIVersion string
		Name       string
		Plugins    []map[string]any
	}
	file := strings.TrimSpace(c.Output(t, node, "sh", "-c", "ls /etc/cni/net.d/*.conflist"))
	if err := json.Unmarshal([]byte(c.Output(t, node, "cat", file)), &list); err != nil || len(list.Plugins) != 1 {
		t.Fatalf("%s is not as expected: %+v, %v", filepath.Base(file), list, err)
	}
	list.Plugins[0]["cniVersion"], list.Plugins[0]["name"] = list.CNIVersion, list.Name
	config, err := json.Marshal(list.Plugins[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(config)
}

// callPlugin runs the plugin as a runtime does, and returns its error if it has one.
func (c *cluster) callPlugin(t *testing.T, node string, env map[string]string, config string) *types.Error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.SyncTime)
	defer cancel()
	command := []string{"env"}
	for name, value := range env {
		command = append(command, name+"="+value)
	}
	cmd, err := c.Command(ctx, node, append(command, "/opt/cni/bin/ovsdn-cni")...)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = strings.NewReader(config)
	out, err := cmd.Output()
	if err == nil {
		return nil
	}
	reply := new(types.Error)
	if parseErr := json.Unmarshal(out, reply); parseErr != nil || reply.Code == 0 {
		t.Fatalf("it ends with %v, and its output is no CNI error: %s", err, out)
	}
	return reply
}

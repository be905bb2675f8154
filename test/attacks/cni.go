package attacks

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// testCNI calls the agent's socket as a user without permission, and with invalid IDs and namespaces of sandboxes.
func testCNI(t *testing.T, w *world) {
	const unprivileged = "65534"
	t.Run("socket", func(t *testing.T) {
		_, err := w.TryOutput(t.Context(), fixture.Node1, "setpriv", "--reuid="+unprivileged, "--regid="+unprivileged, "--clear-groups", "--inh-caps=-all",
			"test", "-w", cniserver.DefaultSocket)
		arrived := 0
		if err == nil {
			arrived = 1
			fixture.Arrived(t, "user %s may write to %s", unprivileged, cniserver.DefaultSocket)
		}
		report(t, attack{position: aPod, sent: "a call of the agent's socket by an unprivileged user of the node"}, arrived, []string{"refusal: permissions of the socket"})
	})
	socket := filepath.Join(w.node1.Root, cniserver.DefaultSocket)
	config := json.RawMessage(`{"cniVersion":"1.0.0","name":"ovsdn","type":"ovsdn-cni"}`)
	add := cniserver.Request{Command: cniserver.CommandAdd, ContainerID: strings.Repeat("a", 64), IfName: "eth0", Netns: "/run/netns/attack", Config: config}
	args := "K8S_POD_NAMESPACE=" + w.victims + ";K8S_POD_NAME=" + w.v1.Name + ";K8S_POD_INFRA_CONTAINER_ID=" + add.ContainerID
	add.Args = args
	for _, a := range []struct {
		name   string
		change func(*cniserver.Request)
	}{
		{"container id with a path", func(r *cniserver.Request) { r.ContainerID = "../../../../etc/passwd" }},
		{"container id of 4,096 characters", func(r *cniserver.Request) { r.ContainerID = strings.Repeat("a", 4096) }},
		{"container id with a newline", func(r *cniserver.Request) { r.ContainerID = "a\nb" }},
		{"interface name with a path", func(r *cniserver.Request) { r.IfName = "../eth0" }},
		{"interface name of 4,096 characters", func(r *cniserver.Request) { r.IfName = strings.Repeat("e", 4096) }},
		{"the host's network namespace", func(r *cniserver.Request) { r.Netns = "/proc/1/ns/net" }},
		{"a file that is no namespace", func(r *cniserver.Request) { r.Netns = "/etc/hostname" }},
		{"a namespace outside of the runtime's folder", func(r *cniserver.Request) { r.Netns = "/run/netns/../../proc/1/ns/net" }},
		{"another network's name with a path", func(r *cniserver.Request) {
			r.Config = json.RawMessage(`{"cniVersion":"1.0.0","name":"../../etc","type":"ovsdn-cni"}`)
		}},
	} {
		t.Run(a.name, func(t *testing.T) {
			request := add
			a.change(&request)
			ctx, cancel := context.WithTimeout(t.Context(), fixture.SyncTime)
			defer cancel()
			before := w.Output(t, fixture.Node1, "ovs-vsctl", "list-ports", "br0")
			result, err := cniserver.Call(ctx, socket, &request)
			arrived := 0
			if err == nil {
				arrived = 1
				fixture.Arrived(t, "got %v, want an error", result)
			}
			report(t, attack{position: aNode, sent: "ADD with " + a.name}, arrived, []string{"refusal: " + errText(err)})
			fixture.Eventually(t, fixture.SyncTime, "no port is left", func(ctx context.Context) error {
				after, err := w.TryOutput(ctx, fixture.Node1, "ovs-vsctl", "list-ports", "br0")
				if err == nil && after != before {
					err = fmt.Errorf("ports of br0 are %q, want %q", after, before)
				}
				return err
			})
		})
	}
}

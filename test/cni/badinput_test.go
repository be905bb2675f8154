package cni

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"

	"github.com/ovsdn/ovsdn/test/bareagent"
)

// An invalid environment or configuration returns the code of the specification, and leaves nothing behind.
func TestBadCalls(t *testing.T) {
	r := newRig(t)
	before := r.state(t)
	p := newPod(t, "web")
	good := r.callFor("ADD", "1.0.0", p)
	for _, tt := range []struct {
		name string
		call call
		code uint
	}{
		{"container id with slashes", good.with("CONTAINERID", "../../../etc/passwd"), 4},
		{"container id with a line end", good.with("CONTAINERID", "a\r\nb"), 4},
		{"container id with a leading dot", good.with("CONTAINERID", ".a"), 4},
		{"container id of 300 characters", good.with("CONTAINERID", strings.Repeat("a", 300)).with("ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web"), 4},
		{"no container id", good.with("CONTAINERID", ""), 4},
		{"no interface", good.with("IFNAME", ""), 4},
		{"interface with a slash", good.with("IFNAME", "a/b"), 4},
		{"interface of 16 characters", good.with("IFNAME", "0123456789abcdef"), 4},
		{"interface ..", good.with("IFNAME", ".."), 4},
		{"no netns", good.with("NETNS", ""), 4},
		{"netns that does not exist", good.with("NETNS", "/run/netns/none"), 8},
		{"netns that is a file", good.with("NETNS", filepath.Join(r.conf, cniserver.ConfigName)), 8},
		{"netns that is a directory", good.with("NETNS", "/"), 8},
		{"netns of another kind", good.with("NETNS", "/proc/self/ns/uts"), 8},
		{"netns of the node", good.with("NETNS", fmt.Sprintf("/proc/%d/ns/net", r.agent.cmd.Process.Pid)), 8},
		{"no CNI_ARGS", good.with("ARGS", ""), 4},
		{"CNI_ARGS without pod", good.with("ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=default"), 4},
		{"CNI_ARGS with an unknown key", good.with("ARGS", "FOO=bar;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web"), 4},
		{"CNI_ARGS without =", good.with("ARGS", "IgnoreUnknown=1;K8S_POD_NAME"), 4},
		{"CNI_ARGS with a path for a namespace", good.with("ARGS", "K8S_POD_NAMESPACE=../kube-system;K8S_POD_NAME=web"), 4},
		{"CNI_ARGS with an absurd name", good.with("ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME="+strings.Repeat("x", 100_000)), 4},
		{"CNI_ARGS with a NUL's worth of nonsense", good.with("ARGS", ";;;=;=;K8S_POD_NAME=\xff;K8S_POD_NAMESPACE=\xff"), 4},
		{"CNI_ARGS of another sandbox", good.with("ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=other"), 4},
		{"pod that is another now", good.with("ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_UID=another"), 3},
		{"pod that is not there", r.callFor("ADD", "1.0.0", newPod(t, ghost)), 3},
		{"API server that does not answer", r.callFor("ADD", "1.0.0", newPod(t, unreachable)), 11},
		{"empty configuration", good.withStdin(""), 6},
		{"configuration that is no JSON", good.withStdin("cniVersion: 1.0.0"), 6},
		{"configuration that is a list", good.withStdin("[]"), 6},
		{"configuration that ends early", good.withStdin(strings.TrimSuffix(good.stdin, "}")), 6},
		{"configuration with two documents", good.withStdin(good.stdin + good.stdin), 6},
		{"network name with a slash", good.withStdin(strings.Replace(good.stdin, `"ovsdn"`, `"../ovsdn"`, 1)), 7},
		{"no network name", good.withStdin(strings.Replace(good.stdin, `"name":"ovsdn",`, "", 1)), 7},
		{"socket that is a number", good.withStdin(strings.Replace(good.stdin, `"socket":"`, `"socket":1,"x":"`, 1)), 6},
		{"configuration of 2 MiB", good.withStdin(strings.TrimSuffix(good.stdin, "}") + `,"x":"` + strings.Repeat("x", 2<<20) + `"}`), 6},
		{"prevResult", good.withStdin(strings.TrimSuffix(good.stdin, "}") + `,"prevResult":{"ips":[{"address":"10.128.2.77/24"}]}}`), 2},
		{"prevResult that is a string", good.withStdin(strings.TrimSuffix(good.stdin, "}") + `,"prevResult":"x"}`), 6},
		{"unknown verb", good.with("COMMAND", "EXPLODE"), 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := r.run(t, tt.call)
			if code(t, err) != tt.code {
				t.Errorf("code %d, want %d: %v", code(t, err), tt.code, err)
			}
			r.wantState(t, before)
			if got := devicesOf(t, p.netns); !slices.Equal(got, []string{"lo"}) {
				t.Errorf("in the pod: %v", got)
			}
		})
	}
	for _, why := range []string{
		"invalid CNI_NETNS", "prevResult is set", "invalid CNI_ARGS; K8S_POD_INFRA_CONTAINER_ID",
	} {
		r.wantEvent(t, "pod web: "+eventreason.NetworkAttachFailed+": "+why)
	}
	// The same sandbox gets its network all the same.
	if _, err := r.run(t, good); err != nil {
		t.Error(err)
	}
	if _, err := r.run(t, good.with("COMMAND", "DEL")); err != nil {
		t.Error(err)
	}
	r.wantState(t, before)
}

// A pod with names of the maximum lengths gets its network, and leaves nothing behind.
func TestLongestNames(t *testing.T) {
	r := newRig(t)
	before := r.state(t)
	namespace, name, id := strings.Repeat("n", 63), strings.Repeat("p", 253), strings.Repeat("0123456789abcdef", 4)
	p := newPod(t, name)
	p.id = id
	good := r.callFor("ADD", "1.1.0", p)
	good = good.with("ARGS", strings.Replace(good.env["ARGS"], "K8S_POD_NAMESPACE=default", "K8S_POD_NAMESPACE="+namespace, 1))
	for _, verb := range []string{"ADD", "DEL", "DEL"} { // a runtime may repeat DEL
		if _, err := r.run(t, good.with("COMMAND", verb)); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
	}
	r.wantState(t, before)
}

// Invalid bytes on the agent's socket: the agent answers or closes the connection, and continues.
func TestBadBytes(t *testing.T) {
	r := newRig(t)
	before := r.state(t)
	for _, bytes := range []string{
		"", "\n", "\x00\x00\x00\n", "{", "null\n", "GET / HTTP/1.1\r\n\r\n",
		`{"command":"ADD","containerID":"a","ifName":"eth0","netns":"/proc/self/ns/net","config":{"name":"ovsdn"},"timeoutMillis":9223372036854775807}` + "\n",
		`{"command":"GC","config":{"name":"ovsdn","cni.dev/valid-attachments":[{"containerID":1}]}}` + "\n",
		strings.Repeat("[", 1<<16) + "\n", strings.Repeat("x", 4<<20),
	} {
		conn, err := net.Dial("unix", r.config.Socket)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, bytes) // fails when the agent has heard enough
		if err := conn.(*net.UnixConn).CloseWrite(); err == nil {
			_, _ = io.ReadAll(conn) // reset when it did not read all
		}
		conn.Close()
	}
	if err := r.status(t); err != nil {
		t.Error(err)
	}
	r.wantState(t, before)
}

// An address disk that is full, or becomes read-only: ADD and DEL fail with I/O errors without partial state, users are notified, and
// afterwards all works.
func TestFailingDisk(t *testing.T) {
	r := newRig(t)
	list := r.list(t, "1.1.0", nil)
	there, late := newPod(t, "there"), newPod(t, "late")
	if _, err := r.cni.AddNetworkList(t.Context(), list, there.runtimeConf()); err != nil {
		t.Fatal(err)
	}
	before := r.state(t)
	for name, fail := range map[string]func(testing.TB) func(){"full": r.disk.fill, "read-only": r.disk.readOnly} {
		t.Run(name, func(t *testing.T) {
			repair := fail(t)
			for range 2 {
				if _, err := r.cni.AddNetworkList(t.Context(), list, late.runtimeConf()); code(t, err) != types.ErrIOFailure {
					t.Errorf("ADD: %v", err)
				}
				if err := r.cni.DelNetworkList(t.Context(), list, late.runtimeConf()); err != nil {
					t.Errorf("DEL of what was not added: %v", err)
				}
			}
			r.wantEvent(t, "pod late: "+eventreason.NetworkAttachFailed)
			r.wantEvent(t, "node: "+eventreason.AddressStorageFailing)
			if err := r.cni.GetStatusNetworkList(t.Context(), list); code(t, err) != types.ErrPluginNotAvailable {
				t.Errorf("STATUS: %v", err)
			}
			if err := r.cni.CheckNetworkList(t.Context(), list, there.runtimeConf()); err != nil {
				t.Errorf("CHECK of an attached pod: %v", err)
			}
			repair()
			r.wantState(t, before)
			if _, err := r.cni.AddNetworkList(t.Context(), list, late.runtimeConf()); err != nil {
				t.Errorf("ADD afterwards: %v", err)
			}
			if err := r.status(t); err != nil {
				t.Errorf("STATUS afterwards: %v", err)
			}
			if err := r.cni.DelNetworkList(t.Context(), list, late.runtimeConf()); err != nil {
				t.Error(err)
			}
			r.wantState(t, before)
		})
	}
	if err := r.cni.DelNetworkList(t.Context(), list, there.runtimeConf()); err != nil {
		t.Error(err)
	}
}

// The agent starts with invalid files in the directory of leases, one of them of a running pod.
func TestBrokenAddressFiles(t *testing.T) {
	r := newRig(t)
	list := r.list(t, "1.1.0", nil)
	before := r.state(t)
	there := newPod(t, "there")
	result, err := r.cni.AddNetworkList(t.Context(), list, there.runtimeConf())
	if err != nil {
		t.Fatal(err)
	}
	r.stop(t)
	made, err := current.NewResultFromResult(result)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(r.disk.path, bareagent.Network)
	for name, content := range map[string]string{
		made.IPs[0].Address.IP.String(): "", // torn
		"10.128.2.20":                   "old-format",
		"10.128.2.21":                   "dead\r\neth0",
		"10.128.2.22":                   "\xff\xfe\x00",
		"10.128.2.23":                   there.id + "\r\neth0", // a second for the same pod
		"last_reserved_ip.0":            "999.999.999.999",
		"freed":                         "\x00\n10.128.2.\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "10.128.2.24"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.start(t)
	if err := r.cni.CheckNetworkList(t.Context(), list, there.runtimeConf()); err != nil {
		t.Error(err)
	}
	late := newPod(t, "late")
	if _, err := r.cni.AddNetworkList(t.Context(), list, late.runtimeConf()); err != nil {
		t.Error(err)
	}
	for _, p := range []*pod{there, late} {
		if err := r.cni.DelNetworkList(t.Context(), list, p.runtimeConf()); err != nil {
			t.Error(err)
		}
	}
	r.wantState(t, before)
}

// STATUS as the plugin gets it from the agent, connecting to its socket included. It must stay below a millisecond, also while Open
// vSwitch hangs.
func BenchmarkStatus(b *testing.B) {
	r := newRig(b)
	ask := func(b *testing.B) {
		for b.Loop() {
			_ = r.status(b) // an error while vswitchd hangs
		}
	}
	b.Run("healthy", ask)
	resume := r.PauseVSwitchd(b)
	defer resume()
	r.awaitStatus(b, types.ErrLimitedConnectivity)
	b.Run("while vswitchd hangs", ask)
}

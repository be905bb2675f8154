package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// kubeconfig refers to a server that never answers.
func kubeconfig(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	content := `{apiVersion: v1, kind: Config, current-context: x,
clusters: [{name: x, cluster: {server: "http://127.0.0.1:1"}}], contexts: [{name: x, context: {cluster: x}}]}`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestRun_invalidFlags(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, tc := range []struct {
		name string
		args []string
		want []string // lines on standard error
	}{
		{"unknown flag", []string{"--nonsense"}, []string{"ovsdn-controller: unknown flag: --nonsense"}},
		{"argument", []string{"nonsense"}, []string{`ovsdn-controller: unknown command "nonsense" for "ovsdn-controller"`}},
		{"no number", []string{"--vxlan-port", "70000"}, []string{
			`ovsdn-controller: invalid argument "70000" for "--vxlan-port" flag: strconv.ParseUint: parsing "70000": value out of range`,
		}},
		{"all at once", []string{"--kubeconfig", "/nowhere", "--cluster-network", "10.128.0.1/14", "--cluster-network", "172.30.0.0/20", "--mtu", "1",
			"--healthz-bind-address", "nonsense"}, []string{
			"ovsdn-controller: --kubeconfig /nowhere: stat /nowhere: no such file or directory",
			`--healthz-bind-address: "nonsense" is not an address: write HOST:PORT, or 0 for none`,
			"--cluster-network: 10.128.0.1/14 has bits set behind its mask: write 10.128.0.0/14",
			"--service-network: 172.30.0.0/16 overlaps the cluster network 172.30.0.0/20: choose ranges that are disjoint",
			"--mtu: 1 bytes is out of range: choose 576 to 65485, or leave it out for the nodes' own less 50",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stderr bytes.Buffer
			if code := run(t.Context(), tc.args, &stderr, &stderr); code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			want := append(tc.want, "Run 'ovsdn-controller --help' for the flags.", "")
			if diff := cmp.Diff(want, strings.Split(stderr.String(), "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A pod without any address of the API server.
func TestRun_noAPIServer(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	var stderr bytes.Buffer
	if code := run(t.Context(), []string{}, &stderr, &stderr); code != exitUsage || !strings.Contains(stderr.String(), "no --kubeconfig") {
		t.Errorf("exit code %d: %s", code, &stderr)
	}
}

// An address in use is an error of the flags that only listening shows.
func TestRun_addressInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var stderr bytes.Buffer
	code := run(t.Context(), []string{"--kubeconfig", kubeconfig(t), "--healthz-bind-address", listener.Addr().String()}, &stderr, &stderr)
	if code != exitFailed || !strings.Contains(stderr.String(), "address already in use (give another, or 0 for none)") {
		t.Errorf("exit code %d: %s", code, &stderr)
	}
}

// The program waits for an API server that does not answer, and exits with 0 on either signal.
func TestRun_stopsOnSignal(t *testing.T) {
	for _, tc := range []struct {
		signal os.Signal
		elect  string
		waits  string // in the log
	}{
		{syscall.SIGTERM, "--leader-elect=false", "Failed to discover network API"},
		{syscall.SIGINT, "--leader-elect", "Error retrieving lease lock"},
	} {
		t.Run(tc.signal.String()+" "+tc.elect, func(t *testing.T) {
			p := start(t, "--kubeconfig", kubeconfig(t), tc.elect)
			p.waitLog(t, tc.waits)
			p.signal(t, tc.signal)
			p.wantExit(t, exitOK)
		})
	}
}

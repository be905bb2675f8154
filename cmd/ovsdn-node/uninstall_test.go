package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const kubeconfig = `{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: k, cluster: {server: "https://kubeconfig.example:6443"}}],
contexts: [{name: c, context: {cluster: k}}]}`

func isUsage(err error) bool {
	_, ok := errors.AsType[usageError](err)
	return ok
}

// uninstall runs the subcommand against a cluster that has the network installed, so that nothing is touched.
func uninstall(t *testing.T, args ...string) error {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.Namespace{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "ovsdn-system"},
		})
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command()
	cmd.SetArgs(append([]string{"uninstall", "--unless-installed=ovsdn-system", "--kubeconfig=" + path, "--kube-apiserver=" + server.URL}, args...))
	return cmd.ExecuteContext(t.Context())
}

// Node objects may have another name than their hosts, and names of hosts may be what those of Nodes must not.
func TestUninstall_ignoresHostname(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread() // for good: the thread, with its host name, ends with the test
	if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Node1", "node_1", "node1"} {
		if err := unix.Sethostname([]byte(name)); err != nil {
			t.Fatal(err)
		}
		if err := uninstall(t); isUsage(err) || err == nil || !strings.Contains(err.Error(), "namespace ovsdn-system exists") {
			t.Errorf("host name %s: got error %v, want that the namespace exists", name, err)
		}
	}
}

func TestUninstall_invalidFlags(t *testing.T) {
	for _, flag := range []string{"--cni-socket=", "--cni-conf-dir=net.d", "--cni-bin-dir=bin", "--ipam-dir=networks", "--sysctl-dir=sys", "--node-name=node1"} {
		if err := uninstall(t, flag); !isUsage(err) || !strings.Contains(err.Error(), strings.Split(flag, "=")[0]) {
			t.Errorf("%s: got error %v, want a usage error that names the flag", flag, err)
		}
	}
}

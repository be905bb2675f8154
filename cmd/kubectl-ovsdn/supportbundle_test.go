package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// Credentials that must not be in a bundle. They have the form of real ones, and are none.
const (
	fakeToken = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0xxxxxxxx.c2lnbmF0dXJlc2lnbmF0dXJl"
	fakeKey   = "-----BEGIN EC " + "PRIVATE KEY-----\nMHcCAQEEIabc/+=\n-----END EC " + "PRIVATE KEY-----"
)

func bundleAPI(t *testing.T) *fakeAPI {
	t.Helper()
	failing := readyStatus()
	failing.Ready = false
	pod := func(name, kind, node string, restarts int) any {
		return map[string]any{
			"metadata": map[string]any{"name": name, "ownerReferences": []any{map[string]any{"kind": kind, "name": "x"}}}, "spec": map[string]any{"nodeName": node},
			"status": map[string]any{"containerStatuses": []any{map[string]any{"name": "main", "restartCount": restarts}}},
		}
	}
	logs := "/api/v1/namespaces/ovsdn-system/pods/"
	return newFakeAPI(t, map[string]any{
		"/version":                           map[string]any{"gitVersion": "v1.36.3"},
		diagnosticsPath + "/nodestatuses":    nodeStatuses(readyStatus(), failing),
		diagnosticsPath + "/nodeflows/node2": diagnostics.NodeFlows{ObjectMeta: metav1.ObjectMeta{Name: "node2"}, Flows: []diagnostics.Flow{{Match: "ip"}}},
		"/api/v1/namespaces/ovsdn-system/pods": map[string]any{"items": []any{
			pod("agent-1", "DaemonSet", "node1", 0), pod("agent-2", "DaemonSet", "node2", 1), pod("controller", "ReplicaSet", "node1", 0)}},
		"/api/v1/namespaces/ovsdn-system/configmaps": map[string]any{"items": []any{map[string]any{"data": map[string]any{"key": fakeKey}}}},
		"/api/v1/namespaces/ovsdn-system/secrets":    map[string]any{"items": []any{map[string]any{"data": map[string]any{"key": "secret-value"}}}},
		"/apis/network.openshift.io/v1/hostsubnets":  map[string]any{"items": []any{map[string]any{"metadata": map[string]any{"name": "node1"}}}},
		"/apis/networking.k8s.io/v1/networkpolicies": metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: "networkpolicies is forbidden"},
		logs + "agent-2/log":                         "started with Bearer " + fakeToken,
		logs + "controller/log":                      "leading; token=" + fakeToken,
		logs + "agent-1/log":                         "not wanted",
	})
}

func readBundle(t *testing.T, content []byte) map[string]string {
	t.Helper()
	plain, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(header.Name, "ovsdn-support/")] = string(text)
	}
}

// A bundle has the state, flows and logs of the named nodes, and no credential; what could not be read is listed in it.
func TestSupportBundle(t *testing.T) {
	api := bundleAPI(t)
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	code, out, errOut := api.run(t.Context(), "support-bundle", "node2", "--file="+path)
	if code != exitFailed || out != path+" written\n" || !strings.Contains(errOut, "warning: /apis/networking.k8s.io/v1/networkpolicies: networkpolicies is forbidden\n") {
		t.Errorf("got exit code %d, output %q, error output %q", code, out, errOut)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := readBundle(t, content)
	all := ""
	for name, text := range files {
		all += name + "\n" + text + "\n"
	}
	for _, name := range []string{
		"version.json", "objects/version.json", "objects/apis/network.openshift.io/v1/hostsubnets.json", "nodestatuses.json", "flows/node2.json",
		"logs/agent-2/main.log", "logs/agent-2/main.previous.log", "logs/controller/main.log", "contents.txt",
	} {
		if files[name] == "" {
			t.Errorf("no %s among\n%s", name, all)
		}
	}
	for _, text := range []string{fakeToken, "MHcCAQEE", "secret-value", "logs/agent-1", "flows/node1", "networkpolicies.json"} {
		if strings.Contains(all, text) {
			t.Errorf("%q is in the bundle:\n%s", text, all)
		}
	}
	for _, text := range []string{"- Secrets: not read\n", "tokens in other files: 4 removed", "- /apis/networking.k8s.io/v1/networkpolicies: networkpolicies is forbidden\n"} {
		if !strings.Contains(files["contents.txt"], text) {
			t.Errorf("no %q in contents.txt:\n%s", text, files["contents.txt"])
		}
	}

	if code, _, errOut := api.run(t.Context(), "support-bundle", "--file="+path); code != exitFailed || !strings.Contains(errOut, "exists; name another file") {
		t.Errorf("a second time: got exit code %d, error output %q", code, errOut)
	}
	if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, content) {
		t.Error("the second run changed the file")
	}
}

// A log is cut at its begin: what happened last is at its end.
func TestTail(t *testing.T) {
	for _, lines := range []int{10, bundleLogBytes / 8, 3 * bundleLogBytes / 8} {
		var log tail
		for i := range lines {
			fmt.Fprintf(&log, "%09d\n", i)
		}
		text, isWhole := log.text()
		if want := lines*10 <= bundleLogBytes; isWhole != want || len(text)%10 != 0 || len(text) > bundleLogBytes || !bytes.HasSuffix(text, fmt.Appendf(nil, "%09d\n", lines-1)) {
			t.Errorf("%d lines: got %d bytes, whole %v, want %v", lines, len(text), isWhole, want)
		}
	}
}

// Without names, nodes with a problem come first; standard output is no file.
func TestSupportBundle_standardOutput(t *testing.T) {
	_, out, _ := bundleAPI(t).run(t.Context(), "support-bundle", "--file=-")
	files := readBundle(t, []byte(out))
	if files["flows/node2.json"] == "" || files["logs/agent-1/main.log"] == "" || !strings.Contains(files["contents.txt"], "- flows of node1: ") {
		t.Errorf("got %q", files)
	}
}

func FuzzCredentials(f *testing.F) {
	patterns := newCredentials()
	f.Add([]byte("a"), []byte("b"))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		for _, credential := range []string{fakeToken, fakeKey} {
			content := bytes.Join([][]byte{before, []byte(credential), after}, []byte("\n"))
			clean, removed := patterns.remove(content)
			if removed == 0 || bytes.Contains(clean, []byte(credential)) {
				t.Errorf("%q is still in %q", credential, clean)
			}
		}
	})
}

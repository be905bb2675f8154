package apiserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

const kubeconfig = `{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: k, cluster: {server: "https://kubeconfig.example:6443"}}],
users: [{name: u, user: {token: secret}}],
contexts: [{name: c, context: {cluster: k, user: u}}]}`

func TestConfig_server(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	for server, want := range map[string]string{"": "https://kubeconfig.example:6443", "https://192.0.2.10:6443": "https://192.0.2.10:6443"} {
		c, err := Config(path, server)
		if err != nil {
			t.Fatal(err)
		}
		if c.Host != want || c.BearerToken != "secret" {
			t.Errorf("with the server %q: got host %s and token %q, want host %s and the kubeconfig's token", server, c.Host, c.BearerToken, want)
		}
	}
}

func TestConfig_errorNamesFlag(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // as outside of a pod
	for name, test := range map[string]struct{ kubeconfig, server, want string }{
		"no URL":              {"", "192.0.2.10:6443", "--kube-apiserver="},
		"no host":             {"", "https:///", "--kube-apiserver="},
		"no kubeconfig":       {"", "https://192.0.2.10:6443", "no --kubeconfig"},
		"no such file":        {"/nonexistent", "", "--kubeconfig /nonexistent"},
		"unexpanded variable": {"", "$(KUBE_APISERVER)", "--kube-apiserver="},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Config(test.kubeconfig, test.server); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s…", err, test.want)
			}
		})
	}
}

func TestAddress(t *testing.T) {
	for name, test := range map[string]struct {
		client rest.Config
		want   string // none: not known
	}{
		"port":                {rest.Config{Host: "https://192.0.2.10:6443"}, "192.0.2.10:6443"},
		"path":                {rest.Config{Host: "https://192.0.2.10:6443/cluster"}, "192.0.2.10:6443"},
		"port of HTTPS":       {rest.Config{Host: "https://192.0.2.10"}, "192.0.2.10:443"},
		"port of HTTP":        {rest.Config{Host: "http://192.0.2.10"}, "192.0.2.10:80"},
		"no scheme":           {rest.Config{Host: "192.0.2.10:6443"}, "192.0.2.10:6443"},
		"IPv4 in IPv6":        {rest.Config{Host: "https://[::ffff:192.0.2.10]:6443"}, "192.0.2.10:6443"},
		"host name":           {rest.Config{Host: "https://api.example:6443"}, ""},
		"port without number": {rest.Config{Host: "https://192.0.2.10:x"}, ""},
	} {
		got, ok := Address(&test.client)
		if ok != (test.want != "") || ok && got.String() != test.want {
			t.Errorf("%s: got %v, %v, want %q", name, got, ok, test.want)
		}
	}
}

package controlplane

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A second Prepare must not replace keys that running processes use.
func TestPrepareRetainsKeys(t *testing.T) {
	config := Config{Kube: "/bin/kube", Dir: filepath.Join(t.TempDir(), "cp")}
	read := func() string {
		t.Helper()
		p, err := Prepare(config)
		if err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(config.Dir, "pki", "*"))
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for _, file := range append(files, p.kubeconfigPath(admin)) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.WriteString(file + string(content))
		}
		return all.String()
	}
	first := read()
	if !strings.Contains(first, "PRIVATE KEY") {
		t.Error("no keys were written")
	}
	if read() != first {
		t.Error("the second Prepare changed keys")
	}
	// A certificate without its key is issued again.
	if err := os.Remove(filepath.Join(config.Dir, "pki", "admin.key")); err != nil {
		t.Fatal(err)
	}
	if read() == first {
		t.Error("a missing key stays missing")
	}
}

func TestPrepareRefuses(t *testing.T) {
	for name, config := range map[string]Config{
		"no binary":     {Dir: t.TempDir()},
		"relative path": {Kube: "/bin/kube", Dir: "cp"},
		"long path":     {Kube: "/bin/kube", Dir: "/tmp/" + strings.Repeat("x", 100)},
	} {
		if _, err := Prepare(config); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// kube-apiserver connects to endpoints, unless a node translates the cluster IPs, or it listens on the loopback interface.
func TestAPIServerRouting(t *testing.T) {
	address, loopback := netip.MustParseAddr("172.31.0.1"), netip.MustParseAddr("127.0.0.1")
	for _, test := range []struct {
		name   string
		config Config
		want   bool
	}{
		{"endpoints", Config{Address: address}, true},
		{"cluster IPs", Config{Address: address, ClusterIPs: true}, false},
		{"loopback interface", Config{Address: loopback}, false},
	} {
		if got := slices.Contains((&Plane{config: test.config}).APIServer().Args, "--enable-aggregator-routing=true"); got != test.want {
			t.Errorf("%s: got routing to endpoints %v, want %v", test.name, got, test.want)
		}
	}
}

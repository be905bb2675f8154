package controlplane

import (
	"os"
	"path/filepath"
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

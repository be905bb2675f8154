package cniserver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
)

func TestWriteConfig(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	if _, err := WriteConfig(dir, DefaultSocket); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, ConfigName)
	const want = `{
  "cniVersion": "1.0.0",
  "cniVersions": [
    "0.3.1",
    "0.4.0",
    "1.0.0",
    "1.1.0"
  ],
  "name": "ovsdn",
  "plugins": [
    {
      "type": "ovsdn-cni",
      "capabilities": {
        "portMappings": true
      }
    }
  ]
}
`
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Runtimes load it with libcni.
	list, err := libcni.NetworkConfFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if list.Name != "ovsdn" || list.CNIVersion != "1.1.0" || len(list.Plugins) != 1 || list.Plugins[0].Network.Type != "ovsdn-cni" {
		t.Errorf("libcni: got %+v, want plugin ovsdn-cni of network ovsdn in version 1.1.0", list)
	}
}

func TestWriteConfig_again(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ConfigName)
	if _, err := WriteConfig(dir, DefaultSocket); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := WriteConfig(dir, DefaultSocket); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("an equal file was replaced (%v)", err)
	}

	if _, err := WriteConfig(dir, "/tmp/other.sock"); err != nil {
		t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var plugin Config
	if err := json.Unmarshal(list.Plugins[0].Bytes, &plugin); err != nil || plugin.Socket != "/tmp/other.sock" {
		t.Errorf("socket of the plugin's configuration: got %q (%v), want /tmp/other.sock", plugin.Socket, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("files: got %v (%v), want only the configuration", entries, err)
	}
}

func TestRemoveConfig(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "20-other.conf")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is none
		if _, err := WriteConfig(dir, ""); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := RemoveConfig(dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v (%v)", entries, err)
	}
}

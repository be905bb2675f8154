package cnifiles

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

// warnings are the reported errors.
type warnings []string

func (w *warnings) warn(reason string, err error) { *w = append(*w, reason+": "+err.Error()) }

// reports are the Events about files that were written.
type reports []string

func (r *reports) add(eventType, reason, message string) {
	*r = append(*r, eventType+" "+reason+" "+message)
}

func newTestFiles(t *testing.T) (*Files, *warnings) {
	t.Helper()
	source := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(source, []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	got := &warnings{}
	return &Files{
		plugin:  &cniserver.Plugin{Source: source, Dir: t.TempDir()},
		confDir: t.TempDir(), socket: cniserver.DefaultSocket, warn: got.warn, report: new(reports).add,
	}, got
}

func filesIn(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func TestRuntimeFiles_otherFilesUnchanged(t *testing.T) {
	f, warned := newTestFiles(t)
	for _, other := range []string{filepath.Join(f.confDir, "99-other.conf"), filepath.Join(f.plugin.Dir, "bridge")} {
		if err := os.WriteFile(other, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		f.Sync(t.Context())
		if got := filesIn(t, f.confDir) + " " + filesIn(t, f.plugin.Dir); got != "10-ovsdn.conflist 99-other.conf bridge ovsdn-cni" {
			t.Errorf("there is %s", got)
		}
		for _, path := range []string{filepath.Join(f.confDir, cniserver.ConfigName), filepath.Join(f.plugin.Dir, cniserver.PluginName)} {
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
		}
	}
	f.Sync(t.Context())
	if err := f.Remove(); err != nil {
		t.Error(err)
	}
	if got := filesIn(t, f.confDir) + " " + filesIn(t, f.plugin.Dir); got != "99-other.conf bridge" {
		t.Errorf("after the removal there is %s", got)
	}
	if len(*warned) > 0 || f.Healthy() != nil {
		t.Errorf("warned of %q, %v", *warned, f.Healthy())
	}
}

func TestRuntimeFiles_otherNetworkFirst(t *testing.T) {
	f, warned := newTestFiles(t)
	if err := os.WriteFile(filepath.Join(f.confDir, "05-other.conflist"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Sync(t.Context())
	f.Sync(t.Context())
	if len(*warned) != 1 || !strings.HasPrefix((*warned)[0], eventreason.OtherNetworkFirst+": 05-other.conflist comes before 10-ovsdn.conflist") {
		t.Errorf("warned of %q", *warned)
	}
	if err := f.Healthy(); err != nil {
		t.Errorf("healthy: got %v, want nil", err)
	}
}

func TestRuntimeFiles_readOnlyDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	f, warned := newTestFiles(t)
	if err := unix.Mount("ovsdn-test", f.confDir, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(f.confDir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	f.Sync(t.Context())
	f.Sync(t.Context())
	if len(*warned) != 1 || !strings.Contains((*warned)[0], "read-only file system") || !strings.Contains((*warned)[0], f.confDir) {
		t.Errorf("warned of %q", *warned)
	}
	if f.Healthy() == nil {
		t.Error("healthy: got nil, want an error")
	}
	if err := unix.Mount("", f.confDir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	f.Sync(t.Context())
	if err := f.Healthy(); err != nil {
		t.Errorf("healthy after the remount: got %v, want nil", err)
	}
}

// Files that were deleted are written again, and an Event on the Node names them: a normal one at the agent's start, a warning later.
func TestRuntimeFiles_deleted(t *testing.T) {
	f, _ := newTestFiles(t)
	var got reports
	f.report = got.add
	config, plugin := filepath.Join(f.confDir, cniserver.ConfigName), filepath.Join(f.plugin.Dir, cniserver.PluginName)
	for i, tc := range []struct {
		lose []string
		want string // of the new Event; "": none
	}{
		{nil, "Normal CNIFilesWritten wrote " + plugin + " and " + config},
		{nil, ""},
		{[]string{config}, "Warning CNIFilesWritten wrote " + config + " again"},
		{[]string{plugin}, "Warning CNIFilesWritten wrote " + plugin + " again"},
		{[]string{config, plugin}, "Warning CNIFilesWritten wrote " + plugin + " and " + config + " again"},
	} {
		got = nil
		for _, path := range tc.lose {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		f.Sync(t.Context())
		if tc.want == "" && len(got) > 0 || tc.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], tc.want)) {
			t.Errorf("step %d: reported %q, want %q", i, got, tc.want)
		}
	}
}

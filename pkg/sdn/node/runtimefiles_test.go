package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
)

// told are the warnings that the files' keeper gave.
type told []string

func (w *told) warn(reason string, err error) { *w = append(*w, reason+": "+err.Error()) }

// reports are the Events about files that were written.
type reports []string

func (r *reports) add(eventType, reason, message string) {
	*r = append(*r, eventType+" "+reason+" "+message)
}

func newTestFiles(t *testing.T) (*runtimeFiles, *told) {
	t.Helper()
	source := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(source, []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	warnings := &told{}
	return &runtimeFiles{
		plugin:  &cniserver.Plugin{Source: source, Dir: t.TempDir()},
		confDir: t.TempDir(), socket: cniserver.DefaultSocket, warn: warnings.warn, report: new(reports).add,
	}, warnings
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

func TestRuntimeFilesAreWrittenKeptAndRemovedAndOthersAreNot(t *testing.T) {
	f, warnings := newTestFiles(t)
	for _, other := range []string{filepath.Join(f.confDir, "99-other.conf"), filepath.Join(f.plugin.Dir, "bridge")} {
		if err := os.WriteFile(other, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		f.sync(t.Context())
		if got := filesIn(t, f.confDir) + " " + filesIn(t, f.plugin.Dir); got != "10-ovsdn.conflist 99-other.conf bridge ovsdn-cni" {
			t.Errorf("there is %s", got)
		}
		for _, path := range []string{filepath.Join(f.confDir, cniserver.ConfigName), filepath.Join(f.plugin.Dir, cniserver.PluginName)} {
			if err := os.Remove(path); err != nil { // somebody tidies up
				t.Error(err)
			}
		}
	}
	f.sync(t.Context())
	if err := f.remove(); err != nil {
		t.Error(err)
	}
	if got := filesIn(t, f.confDir) + " " + filesIn(t, f.plugin.Dir); got != "99-other.conf bridge" {
		t.Errorf("after the removal there is %s", got)
	}
	if len(*warnings) > 0 || f.healthy() != nil {
		t.Errorf("warned of %q, %v", *warnings, f.healthy())
	}
}

func TestAnotherNetworksConfigurationThatComesFirstIsToldOnce(t *testing.T) {
	f, warnings := newTestFiles(t)
	if err := os.WriteFile(filepath.Join(f.confDir, "05-other.conflist"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.sync(t.Context())
	f.sync(t.Context())
	if len(*warnings) != 1 || !strings.HasPrefix((*warnings)[0], reasonNotFirst+": 05-other.conflist comes before 10-ovsdn.conflist") {
		t.Errorf("warned of %q", *warnings)
	}
	if err := f.healthy(); err != nil {
		t.Errorf("that is no fault of this network: %v", err)
	}
}

func TestReadOnlyDirectoryIsAFaultUntilItIsWritable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	f, warnings := newTestFiles(t)
	if err := unix.Mount("ovsdn-test", f.confDir, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(f.confDir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	f.sync(t.Context())
	f.sync(t.Context())
	if len(*warnings) != 1 || !strings.Contains((*warnings)[0], "read-only file system") || !strings.Contains((*warnings)[0], f.confDir) {
		t.Errorf("warned of %q", *warnings)
	}
	if f.healthy() == nil {
		t.Error("no fault")
	}
	if err := unix.Mount("", f.confDir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	f.sync(t.Context())
	if err := f.healthy(); err != nil {
		t.Errorf("writable again: %v", err)
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
		f.sync(t.Context())
		if tc.want == "" && len(got) > 0 || tc.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], tc.want)) {
			t.Errorf("step %d: reported %q, want %q", i, got, tc.want)
		}
	}
}

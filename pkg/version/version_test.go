package version

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

func TestStampGoesBeforeBuildInfo(t *testing.T) {
	build := &debug.BuildInfo{
		Main:     debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}},
	}
	for name, test := range map[string]struct {
		stamp string
		build *debug.BuildInfo
		want  Info
	}{
		"stamped":             {"v2 def 2026-02-03T04:05:06Z", build, Info{"v2", "def", "2026-02-03T04:05:06Z"}},
		"by the go command":   {"", build, Info{"v1.2.3", "abc", "2026-01-02T03:04:05Z"}},
		"a stamp with a hole": {"v2 def", build, Info{"v1.2.3", "abc", "2026-01-02T03:04:05Z"}},
		"of a work tree":      {"", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, Info{Unknown, Unknown, Unknown}},
		"without stamp":       {"", &debug.BuildInfo{}, Info{Unknown, Unknown, Unknown}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := read(test.stamp, test.build); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestTimeIsInUTCOrNone(t *testing.T) {
	for created, want := range map[string]string{
		"2026-01-02T03:04:05Z": "2026-01-02T03:04:05Z", "2026-01-02T03:04:05+02:00": "2026-01-02T01:04:05Z", Unknown: "1970-01-01T00:00:00Z",
	} {
		if got := (Info{Created: created}).Time().Format(time.RFC3339); got != want {
			t.Errorf("%s: got %s, want %s", created, got, want)
		}
	}
}

// Each program, in the short tier only ovsdn-cni, prints with --version one line with what `make build` stamps.
func TestEveryProgramPrintsItsVersion(t *testing.T) {
	pattern := "../../cmd/*"
	if testing.Short() {
		t.Log("short tier: only ovsdn-cni, the smallest: linking the others takes seconds")
		pattern = "../../cmd/ovsdn-cni"
	}
	programs, err := filepath.Glob(pattern)
	if err != nil || len(programs) == 0 {
		t.Fatalf("programs %s: got %v, error %v, want at least one", pattern, programs, err)
	}
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", append([]string{"build", "-trimpath", "-o", dir + "/",
		"-ldflags", "-s -w -X 'github.com/ovsdn/ovsdn/pkg/version.stamp=v9.9 0123abcd 2026-01-02T03:04:05Z'"}, programs...)...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, program := range programs {
		name := filepath.Base(program)
		t.Run(name, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), filepath.Join(dir, name), "--version").Output()
			if err != nil {
				t.Fatal(err)
			}
			want := "v9.9 (revision 0123abcd of 2026-01-02T03:04:05Z)\n"
			if !strings.HasSuffix(string(out), want) || strings.Count(string(out), "\n") != 1 {
				t.Errorf("got %q, want a line that ends with %q", out, want)
			}
		})
	}
}

package vm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	t.Parallel()
	var out bytes.Buffer
	written := filepath.Join(os.TempDir(), "written in the guest")
	code, err := Run(t.Context(), Options{
		Dir:    "/usr/share/openvswitch",
		Env:    []string{"QUOTED=it's $HOME"},
		Output: &out,
	}, "/bin/sh", "-c", `
		echo "$PWD $(id -u) $QUOTED $1"
		test "$(cut -d. -f1 /proc/uptime)" -gt 10 && test "$(readlink /proc/self/ns/time)" = "$(readlink /proc/1/ns/time)" && echo "the kernel's clocks"
		modprobe -a openvswitch vport-vxlan && echo modules loaded
		echo x > "$2" && echo written
		echo to standard error >&2
		exit 7`, "-", "an argument", written)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"/usr/share/openvswitch 0 it's $HOME an argument", "the kernel's clocks", "modules loaded", "written", "to standard error", "",
	}, "\n")
	if diff := cmp.Diff(want, out.String()); diff != "" || code != 7 {
		t.Errorf("exit code %d; output (-want +got):\n%s", code, diff)
	}
	if _, err := os.Stat(written); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what the guest wrote is on the host (%v)", err)
	}
}

func TestRunWithoutExitCode(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	t.Run("time is up", func(t *testing.T) {
		t.Parallel()
		_, err := Run(t.Context(), Options{Timeout: 2 * time.Second}, "/bin/sleep", "100")
		if !errors.Is(err, ErrTimeout) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("canceled", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if _, err := Run(ctx, Options{}, "/bin/sleep", "100"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("the guest dies", func(t *testing.T) {
		t.Parallel()
		_, err := Run(t.Context(), Options{}, "/bin/sh", "-c", "echo b > /proc/sysrq-trigger; sleep 100")
		if err == nil || !strings.Contains(err.Error(), "Resetting") {
			t.Errorf("the error does not show the console: %v", err)
		}
	})
}

func TestRunRefuses(t *testing.T) {
	if _, err := Run(t.Context(), Options{}); err == nil {
		t.Error("no error without a command")
	}
	if _, err := Run(t.Context(), Options{Dir: "relative"}, "true"); err == nil {
		t.Error("no error with a relative folder")
	}
}

// The standard program accepts the archive.
func TestInitramfs(t *testing.T) {
	dir := t.TempDir()
	module := filepath.Join(dir, "a.ko")
	if err := os.WriteFile(module, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "initramfs")
	if err := writeInitramfs(name, []string{module, module}); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(busybox, "cpio", "-idm")
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for file, want := range map[string]string{"init": string(initScript), "modules/000-a.ko": "12345", "modules/001-a.ko": "12345"} {
		if got, err := os.ReadFile(filepath.Join(dir, file)); string(got) != want {
			t.Errorf("%s has %d bytes, want %d (%v)", file, len(got), len(want), err)
		}
	}
	if target, err := os.Readlink(filepath.Join(dir, "bin", "sh")); target != "busybox" {
		t.Errorf("bin/sh leads to %q (%v)", target, err)
	}
}

package browser

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// programVariable names the directory of the program, which TestMain sets.
const programVariable = "OVSDN_BROWSER_PROGRAM"

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "ovsdn-browser")
	if err == nil {
		err = os.Setenv(programVariable, dir)
	}
	if err != nil {
		panic(err) // into the log that failed tests show
	}
	defer os.RemoveAll(dir)
	m.Run() // the test binary exits with its result
}

// program returns the path of kubectl-ovsdn, which the first test that needs it builds.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(os.Getenv(programVariable), "kubectl-ovsdn")
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-trimpath", "-o", path, "./cmd/kubectl-ovsdn")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build kubectl-ovsdn: %v\n%s", err, out)
	}
	return path
}

// dashboard starts the program for the API server until the test ends, and returns the URL that it prints.
func dashboard(t *testing.T, api string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t), "--server", api, "--kubeconfig", os.DevNull, "dashboard")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Wait() // the error is that of the test's context, which has ended
		if code := cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("kubectl ovsdn dashboard, interrupted: got exit code %d", code)
		}
	})
	deadline := time.AfterFunc(startLimit, func() { _ = out.Close() }) // which ends the read
	line, err := bufio.NewReader(out).ReadString('\n')
	deadline.Stop()
	if err != nil {
		t.Fatalf("read the URL, for %v at most: %v", startLimit, err)
	}
	go io.Copy(io.Discard, out)
	return strings.TrimSpace(line)
}

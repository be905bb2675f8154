package components

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// toolchain is the go command.
type toolchain struct {
	path    string
	version string // as in "go1.26.8"
}

// findToolchain looks where Go's own instructions install it too, since sudo has a PATH of its own.
func findToolchain(ctx context.Context, dir string) (toolchain, error) {
	path, err := exec.LookPath("go")
	if err != nil {
		var fallbackErr error
		if path, fallbackErr = exec.LookPath("/usr/local/go/bin/go"); fallbackErr != nil {
			return toolchain{}, fmt.Errorf("install Go, or put it on the PATH of this user: %w", err)
		}
	}
	command := exec.CommandContext(ctx, path, "env", "GOVERSION")
	command.Dir = dir
	out, err := command.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return toolchain{}, fmt.Errorf("%s: %w: %s", command, err, bytes.TrimSpace(exit.Stderr))
		}
		return toolchain{}, fmt.Errorf("%s: %w", command, err)
	}
	return toolchain{path: path, version: strings.TrimSpace(string(out))}, nil
}

// build compiles p, whose package or module is in dir, into the file out.
func (t toolchain) build(ctx context.Context, p program, dir, out, logFile string) error {
	if err := os.MkdirAll(filepath.Dir(logFile), 0o755); err != nil {
		return err
	}
	log, err := os.Create(logFile)
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.CommandContext(ctx, t.path, slices.Concat([]string{"build", "-o", out}, p.flags())...)
	command.Dir = dir
	// The go command leaves its work files behind when it is interrupted, so they lie where the cache cleans up.
	command.Env = append(append(os.Environ(), p.env()...), "GOTMPDIR="+filepath.Dir(out))
	command.Stdout, command.Stderr = log, log
	// An interrupted go command stops its compilers, a killed one does not. It gets an interrupt when the context ends or the caller dies.
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = 10 * time.Second
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGINT}

	fmt.Fprintf(log, "in %s, with %s: %q\n", dir, strings.Join(p.env(), " "), command.Args)
	if err := command.Run(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		tail, tailErr := lastLines(logFile, 15)
		return fmt.Errorf("%w; if a tool or a library is missing, scripts/bootstrap.sh installs it; log in %s ends:\n%s",
			errors.Join(err, tailErr), logFile, tail)
	}
	return nil
}

// lastLines returns up to n of a text file's last lines, out of its last 8 KiB.
func lastLines(path string, n int) (string, error) {
	const window = 8 << 10
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.NewSectionReader(f, max(0, size-window), window))
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n"), nil
}

// Package e2e drives a real cluster in the lab: a Kubernetes control plane, kubelet and containerd call the product, and the tests
// look at packets, at the switch and at the host, not at logs.
//
// All tests share one lab, which lives as long as `go test` runs. With OVSDN_E2E_LAB=name they use a lab that is
// already up and leave it there, which is what one wants while writing a test.
package e2e

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/lab"
)

// labVariable names the lab to every test. Who sets it keeps the lab.
const labVariable = "OVSDN_E2E_LAB"

// installVariable says who starts the product's programs in labs that tests bring up, see lab.Install. By default it is kubelet.
const installVariable = "OVSDN_E2E_INSTALL"

func install() lab.Install {
	return lab.Install(cmp.Or(os.Getenv(installVariable), string(lab.Manifests)))
}

// ownLab is the name of the lab that go test starts and takes down.
const ownLab = "e2e"

// What the lab may take, several times what it takes on two busy cores with warm caches. A cold one builds Kubernetes.
const (
	upTimeout   = 20 * time.Minute
	downTimeout = time.Minute
)

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Geteuid() != 0 || os.Getenv(labVariable) != "" {
		m.Run()
		return
	}
	ctx, stop := runContext()
	defer stop()
	lock, err := lockRun()
	if err != nil {
		log.Fatalf("e2e: %v", err)
	}
	defer lock.Close()
	if err := withLab(ctx, m.Run); err != nil {
		log.Fatalf("e2e: %v", err)
	}
}

// runContext ends when the run is interrupted, and before package testing ends the process, with what that would say.
func runContext() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	timeout, ok := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration)
	if !ok || timeout == 0 {
		return ctx, stop
	}
	ctx, cancel := context.WithTimeoutCause(ctx, max(timeout-2*downTimeout, 0), fmt.Errorf("the tests take longer than -timeout %v", timeout))
	return ctx, func() { cancel(); stop() }
}

// lockRun keeps two runs on one machine apart. The lock goes with the process.
func lockRun() (*os.File, error) {
	path := filepath.Join(os.TempDir(), "ovsdn-e2e.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another run of these tests is under way (%s is locked): %w", path, err), f.Close())
	}
	return f, nil
}

// withLab runs the tests in a new lab. Whatever comes of them, the lab goes; if they failed, its logs stay.
func withLab(ctx context.Context, run func() int) error {
	// A run that was killed leaves its lab behind.
	if err := takeDown(); err != nil {
		return err
	}
	began := time.Now()
	upCtx, cancel := context.WithTimeoutCause(ctx, upTimeout, fmt.Errorf("gave up after %v", upTimeout))
	defer cancel()
	_, err := lab.Up(upCtx, lab.Options{Name: ownLab, Shape: lab.Shape{Nodes: 2, Mode: lab.Subnet, Install: install()}, Progress: progress})
	if err != nil {
		return errors.Join(fmt.Errorf("bring the lab up: %w", err), saveLogs(ownLab), takeDown())
	}
	progress("the lab is up after %.1fs", time.Since(began).Seconds())
	if err := os.Setenv(labVariable, ownLab); err != nil {
		return errors.Join(err, takeDown())
	}
	stopped := context.AfterFunc(ctx, func() { abandon(context.Cause(ctx)) })
	began = time.Now()
	code := run()
	stopped()
	progress("the tests took %.1fs", time.Since(began).Seconds())
	if code == 0 {
		return takeDown()
	}
	return errors.Join(errors.New("tests failed"), saveLogs(ownLab), takeDown())
}

// abandon ends the process while tests run, since they can't be stopped.
func abandon(why error) {
	err := errors.Join(why, pprof.Lookup("goroutine").WriteTo(os.Stderr, 2), saveLogs(ownLab), takeDown())
	log.Fatalf("e2e: %v", err)
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, "e2e: "+format+"\n", args...) }

// takeDown works also when the run was interrupted.
func takeDown() error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), downTimeout, fmt.Errorf("gave up after %v", downTimeout))
	defer cancel()
	if _, err := lab.Down(ctx, ownLab, progress); err != nil {
		return fmt.Errorf("take the lab down: %w", err)
	}
	return nil
}

// saveLogs keeps what a lab's processes said, and says where.
func saveLogs(name string) error {
	l, err := lab.Open(name)
	if err != nil {
		return fmt.Errorf("keep the logs: %w", err)
	}
	to, err := os.MkdirTemp("", "ovsdn-e2e-logs-")
	if err != nil {
		return fmt.Errorf("keep the logs: %w", err)
	}
	if err := os.CopyFS(to, os.DirFS(l.LogDir())); err != nil {
		return fmt.Errorf("keep the logs: %w", err)
	}
	progress("the logs of lab %s are in %s", name, to)
	return nil
}

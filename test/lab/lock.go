package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockInterval is the time between two attempts to get a lock of another process.
const lockInterval = 50 * time.Millisecond

// startLockFile has the name of the lab that starts, and is locked in the meantime. It is not in the labs' folder, which the end of the last lab removes.
const startLockFile = "/run/ovsdn-lab.lock"

// RunsLock is locked by test runs that bring labs up. It is the same for all checkouts and environments of the machine: labs are known by their names.
const RunsLock = "/run/ovsdn-e2e.lock"

// acquire locks a lab's folder, which must exist, until the returned file is closed or the process ends in any way.
func acquire(ctx context.Context, dir string, progress func(string, ...any)) (*os.File, error) {
	var lock *os.File
	err := waitLock(ctx, progress, func() (err error) {
		lock, err = tryLock(dir)
		return err
	}, func() string { return "another ovsdn-lab, which changes lab " + filepath.Base(dir) })
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return lock, nil
}

// lockStart waits until no other lab of this machine starts, and excludes other starts until the returned file is closed or the process ends in
// any way. Labs that start at once would not leave each other enough of what preflight checks, and wait for each other's builds anyway.
func lockStart(ctx context.Context, path, name string, progress func(string, ...any)) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the start of labs: %w", err)
	}
	err = waitLock(ctx, progress, func() error { return flockCurrent(f, path) }, func() string { return "the start of " + starting(path) })
	if err == nil {
		err = errors.Join(f.Truncate(0), write(f, name))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

func write(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// starting names the lab that holds the lock of lockStart.
func starting(path string) string {
	name, err := os.ReadFile(path)
	if err != nil || len(name) == 0 { // the holder has not written it yet
		return "another lab"
	}
	return "lab " + string(name)
}

// waitLock tries until there is no error, or one other than that the lock is held. It reports what it waits for, and again when that changes.
func waitLock(ctx context.Context, progress func(string, ...any), try func() error, holder func() string) error {
	ticker := time.NewTicker(lockInterval)
	defer ticker.Stop()
	for reported := ""; ; {
		err := try()
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		what := holder()
		if what != reported {
			progress("waiting for %s", what)
			reported = what
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

func tryLock(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := flockCurrent(f, dir); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// flockCurrent locks the file and checks that the path still refers to it: another holder of the lock may have removed it.
func flockCurrent(f *os.File, path string) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	locked, err := f.Stat()
	if err != nil {
		return err
	}
	current, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !os.SameFile(locked, current) {
		return fs.ErrNotExist
	}
	return nil
}

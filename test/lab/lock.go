package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockInterval is the time between two attempts to get a lock of another process.
const lockInterval = 50 * time.Millisecond

// acquire locks a lab's folder, which must exist, until the returned file is closed or the process ends in any way.
func acquire(ctx context.Context, dir string, progress func(string, ...any)) (*os.File, error) {
	ticker := time.NewTicker(lockInterval)
	defer ticker.Stop()
	for reported := false; ; {
		lock, err := tryLock(dir)
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		if !reported {
			progress("waiting for another ovsdn-lab that is changing this lab")
			reported = true
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %s: another ovsdn-lab is changing this lab: %w", dir, context.Cause(ctx))
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

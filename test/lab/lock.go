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

// lockInterval is between two attempts to get a lock that somebody else has.
const lockInterval = 50 * time.Millisecond

// acquire locks a lab's folder, which must exist, until the returned file is closed or the process ends in any way.
func acquire(ctx context.Context, dir string, progress func(string, ...any)) (*os.File, error) {
	ticker := time.NewTicker(lockInterval)
	defer ticker.Stop()
	for told := false; ; {
		lock, err := tryLock(dir)
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		if !told {
			progress("waiting for another ovsdn-lab that is changing this lab")
			told = true
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

// flockCurrent locks the file and makes sure that it is still what the path names: it may have been removed while
// somebody else had the lock.
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

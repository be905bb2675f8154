package ipam

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// lockName is host-local's name of the file in the directory that is locked.
const lockName = "lock"

// Restore writes the files of held addresses that no longer exist, in a new directory if that was deleted. It returns how many were lost
// since the last call, those that Reserve had to write included.
func (i *IPAM) Restore(ctx context.Context) (restored int, err error) {
	err = i.locked(ctx, func() error {
		for o, addrs := range i.held {
			for _, addr := range addrs {
				written, err := i.write(addr, o)
				if err != nil {
					return fmt.Errorf("restore the lease of %s: %w", addr, err)
				}
				if written {
					i.restored++
				}
			}
		}
		restored, i.restored = i.restored, 0
		return nil
	})
	return restored, err
}

// reopen opens the directory again if it or its lock was deleted: a lock that has no name excludes no other process. What is held is
// in memory, so that nothing that is in use is allocated until Restore has written it.
func (i *IPAM) reopen() error {
	path := filepath.Join(i.dir, lockName)
	now, err := os.Stat(path)
	if err == nil && os.SameFile(now, i.lock) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("find the lock of the address directory: %w", err)
	}
	store, err := disk.New(filepath.Base(i.dir), filepath.Dir(i.dir))
	if err != nil {
		return fmt.Errorf("open the address directory again: %w", err)
	}
	if now, err = os.Stat(path); err != nil {
		return errors.Join(fmt.Errorf("find the lock of the address directory: %w", err), store.Close())
	}
	old := i.disk
	i.disk, i.lock = store, now
	return errors.Join(i.freed.rewrite(), old.Close())
}

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

// lockName is host-local's name of the lock file in the directory.
const lockName = "lock"

// Restore writes the deleted files of held addresses, in a new directory if that was deleted too. It returns the number of leases restored
// since the last call, including those by Reserve.
func (i *IPAM) Restore(ctx context.Context) (restored int, err error) {
	err = i.locked(ctx, func() error {
		for o, addrs := range i.held {
			for _, addr := range addrs {
				written, err := i.write(addr, o)
				if err != nil { // the file may exist, and be empty: no later call would write it
					return errors.Join(fmt.Errorf("restore the lease of %s: %w", addr, err), i.removeFile(o, addr))
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

// reopen opens the directory again if it or its lock was deleted: a deleted lock file excludes no other process. Held addresses are in memory,
// so none of them is allocated before Restore has written its file.
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

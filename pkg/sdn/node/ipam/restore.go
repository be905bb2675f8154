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

// Restore writes deleted leases of addresses in use, in a new directory if that was deleted too. It returns the number of leases restored
// since the last call, including those by Reserve.
func (i *IPAM) Restore(ctx context.Context) (restored int, err error) {
	err = i.withLock(ctx, func() error {
		for o, addrs := range i.leases {
			for _, addr := range addrs {
				written, err := i.createLease(addr, o)
				if err != nil { // the file may exist, and be empty: no later call would write it
					return errors.Join(fmt.Errorf("restore the lease of %s: %w", addr, err), i.deleteFile(o, addr))
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

// reopen opens the directory again if it or its lock was deleted: a deleted lock file does not exclude other processes. Leases are in memory,
// so that no address in use is allocated before Restore has written its lease.
func (i *IPAM) reopen() error {
	path := filepath.Join(i.dir, lockName)
	current, err := os.Stat(path)
	if err == nil && os.SameFile(current, i.lock) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("find the lock of the lease directory: %w", err)
	}
	store, err := disk.New(filepath.Base(i.dir), filepath.Dir(i.dir))
	if err != nil {
		return fmt.Errorf("open the lease directory again: %w", err)
	}
	if current, err = os.Stat(path); err != nil {
		return errors.Join(fmt.Errorf("find the lock of the lease directory: %w", err), store.Close())
	}
	old := i.disk
	i.disk, i.lock = store, current
	return errors.Join(i.freeQueue.rewrite(), old.Close())
}

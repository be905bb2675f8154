package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// Sync writes the leases of the addresses to stable storage. It holds no lock, so that concurrent ADDs share the writes of the disk.
func (i *IPAM) Sync(ctx context.Context, addrs []netip.Addr) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, addr := range addrs {
		if err := fsync(i.path(addr)); err != nil {
			return fmt.Errorf("sync the lease of %s: %w", addr, err)
		}
	}
	if err := fsync(i.dir); err != nil {
		return fmt.Errorf("sync the leases of %v: %w", addrs, err)
	}
	return nil
}

func fsync(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// probeName is the name of a file that Probe creates and deletes.
const probeName = "probe"

// Probe checks that the disk is writable: it writes and deletes a file of the size of a lease.
func (i *IPAM) Probe(ctx context.Context) error {
	return i.withLock(ctx, func() error {
		path := filepath.Join(i.dir, probeName)
		err := os.WriteFile(path, []byte("is the disk full, or read-only?"), 0o600)
		if removeErr := os.Remove(path); !errors.Is(removeErr, os.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
		if err != nil {
			return fmt.Errorf("write in the lease directory: %w", err)
		}
		return nil
	})
}

package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// Sync makes the addresses' files durable: from then on not even a power cut makes them free. It holds no lock, so that those
// who are set up at the same time share the disk's work.
func (i *IPAM) Sync(ctx context.Context, addrs []netip.Addr) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, addr := range addrs {
		if err := flush(i.path(addr)); err != nil {
			return fmt.Errorf("make the reservation of %s durable: %w", addr, err)
		}
	}
	if err := flush(i.dir); err != nil {
		return fmt.Errorf("make the reservation of %v durable: %w", addrs, err)
	}
	return nil
}

func flush(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// probeName is a file that is there for a moment.
const probeName = "probe"

// Probe tells whether an address could be given out as far as the disk is concerned: it writes a file like an address's.
func (i *IPAM) Probe(ctx context.Context) error {
	return i.locked(ctx, func() error {
		path := filepath.Join(i.dir, probeName)
		err := os.WriteFile(path, []byte("is the disk full, or read-only?"), 0o600)
		if removeErr := os.Remove(path); !errors.Is(removeErr, os.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
		if err != nil {
			return fmt.Errorf("write in the address directory: %w", err)
		}
		return nil
	})
}

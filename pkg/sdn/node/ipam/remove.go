package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Leases reads the network's leases without the lock; none if its directory does not exist.
func Leases(dir, network string) ([]Lease, error) {
	leases, err := (&IPAM{dir: filepath.Join(dir, network)}).List()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return leases, err
}

// Remove deletes the network's directory, and dir if it is empty then. The network must not be open.
func Remove(dir, network string) error {
	if err := os.RemoveAll(filepath.Join(dir, network)); err != nil {
		return fmt.Errorf("remove the lease directory: %w", err)
	}
	if left, err := os.ReadDir(dir); err == nil && len(left) == 0 {
		if err := os.Remove(dir); err != nil {
			return fmt.Errorf("remove the lease directory: %w", err)
		}
	}
	return nil
}

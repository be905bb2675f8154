package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Leases reads the network's reservations without opening its directory; none if there is no such directory.
func Leases(dir, network string) ([]Lease, error) {
	leases, err := (&IPAM{dir: filepath.Join(dir, network)}).List()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return leases, err
}

// Remove deletes the network's directory, and dir if it holds no other's. Nobody may have it open.
func Remove(dir, network string) error {
	if err := os.RemoveAll(filepath.Join(dir, network)); err != nil {
		return fmt.Errorf("remove the address directory: %w", err)
	}
	if left, err := os.ReadDir(dir); err == nil && len(left) == 0 {
		if err := os.Remove(dir); err != nil {
			return fmt.Errorf("remove the address directory: %w", err)
		}
	}
	return nil
}

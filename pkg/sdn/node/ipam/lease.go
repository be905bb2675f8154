package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// Lease says who holds an address.
type Lease struct {
	Addr        netip.Addr
	ContainerID string // empty: the file is damaged
	IfName      string // empty: written by a host-local older than v0.8
}

// Damaged tells that the file names no container, as after a power cut.
func (l Lease) Damaged() bool { return l.ContainerID == "" }

type owner struct{ containerID, ifName string }

func (l Lease) owner() owner { return owner{l.ContainerID, l.IfName} }

// List reads all leases from the disk, in order of address.
func (i *IPAM) List() ([]Lease, error) {
	entries, err := os.ReadDir(i.dir)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var leases []Lease
	for _, e := range entries {
		addr, err := netip.ParseAddr(e.Name())
		if err != nil {
			continue // the lock, last_reserved_ip
		}
		lease, err := i.read(addr)
		if errors.Is(err, fs.ErrNotExist) {
			continue // released since
		}
		if err != nil {
			return nil, err
		}
		leases = append(leases, lease)
	}
	slices.SortFunc(leases, func(a, b Lease) int { return a.Addr.Compare(b.Addr) })
	return leases, nil
}

func (i *IPAM) read(addr netip.Addr) (Lease, error) {
	data, err := os.ReadFile(i.path(addr))
	if err != nil {
		return Lease{}, fmt.Errorf("read who holds %s: %w", addr, err)
	}
	return parseLease(addr, data), nil
}

// parseLease reads host-local's "CONTAINERID\r\nIFNAME".
func parseLease(addr netip.Addr, data []byte) Lease {
	id, ifName, _ := strings.Cut(strings.TrimSpace(string(data)), disk.LineBreak)
	if utils.ValidateContainerID(id) != nil || ifName != "" && utils.ValidateInterfaceName(ifName) != nil {
		return Lease{Addr: addr}
	}
	return Lease{Addr: addr, ContainerID: id, IfName: ifName}
}

func (i *IPAM) path(addr netip.Addr) string {
	return filepath.Join(i.dir, addr.String())
}

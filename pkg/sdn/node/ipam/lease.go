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

// Lease is the allocation of an address to an interface of a container.
type Lease struct {
	Addr        netip.Addr
	ContainerID string // empty: the file is corrupt
	IfName      string // empty: written by a host-local older than v0.8
}

// Corrupt reports that the file can't be read or has no container id, for example after a power failure.
func (l Lease) Corrupt() bool { return l.ContainerID == "" }

type owner struct{ containerID, ifName string }

func (l Lease) owner() owner { return owner{l.ContainerID, l.IfName} }

// ownedBy reports whether the lease belongs to the owner. A lease of host-local before v0.8 has no interface name.
func (l Lease) ownedBy(o owner) bool {
	return l.owner() == o || l.owner() == owner{containerID: o.containerID}
}

// List reads all leases from the disk, ordered by address. Files that can't be read are corrupt leases.
func (i *IPAM) List() ([]Lease, error) {
	entries, err := os.ReadDir(i.dir)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var leases []Lease
	for _, e := range entries {
		addr, err := netip.ParseAddr(e.Name())
		if err != nil || addr.String() != e.Name() || addr.Is4In6() || addr.Zone() != "" {
			continue // the lock, last_reserved_ip
		}
		if lease, found := i.readLease(addr); found { // else it was released concurrently
			leases = append(leases, lease)
		}
	}
	slices.SortFunc(leases, func(a, b Lease) int { return a.Addr.Compare(b.Addr) })
	return leases, nil
}

// Holder reads the lease of the address; false if there is none.
func (i *IPAM) Holder(addr netip.Addr) (Lease, bool) { return i.readLease(addr) }

// readLease reads the lease file of the address; false if there is none.
func (i *IPAM) readLease(addr netip.Addr) (Lease, bool) {
	data, err := os.ReadFile(i.path(addr))
	if errors.Is(err, fs.ErrNotExist) {
		return Lease{}, false
	}
	if err != nil {
		return Lease{Addr: addr}, true
	}
	return parseLease(addr, data), true
}

// parseLease parses host-local's "CONTAINERID\r\nIFNAME".
func parseLease(addr netip.Addr, data []byte) Lease {
	id, ifName, _ := strings.Cut(strings.TrimSpace(string(data)), disk.LineBreak)
	if utils.ValidateContainerID(id) != nil || ifName != "" && utils.ValidateInterfaceName(ifName) != nil {
		return Lease{Addr: addr}
	}
	return Lease{Addr: addr, ContainerID: id, IfName: ifName}
}

// createLease creates the lease file of the address. It returns false if the file exists.
func (i *IPAM) createLease(addr netip.Addr, o owner) (bool, error) {
	file, err := os.OpenFile(i.path(addr), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, err = file.WriteString(o.containerID + disk.LineBreak + o.ifName)
	return err == nil, errors.Join(err, file.Close())
}

// writeLastReserved writes the address that was allocated last, where host-local's round-robin continues. It overwrites the file in place:
// host-local truncates it first, after which ext4 writes to the disk at once, a millisecond in every ADD.
func (i *IPAM) writeLastReserved(set *rangeSet, addr netip.Addr) error {
	file, err := os.OpenFile(filepath.Join(i.dir, lastReserved+set.id), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	text := addr.String()
	_, err = file.WriteString(text)
	if err == nil {
		err = file.Truncate(int64(len(text)))
	}
	return errors.Join(err, file.Close())
}

// lastReserved is the prefix of that file's name (host-local's lastIPFilePrefix).
const lastReserved = "last_reserved_ip."

func (i *IPAM) path(addr netip.Addr) string {
	return filepath.Join(i.dir, addr.String())
}

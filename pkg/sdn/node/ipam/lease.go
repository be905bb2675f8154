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

// Damaged tells that the file names no container, as after a power cut, or can't be read.
func (l Lease) Damaged() bool { return l.ContainerID == "" }

type owner struct{ containerID, ifName string }

func (l Lease) owner() owner { return owner{l.ContainerID, l.IfName} }

// heldBy tells whether the file is the owner's, also when it was written by a host-local that noted no interface.
func (l Lease) heldBy(o owner) bool {
	return l.owner() == o || l.owner() == owner{containerID: o.containerID}
}

// List reads all leases from the disk, in order of address. What has an address's name and can't be read is damaged.
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
		if lease, found := i.read(addr); found { // else it was released since
			leases = append(leases, lease)
		}
	}
	slices.SortFunc(leases, func(a, b Lease) int { return a.Addr.Compare(b.Addr) })
	return leases, nil
}

// Holder reads who holds the address; false when nobody does.
func (i *IPAM) Holder(addr netip.Addr) (Lease, bool) { return i.read(addr) }

// read returns what the address's file says; false when there is none.
func (i *IPAM) read(addr netip.Addr) (Lease, bool) {
	data, err := os.ReadFile(i.path(addr))
	if errors.Is(err, fs.ErrNotExist) {
		return Lease{}, false
	}
	if err != nil {
		return Lease{Addr: addr}, true
	}
	return parseLease(addr, data), true
}

// parseLease reads host-local's "CONTAINERID\r\nIFNAME".
func parseLease(addr netip.Addr, data []byte) Lease {
	id, ifName, _ := strings.Cut(strings.TrimSpace(string(data)), disk.LineBreak)
	if utils.ValidateContainerID(id) != nil || ifName != "" && utils.ValidateInterfaceName(ifName) != nil {
		return Lease{Addr: addr}
	}
	return Lease{Addr: addr, ContainerID: id, IfName: ifName}
}

// write makes the address's file, false when there is one.
func (i *IPAM) write(addr netip.Addr, o owner) (bool, error) {
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

// note writes which address was the last one given, for host-local's round. It overwrites the old note in its place: host-local
// truncates it first, which makes ext4 write to the disk at once, a millisecond in every ADD.
func (i *IPAM) note(set *rangeSet, addr netip.Addr) error {
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

// lastReserved is what the name of that note begins with (host-local's lastIPFilePrefix).
const lastReserved = "last_reserved_ip."

func (i *IPAM) path(addr netip.Addr) string {
	return filepath.Join(i.dir, addr.String())
}

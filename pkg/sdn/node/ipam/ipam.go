// Package ipam gives out pod addresses from the node's subnets. The disk is the truth, in the format of the host-local
// plugin: a directory with a file per address that holds its container's id and interface name, so that the stock
// plugin and people's habits (`grep -r CONTAINER /var/lib/cni/networks/ovsdn`) work on it.
//
// It uses host-local's own packages for the directory, its lock and the order of addresses: round-robin behind the last
// one given. Two things are its own. Errors have types, which host-local's allocator lacks. And it remembers who
// holds what, since host-local reads every file to find that out.
package ipam

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// DefaultDir is host-local's directory. The network's name is a folder in it.
const DefaultDir = "/var/lib/cni/networks"

// IPAM is one network's addresses on this node. It is safe for concurrent use, and beside other processes that keep
// host-local's lock.
type IPAM struct {
	dir     string
	subnets []netip.Prefix
	sets    []rangeSet // one for each address family
	close   func() error

	mu   sync.Mutex // flock excludes processes, this excludes goroutines
	disk *disk.Store
	held map[owner][]netip.Addr
}

// rangeSet is what one address is taken from.
type rangeSet struct {
	id    string // in the name of host-local's last_reserved_ip file
	order *allocator.IPAllocator
}

// Open opens, and makes if it is missing, the network's directory below dir. A pod gets one address of each family
// that the subnets have. The first address of a subnet is its gateway's and is never given out.
func Open(dir, network string, subnets []netip.Prefix) (*IPAM, error) {
	store, err := disk.New(network, dir)
	if err != nil {
		return nil, fmt.Errorf("open the address directory: %w", err)
	}
	sets, err := rangeSets(subnets, store)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	i := &IPAM{
		dir:     filepath.Join(dir, network),
		subnets: slices.Clone(subnets),
		sets:    sets,
		close:   sync.OnceValue(store.Close), // a second would close some other file: the lock is a bare descriptor
		disk:    store,
		held:    map[owner][]netip.Addr{},
	}
	leases, err := i.List()
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	for _, l := range leases {
		i.held[l.owner()] = append(i.held[l.owner()], l.Addr)
	}
	return i, nil
}

// Close closes the directory's lock.
func (i *IPAM) Close() error { return i.close() }

func rangeSets(subnets []netip.Prefix, store *disk.Store) ([]rangeSet, error) {
	families := map[bool]allocator.RangeSet{} // by Is4
	for _, s := range subnets {
		if !s.IsValid() {
			return nil, errors.New("a subnet to take addresses from is not valid")
		}
		families[s.Addr().Is4()] = append(families[s.Addr().Is4()], allocator.Range{Subnet: types.IPNet{
			IP:   s.Addr().AsSlice(),
			Mask: net.CIDRMask(s.Bits(), s.Addr().BitLen()),
		}})
	}
	var sets []rangeSet
	for _, is4 := range []bool{true, false} {
		ranges, ok := families[is4]
		if !ok {
			continue
		}
		if err := ranges.Canonicalize(); err != nil {
			return nil, fmt.Errorf("take addresses from %v: %w", subnets, err)
		}
		id := len(sets)
		sets = append(sets, rangeSet{
			id:    strconv.Itoa(id),
			order: allocator.NewIPAllocator(&ranges, store, id),
		})
	}
	if len(sets) == 0 {
		return nil, errors.New("no subnet to take addresses from")
	}
	return sets, nil
}

// Allocate gives the container's interface an address of each family, IPv4 first. It fails with a FullError when a family
// has none left, with a HeldError when the interface already has addresses.
func (i *IPAM) Allocate(ctx context.Context, containerID, ifName string) ([]netip.Addr, error) {
	o := owner{containerID, ifName}
	var addrs []netip.Addr
	err := i.locked(ctx, func() error {
		if held := i.held[o]; len(held) > 0 {
			return &HeldError{Addrs: slices.Clone(held), ContainerID: containerID, IfName: ifName}
		}
		for _, set := range i.sets {
			addr, err := i.next(set, o)
			if err != nil {
				return errors.Join(err, i.remove(o, addrs))
			}
			addrs = append(addrs, addr)
		}
		i.held[o] = slices.Clone(addrs)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return addrs, nil
}

// next reserves the next free address of the set.
func (i *IPAM) next(set rangeSet, o owner) (netip.Addr, error) {
	iter, err := set.order.GetIter()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("look for a free address: %w", err)
	}
	for {
		ipNet, _ := iter.Next()
		if ipNet == nil {
			return netip.Addr{}, &FullError{Subnets: slices.Clone(i.subnets), Held: len(i.held)}
		}
		addr, ok := netip.AddrFromSlice(ipNet.IP)
		if !ok {
			return netip.Addr{}, fmt.Errorf("look for a free address: %q is none", ipNet.IP)
		}
		addr = addr.Unmap()
		switch reserved, err := i.reserve(set.id, addr, o); {
		case err != nil:
			return netip.Addr{}, err
		case reserved:
			return addr, nil
		}
	}
}

// reserve makes the address's file; false when there is one. On error there is none.
func (i *IPAM) reserve(setID string, addr netip.Addr, o owner) (bool, error) {
	reserved, err := i.disk.Reserve(o.containerID, o.ifName, addr.AsSlice(), setID)
	if err != nil {
		// On a full disk the file may be there and only the note of the last address not.
		return false, errors.Join(fmt.Errorf("reserve %s: %w", addr, err), i.remove(o, []netip.Addr{addr}))
	}
	return reserved, nil
}

// Reserve marks an address that the interface is known to have. When another holds it, that is a ConflictError. A file that
// names nobody is overwritten.
func (i *IPAM) Reserve(ctx context.Context, addr netip.Addr, containerID, ifName string) error {
	o := owner{containerID, ifName}
	return i.locked(ctx, func() error {
		lease, err := i.read(addr)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case lease.owner() == o:
			return nil
		case lease.Damaged():
			if err := os.Remove(i.path(addr)); err != nil {
				return fmt.Errorf("replace a damaged address file: %w", err)
			}
		default:
			return &ConflictError{Addr: addr, ContainerID: lease.ContainerID, IfName: lease.IfName}
		}
		if _, err := i.reserve(i.setOf(addr), addr, o); err != nil {
			return err
		}
		i.held[o] = append(i.held[o], addr)
		return nil
	})
}

func (i *IPAM) setOf(addr netip.Addr) string {
	if addr.Is4() || len(i.sets) == 1 {
		return i.sets[0].id
	}
	return i.sets[1].id
}

// Release frees what the interface holds. Nothing held is no error.
func (i *IPAM) Release(ctx context.Context, containerID, ifName string) error {
	o := owner{containerID, ifName}
	return i.locked(ctx, func() error {
		addrs := i.held[o]
		if len(addrs) == 0 {
			// Not ours, or written by another process since Open: look at the files.
			for _, ip := range i.disk.GetByID(containerID, ifName) {
				if addr, ok := netip.AddrFromSlice(ip); ok {
					addrs = append(addrs, addr.Unmap())
				}
			}
		}
		if err := i.remove(o, addrs); err != nil {
			return err
		}
		delete(i.held, o)
		return nil
	})
}

// Discard frees an address whose file names nobody (Lease.Damaged).
func (i *IPAM) Discard(ctx context.Context, addr netip.Addr) error {
	return i.locked(ctx, func() error {
		return i.remove(owner{}, []netip.Addr{addr})
	})
}

// remove removes the addresses' files as far as they are the owner's.
func (i *IPAM) remove(o owner, addrs []netip.Addr) error {
	var errs []error
	for _, addr := range addrs {
		lease, err := i.read(addr)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && lease.owner() == o {
			err = os.Remove(i.path(addr))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("release %s: %w", addr, err))
		}
	}
	return errors.Join(errs...)
}

// locked runs f with both locks held.
func (i *IPAM) locked(ctx context.Context, f func() error) (err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := i.disk.Lock(); err != nil {
		return fmt.Errorf("lock the address directory %s: %w", i.dir, err)
	}
	defer func() {
		if unlockErr := i.disk.Unlock(); unlockErr != nil {
			err = errors.Join(err, fmt.Errorf("unlock the address directory %s: %w", i.dir, unlockErr))
		}
	}()
	return f()
}

// Package ipam allocates pod addresses from the node's subnets. It stores leases in the format of the host-local plugin: a directory
// with a file per address that contains the container id and interface name, so that the host-local plugin and
// `grep -r CONTAINER /var/lib/cni/networks/ovsdn` work on it.
//
// It uses host-local's packages for the directory, its lock and the range of addresses. It differs from host-local in three ways: errors
// have types, leases are cached in memory while host-local reads every file, and the least recently used address is allocated (see
// freeQueue) while host-local allocates round-robin.
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
	"sync/atomic"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"k8s.io/klog/v2"
)

// DefaultDir is host-local's directory. It has a subdirectory for each network.
const DefaultDir = "/var/lib/cni/networks"

// IPAM allocates one network's addresses on this node. It is safe for concurrent use, also by other processes that use host-local's
// lock.
type IPAM struct {
	dir     string
	subnets []netip.Prefix

	mu        sync.Mutex // flock excludes processes only
	disk      *disk.Store
	lock      fs.FileInfo // of disk's lock
	closed    bool
	sets      []*rangeSet // one for each address family
	leases    map[owner][]netip.Addr
	inUse     map[netip.Addr]bool // the addresses in leases
	used4     atomic.Int64        // IPv4 addresses in inUse that can be allocated, to be read without mu, which is held while files are written
	freeQueue *freeQueue
	restored  int // leases written since the last Restore for addresses that were in use already
}

// rangeSet are the ranges of one address family.
type rangeSet struct {
	id         string // in the name of host-local's last_reserved_ip file
	is4        bool
	roundRobin *allocator.IPAllocator // starts after the address that was allocated last
	allUsed    bool                   // each address has been allocated at least once

	ranges allocator.RangeSet
}

// contains reports whether the address can be allocated: it is no gateway, network or broadcast address. A previous, larger subnet of the
// node may have allocated one of these.
func (s *rangeSet) contains(addr netip.Addr) bool {
	ip := net.IP(addr.AsSlice())
	return slices.ContainsFunc(s.ranges, func(r allocator.Range) bool { return r.Contains(ip) && !r.Gateway.Equal(ip) })
}

// Open opens the network's directory in dir, and creates it if it does not exist. A pod gets one address of each family
// of the subnets. The first address of a subnet is its gateway's and is never allocated.
func Open(dir, network string, subnets []netip.Prefix) (*IPAM, error) {
	store, err := disk.New(network, dir)
	if err != nil {
		return nil, fmt.Errorf("open the lease directory: %w", err)
	}
	sets, err := rangeSets(subnets, store)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	i := &IPAM{
		dir:     filepath.Join(dir, network),
		subnets: slices.Clone(subnets),
		sets:    sets,
		disk:    store,
		leases:  map[owner][]netip.Addr{},
		inUse:   map[netip.Addr]bool{},
	}
	if i.lock, err = os.Stat(filepath.Join(i.dir, lockName)); err != nil {
		return nil, errors.Join(fmt.Errorf("find the lock of the lease directory: %w", err), store.Close())
	}
	leases, err := i.List()
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	for _, l := range leases {
		i.addLease(l.owner(), l.Addr)
	}
	i.freeQueue = loadFreeQueue(filepath.Join(i.dir, freeQueueFile), i.isFree)
	return i, nil
}

// Close closes the directory's lock. A second Close does nothing: the number of the lock's file descriptor may have been reused.
func (i *IPAM) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return nil
	}
	i.closed = true
	return i.disk.Close()
}

func rangeSets(subnets []netip.Prefix, store *disk.Store) ([]*rangeSet, error) {
	families := map[bool]allocator.RangeSet{} // by Is4
	for _, s := range subnets {
		if !s.IsValid() {
			return nil, fmt.Errorf("invalid subnet %s", s)
		}
		families[s.Addr().Is4()] = append(families[s.Addr().Is4()], allocator.Range{Subnet: types.IPNet{
			IP:   s.Addr().AsSlice(),
			Mask: net.CIDRMask(s.Bits(), s.Addr().BitLen()),
		}})
	}
	var sets []*rangeSet
	for _, is4 := range []bool{true, false} {
		ranges, ok := families[is4]
		if !ok {
			continue
		}
		if err := ranges.Canonicalize(); err != nil {
			return nil, fmt.Errorf("allocate from %v: %w", subnets, err)
		}
		id := len(sets)
		sets = append(sets, &rangeSet{
			id:         strconv.Itoa(id),
			is4:        is4,
			roundRobin: allocator.NewIPAllocator(&ranges, store, id),

			ranges: ranges,
		})
	}
	if len(sets) == 0 {
		return nil, errors.New("no subnet to allocate addresses from")
	}
	return sets, nil
}

// isFree reports whether the address can be allocated and has no lease.
func (i *IPAM) isFree(addr netip.Addr) bool {
	return !i.inUse[addr] && slices.ContainsFunc(i.sets, func(s *rangeSet) bool { return s.contains(addr) })
}

func (i *IPAM) addLease(o owner, addr netip.Addr) {
	if !slices.Contains(i.leases[o], addr) {
		i.leases[o] = append(i.leases[o], addr)
	}
	if !i.inUse[addr] && i.isIPv4(addr) {
		i.used4.Add(1)
	}
	i.inUse[addr] = true
}

// deleteLease reverts addLease. It reports whether the address has no other lease.
func (i *IPAM) deleteLease(o owner, addr netip.Addr) bool {
	if slices.Contains(i.leases[o], addr) {
		if i.inUse[addr] && i.isIPv4(addr) {
			i.used4.Add(-1)
		}
		delete(i.inUse, addr)
	}
	i.leases[o] = slices.DeleteFunc(i.leases[o], func(a netip.Addr) bool { return a == addr })
	if len(i.leases[o]) == 0 {
		delete(i.leases, o)
	}
	return !i.inUse[addr]
}

// enqueue appends a released address to the free queue.
func (i *IPAM) enqueue(ctx context.Context, addr netip.Addr) {
	if !i.isFree(addr) {
		return // of a previous subnet of the node
	}
	if err := i.freeQueue.push(addr); err != nil {
		// The address is free, but its place in the queue is lost when the agent restarts.
		klog.FromContext(ctx).Info("Failed to write released address to the free queue", "address", addr, "err", err.Error())
	}
}

// Allocate allocates an address of each family for the container's interface, IPv4 first: one that was never allocated, or else the least
// recently used one. The caller must call Sync before it returns the addresses to its client. Allocate returns a FullError if a family has
// no free address, and an AllocatedError if the interface already has addresses.
func (i *IPAM) Allocate(ctx context.Context, containerID, ifName string) ([]netip.Addr, error) {
	o := owner{containerID, ifName}
	var addrs []netip.Addr
	err := i.withLock(ctx, func() error {
		if allocated := i.leases[o]; len(allocated) > 0 {
			return &AllocatedError{Addrs: slices.Clone(allocated), ContainerID: containerID, IfName: ifName}
		}
		for _, set := range i.sets {
			addr, err := i.allocate(set, o)
			if err != nil {
				return errors.Join(err, i.release(ctx, o, addrs))
			}
			addrs = append(addrs, addr)
			i.addLease(o, addr)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return addrs, nil
}

// allocate writes the lease of the next address of the set.
func (i *IPAM) allocate(set *rangeSet, o owner) (netip.Addr, error) {
	if !set.allUsed {
		addr, err := i.allocateRoundRobin(set, o, func(addr netip.Addr) bool { return i.isFree(addr) && !i.freeQueue.contains(addr) })
		if err != nil || addr.IsValid() {
			return addr, err
		}
		set.allUsed = true
	}
	for {
		addr, ok := i.freeQueue.oldest(set.is4)
		if !ok {
			break
		}
		reserved, err := i.reserve(set, addr, o)
		if err != nil {
			return netip.Addr{}, err
		}
		i.freeQueue.remove(addr) // if it was not reserved, another process has allocated it
		if reserved {
			return addr, nil
		}
	}
	// Another process may have released an address.
	addr, err := i.allocateRoundRobin(set, o, i.isFree)
	if err == nil && !addr.IsValid() {
		err = &FullError{Subnets: slices.Clone(i.subnets), Owners: len(i.leases)}
	}
	return addr, err
}

// allocateRoundRobin writes the lease of the first address after the one allocated last that is eligible and has no lease. It returns the
// zero address if there is none.
func (i *IPAM) allocateRoundRobin(set *rangeSet, o owner, eligible func(netip.Addr) bool) (netip.Addr, error) {
	iter, err := set.roundRobin.GetIter()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find a free address: %w", err)
	}
	for {
		ipNet, _ := iter.Next()
		if ipNet == nil {
			return netip.Addr{}, nil
		}
		addr, ok := netip.AddrFromSlice(ipNet.IP)
		if !ok {
			return netip.Addr{}, fmt.Errorf("find a free address: %q is not an IP address", ipNet.IP)
		}
		if addr = addr.Unmap(); !eligible(addr) {
			continue
		}
		switch reserved, err := i.reserve(set, addr, o); {
		case err != nil:
			return netip.Addr{}, err
		case reserved:
			return addr, nil
		}
	}
}

// reserve writes the lease. It returns false if the address has one. After an error it has none.
func (i *IPAM) reserve(set *rangeSet, addr netip.Addr, o owner) (bool, error) {
	reserved, err := i.createLease(addr, o)
	if reserved && err == nil {
		err = i.writeLastReserved(set, addr)
	}
	if err != nil {
		// On a full disk the lease may exist, but not the last_reserved_ip file.
		return false, errors.Join(fmt.Errorf("reserve %s: %w", addr, err), i.deleteFile(o, addr))
	}
	return reserved, nil
}

// Reserve writes the lease of an address that the interface has. It returns a ConflictError if another interface has the lease, and
// overwrites a corrupt lease.
func (i *IPAM) Reserve(ctx context.Context, addr netip.Addr, containerID, ifName string) error {
	o := owner{containerID, ifName}
	return i.withLock(ctx, func() error {
		lease, found := i.readLease(addr)
		switch {
		case !found:
		case lease.owner() == o:
			i.addLease(o, addr) // another process may have written it since Open
			return nil
		case lease.Corrupt(), lease.ownedBy(o):
			if err := os.Remove(i.path(addr)); err != nil {
				return fmt.Errorf("replace the lease of %s: %w", addr, err)
			}
			i.deleteLease(lease.owner(), addr)
		default:
			return &ConflictError{Addr: addr, ContainerID: lease.ContainerID, IfName: lease.IfName}
		}
		if _, err := i.reserve(i.rangeSetOf(addr), addr, o); err != nil {
			return err
		}
		i.addLease(o, addr)
		i.freeQueue.remove(addr)
		i.restored++
		return nil
	})
}

func (i *IPAM) rangeSetOf(addr netip.Addr) *rangeSet {
	if addr.Is4() || len(i.sets) == 1 {
		return i.sets[0]
	}
	return i.sets[1]
}

// Release releases the addresses of the interface. None is not an error.
func (i *IPAM) Release(ctx context.Context, containerID, ifName string) error {
	o := owner{containerID, ifName}
	return i.withLock(ctx, func() error {
		addrs := i.leases[o]
		if len(addrs) == 0 {
			// Another process may have written the leases since Open: read the files.
			for _, ip := range i.disk.GetByID(containerID, ifName) {
				if addr, ok := netip.AddrFromSlice(ip); ok {
					addrs = append(addrs, addr.Unmap())
				}
			}
		}
		return i.release(ctx, o, addrs)
	})
}

// ReleaseLease releases the address of the lease, unless another interface has it now.
func (i *IPAM) ReleaseLease(ctx context.Context, l Lease) error {
	return i.withLock(ctx, func() error { return i.release(ctx, l.owner(), []netip.Addr{l.Addr}) })
}

// release releases the addresses that belong to the owner.
func (i *IPAM) release(ctx context.Context, o owner, addrs []netip.Addr) error {
	var errs []error
	for _, addr := range slices.Clone(addrs) {
		if err := i.deleteFile(o, addr); err != nil {
			errs = append(errs, fmt.Errorf("release %s: %w", addr, err))
			continue
		}
		if i.deleteLease(o, addr) {
			i.enqueue(ctx, addr)
		}
	}
	return errors.Join(errs...)
}

// deleteFile deletes the lease file of the address unless it belongs to another owner.
func (i *IPAM) deleteFile(o owner, addr netip.Addr) error {
	lease, found := i.readLease(addr)
	if !found || !lease.Corrupt() && !lease.ownedBy(o) {
		return nil
	}
	if err := os.Remove(i.path(addr)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// withLock calls f with both locks held.
func (i *IPAM) withLock(ctx context.Context, f func() error) (err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if i.closed {
		return fmt.Errorf("lock the lease directory %s: %w", i.dir, os.ErrClosed)
	}
	if err := i.reopen(); err != nil {
		return err
	}
	if err := i.disk.Lock(); err != nil {
		return fmt.Errorf("lock the lease directory %s: %w", i.dir, err)
	}
	defer func() {
		if unlockErr := i.disk.Unlock(); unlockErr != nil {
			err = errors.Join(err, fmt.Errorf("unlock the lease directory %s: %w", i.dir, unlockErr))
		}
	}()
	return f()
}

// Package ipam gives out pod addresses from the node's subnets. The disk is the truth, in the format of the host-local
// plugin: a directory with a file per address that holds its container's id and interface name, so that the stock
// plugin and people's habits (`grep -r CONTAINER /var/lib/cni/networks/ovsdn`) work on it.
//
// It uses host-local's own packages for the directory, its lock and the range of addresses. Three things are its own. Errors
// have types, which host-local's allocator lacks. It remembers who holds what, since host-local reads every file to find
// that out. And an address that was freed is given again as late as space allows, the one that was freed first before the others
// (see freed), where host-local only goes round.
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
	"k8s.io/klog/v2"
)

// DefaultDir is host-local's directory. The network's name is a folder in it.
const DefaultDir = "/var/lib/cni/networks"

// IPAM is one network's addresses on this node. It is safe for concurrent use, and beside other processes that keep
// host-local's lock.
type IPAM struct {
	dir     string
	subnets []netip.Prefix

	mu       sync.Mutex // flock excludes processes, this excludes goroutines
	disk     *disk.Store
	lock     fs.FileInfo // of disk's lock
	closed   bool
	sets     []*rangeSet // one for each address family
	held     map[owner][]netip.Addr
	taken    map[netip.Addr]bool // those in held
	freed    *freed
	restored int // leases written since the last Restore for addresses that were in use already
}

// rangeSet is what one address is taken from.
type rangeSet struct {
	id    string // in the name of host-local's last_reserved_ip file
	is4   bool
	order *allocator.IPAllocator // round-robin behind the last one given
	spent bool                   // every address has been given at least once

	ranges allocator.RangeSet
}

// gives says whether the address is one that pods get: neither a gateway's nor one at a subnet's edges, which a larger subnet that the node had
// may have given.
func (s *rangeSet) gives(addr netip.Addr) bool {
	ip := net.IP(addr.AsSlice())
	return slices.ContainsFunc(s.ranges, func(r allocator.Range) bool { return r.Contains(ip) && !r.Gateway.Equal(ip) })
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
		disk:    store,
		held:    map[owner][]netip.Addr{},
		taken:   map[netip.Addr]bool{},
	}
	if i.lock, err = os.Stat(filepath.Join(i.dir, lockName)); err != nil {
		return nil, errors.Join(fmt.Errorf("find the lock of the address directory: %w", err), store.Close())
	}
	leases, err := i.List()
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	for _, l := range leases {
		i.hold(l.owner(), l.Addr)
	}
	i.freed = loadFreed(filepath.Join(i.dir, freedName), i.isFree)
	return i, nil
}

// Close closes the directory's lock. A second Close does nothing: the lock is a bare descriptor, whose number may have been reused.
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
			return nil, errors.New("a subnet to take addresses from is not valid")
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
			return nil, fmt.Errorf("take addresses from %v: %w", subnets, err)
		}
		id := len(sets)
		sets = append(sets, &rangeSet{
			id:    strconv.Itoa(id),
			is4:   is4,
			order: allocator.NewIPAllocator(&ranges, store, id),

			ranges: ranges,
		})
	}
	if len(sets) == 0 {
		return nil, errors.New("no subnet to take addresses from")
	}
	return sets, nil
}

// isFree tells whether the address is one to give, and nobody's.
func (i *IPAM) isFree(addr netip.Addr) bool {
	return !i.taken[addr] && slices.ContainsFunc(i.sets, func(s *rangeSet) bool { return s.gives(addr) })
}

func (i *IPAM) hold(o owner, addr netip.Addr) {
	if !slices.Contains(i.held[o], addr) {
		i.held[o] = append(i.held[o], addr)
	}
	i.taken[addr] = true
}

// forget is hold's opposite; false when another holds the address.
func (i *IPAM) forget(o owner, addr netip.Addr) bool {
	if slices.Contains(i.held[o], addr) {
		delete(i.taken, addr)
	}
	i.held[o] = slices.DeleteFunc(i.held[o], func(a netip.Addr) bool { return a == addr })
	if len(i.held[o]) == 0 {
		delete(i.held, o)
	}
	return !i.taken[addr]
}

// queue puts an address that came free behind the others.
func (i *IPAM) queue(ctx context.Context, addr netip.Addr) {
	if !i.isFree(addr) {
		return // of a subnet that the node does not have any more
	}
	if err := i.freed.push(addr); err != nil {
		// It is free all the same, only its turn is forgotten when the agent starts again.
		klog.FromContext(ctx).Info("Could not note that an address came free", "address", addr, "reason", err.Error())
	}
}

// Allocate gives the container's interface an address of each family, IPv4 first: one that nobody has had yet if there is
// one, else that which has been free for longest. Nobody must hear of it before Sync. It fails with a FullError when a family has
// none left, with a HeldError when the interface already has addresses.
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
				return errors.Join(err, i.remove(ctx, o, addrs))
			}
			addrs = append(addrs, addr)
			i.hold(o, addr)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return addrs, nil
}

// next reserves the address of the set whose turn it is.
func (i *IPAM) next(set *rangeSet, o owner) (netip.Addr, error) {
	if !set.spent {
		addr, err := i.goRound(set, o, func(addr netip.Addr) bool { return i.isFree(addr) && !i.freed.has(addr) })
		if err != nil || addr.IsValid() {
			return addr, err
		}
		set.spent = true
	}
	for {
		addr, ok := i.freed.oldest(set.is4)
		if !ok {
			break
		}
		reserved, err := i.reserve(set, addr, o)
		if err != nil {
			return netip.Addr{}, err
		}
		i.freed.drop(addr) // when it was not reserved, another process has it
		if reserved {
			return addr, nil
		}
	}
	// Another process may have given one back.
	addr, err := i.goRound(set, o, i.isFree)
	if err == nil && !addr.IsValid() {
		err = &FullError{Subnets: slices.Clone(i.subnets), Held: len(i.held)}
	}
	return addr, err
}

// goRound reserves the first address behind the last one given that is wanted and that no file has; the zero address
// when there is none.
func (i *IPAM) goRound(set *rangeSet, o owner, wanted func(netip.Addr) bool) (netip.Addr, error) {
	iter, err := set.order.GetIter()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("look for a free address: %w", err)
	}
	for {
		ipNet, _ := iter.Next()
		if ipNet == nil {
			return netip.Addr{}, nil
		}
		addr, ok := netip.AddrFromSlice(ipNet.IP)
		if !ok {
			return netip.Addr{}, fmt.Errorf("look for a free address: %q is none", ipNet.IP)
		}
		if addr = addr.Unmap(); !wanted(addr) {
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

// reserve makes the address's file; false when there is one. On error there is none.
func (i *IPAM) reserve(set *rangeSet, addr netip.Addr, o owner) (bool, error) {
	reserved, err := i.write(addr, o)
	if reserved && err == nil {
		err = i.note(set, addr)
	}
	if err != nil {
		// On a full disk the file may be there and only the note of the last address not.
		return false, errors.Join(fmt.Errorf("reserve %s: %w", addr, err), i.removeFile(o, addr))
	}
	return reserved, nil
}

// Reserve marks an address that the interface is known to have. When another holds it, that is a ConflictError. A file that
// names nobody is overwritten.
func (i *IPAM) Reserve(ctx context.Context, addr netip.Addr, containerID, ifName string) error {
	o := owner{containerID, ifName}
	return i.locked(ctx, func() error {
		lease, found := i.read(addr)
		switch {
		case !found:
		case lease.owner() == o:
			i.hold(o, addr) // also if another process wrote it since Open
			return nil
		case lease.Damaged(), lease.heldBy(o):
			if err := os.Remove(i.path(addr)); err != nil {
				return fmt.Errorf("replace the address file of %s: %w", addr, err)
			}
			i.forget(lease.owner(), addr)
		default:
			return &ConflictError{Addr: addr, ContainerID: lease.ContainerID, IfName: lease.IfName}
		}
		if _, err := i.reserve(i.setOf(addr), addr, o); err != nil {
			return err
		}
		i.hold(o, addr)
		i.freed.drop(addr)
		i.restored++
		return nil
	})
}

func (i *IPAM) setOf(addr netip.Addr) *rangeSet {
	if addr.Is4() || len(i.sets) == 1 {
		return i.sets[0]
	}
	return i.sets[1]
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
		return i.remove(ctx, o, addrs)
	})
}

// Discard frees a single address, if its file still says what the lease does.
func (i *IPAM) Discard(ctx context.Context, l Lease) error {
	return i.locked(ctx, func() error { return i.remove(ctx, l.owner(), []netip.Addr{l.Addr}) })
}

// remove frees the addresses as far as they are the owner's.
func (i *IPAM) remove(ctx context.Context, o owner, addrs []netip.Addr) error {
	var errs []error
	for _, addr := range slices.Clone(addrs) {
		if err := i.removeFile(o, addr); err != nil {
			errs = append(errs, fmt.Errorf("release %s: %w", addr, err))
			continue
		}
		if i.forget(o, addr) {
			i.queue(ctx, addr)
		}
	}
	return errors.Join(errs...)
}

// removeFile removes the address's file unless it is another's.
func (i *IPAM) removeFile(o owner, addr netip.Addr) error {
	lease, found := i.read(addr)
	if !found || !lease.Damaged() && !lease.heldBy(o) {
		return nil
	}
	if err := os.Remove(i.path(addr)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// locked runs f with both locks held.
func (i *IPAM) locked(ctx context.Context, f func() error) (err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if i.closed {
		return fmt.Errorf("lock the address directory %s: %w", i.dir, os.ErrClosed)
	}
	if err := i.reopen(); err != nil {
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

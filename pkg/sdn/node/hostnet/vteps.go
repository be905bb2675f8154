package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

const (
	// vtepSet is the kernel's set (ipset(8)) of addresses from which the node accepts VXLAN.
	vtepSet = "OVSDN-VTEPS"

	// vtepSetType is the type of that set.
	vtepSetType = "hash:ip"
)

// VTEPs are the tunnel endpoints from which this node accepts VXLAN, by the name of their HostSubnet. The kernel has their addresses in a
// set, which one rule of the firewall matches. Addresses are added before the flows of a HostSubnet and removed after them. Until Restrict,
// the set retains the entries of the previous agent. Its methods are safe for concurrent use.
type VTEPs struct {
	sets ipsets

	mu       sync.Mutex
	byName   map[string][]netip.Addr
	uses     map[netip.Addr]int
	created  bool
	complete bool

	// Each write of nftables is a process. Until the VTEPs are complete, addresses are only written one by one if the kernel's rules match the set and it lacks them.
	batches   bool
	unmatched bool                // no rule of the kernel matches the set
	known     map[netip.Addr]bool // the entries of the set after the last sync
}

// newVTEPs returns an empty VTEPs. The first Sync of its Firewall creates the set.
func newVTEPs(sets ipsets) *VTEPs {
	_, isNFT := sets.(nftSets)
	return &VTEPs{sets: sets, byName: map[string][]netip.Addr{}, uses: map[netip.Addr]int{}, batches: isNFT}
}

// Allow adds an address of the name; Settle removes the name's other addresses. A failure is logged, and the next Sync of the Firewall
// repeats the change.
func (v *VTEPs) Allow(ctx context.Context, name string, addr netip.Addr) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if slices.Contains(v.byName[name], addr) {
		return
	}
	v.byName[name] = append(v.byName[name], addr)
	if v.uses[addr]++; v.uses[addr] > 1 || !v.created || v.isDeferred(addr) {
		return
	}
	if err := v.sets.add(ctx, vtepSet, addr); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to add VTEP to the set", "set", vtepSet, "vtep", addr, "hostSubnet", name)
	}
}

// isDeferred reports whether Restrict adds the address, or the set has it.
func (v *VTEPs) isDeferred(addr netip.Addr) bool {
	return v.batches && !v.complete && (v.unmatched || v.known[addr])
}

// setUnmatched records whether no rule of the kernel matches the set.
func (v *VTEPs) setUnmatched(is bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.unmatched = is
}

// Settle removes the addresses of the name other than addr; all of them if addr is the zero Addr.
func (v *VTEPs) Settle(ctx context.Context, name string, addr netip.Addr) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var left []netip.Addr
	for _, a := range v.byName[name] {
		if a == addr {
			left = append(left, a)
			continue
		}
		if v.uses[a]--; v.uses[a] > 0 {
			continue
		}
		delete(v.uses, a)
		delete(v.known, a)
		if !v.created {
			continue
		}
		if err := v.sets.remove(ctx, vtepSet, a); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to remove VTEP from the set", "set", vtepSet, "vtep", a, "hostSubnet", name)
		}
	}
	if v.byName[name] = left; left == nil {
		delete(v.byName, name)
	}
}

// isComplete reports whether all peers were added and have their flows.
func (v *VTEPs) isComplete() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.complete
}

func (v *VTEPs) setComplete() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.complete = true
}

// sync creates the set if it does not exist, and makes its entries equal to the addresses. It returns the changes, for logging.
func (v *VTEPs) sync(ctx context.Context) (changes []string, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	set, err := v.sets.list(ctx, vtepSet)
	if errors.Is(err, unix.ENOENT) {
		if err = v.sets.create(ctx, vtepSet); err == nil {
			changes = append(changes, "set "+vtepSet+" created")
			set, err = v.sets.list(ctx, vtepSet)
		}
	}
	if err != nil {
		return changes, fmt.Errorf("create set %s: %w", vtepSet, err)
	}
	if set.TypeName != vtepSetType {
		return changes, fmt.Errorf("set %s has type %s, want %s: %w", vtepSet, set.TypeName, vtepSetType, errForeignSet)
	}
	v.created = true
	have := map[netip.Addr]bool{}
	for _, e := range set.Entries {
		if addr, ok := netip.AddrFromSlice(e.IP); ok {
			have[addr.Unmap()] = true
		}
	}
	added := sortedAddrs(v.uses, func(addr netip.Addr) bool { return !have[addr] })
	if err := v.sets.add(ctx, vtepSet, added...); err != nil {
		return changes, fmt.Errorf("add %v to set %s: %w", added, vtepSet, err)
	}
	removed := sortedAddrs(have, func(addr netip.Addr) bool { return v.complete && v.uses[addr] == 0 })
	if err := v.sets.remove(ctx, vtepSet, removed...); err != nil {
		return changes, fmt.Errorf("remove %v from set %s: %w", removed, vtepSet, err)
	}
	v.known = have
	for _, addr := range added {
		v.known[addr] = true
		changes = append(changes, fmt.Sprintf("set %s: added %s", vtepSet, addr))
	}
	for _, addr := range removed {
		delete(v.known, addr)
		changes = append(changes, fmt.Sprintf("set %s: removed %s", vtepSet, addr))
	}
	slices.Sort(changes)
	return changes, nil
}

// sortedAddrs returns the keys for which is returns true.
func sortedAddrs[V any](all map[netip.Addr]V, is func(netip.Addr) bool) (addrs []netip.Addr) {
	for addr := range all {
		if is(addr) {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// isExist reports whether an entry to be added exists, or one to be removed does not.
func isExist(err error) bool { return errors.Is(err, nl.IPSetError(nl.IPSET_ERR_EXIST)) }

// RemoveSets deletes the sets of VTEPs and of egress IPs, for an uninstall, after the rules that match them. It does not delete a set of another program, and
// succeeds on a kernel without sets.
func RemoveSets(ctx context.Context) error {
	return errors.Join(removeSet(ctx, vtepSet, vtepSetType), removeSet(ctx, egressSet, egressSetType))
}

func removeSet(ctx context.Context, name, setType string) (err error) {
	const interval, timeout = 20 * time.Millisecond, 5 * time.Second
	// The kernel releases the set asynchronously after a rule of nftables was deleted.
	_ = wait.PollUntilContextTimeout(ctx, interval, timeout, true, func(context.Context) (bool, error) {
		err = destroySet(ctx, name, setType)
		return !errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)), nil
	})
	return err
}

// destroySet deletes the set, if it exists and is not that of another program.
func destroySet(ctx context.Context, name, setType string) error {
	set, err := netlink.IpsetList(name)
	if err == nil && set.TypeName != setType {
		klog.FromContext(ctx).Info("Skipped removal of the set of another program", "set", name, "type", set.TypeName)
		return nil
	}
	err = netlink.IpsetDestroy(name)
	if err == nil || errors.Is(err, unix.ENOENT) || lacksSets(err) {
		return nil
	}
	return fmt.Errorf("destroy set %s: %w", name, err)
}

// lacksSets reports whether the error is that of a kernel without ip_set (EINVAL) or without nfnetlink (EPROTONOSUPPORT).
func lacksSets(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT)
}

// kernelSets implements ipsets for the calling thread's network namespace.
type kernelSets struct{}

func (kernelSets) create(_ context.Context, name string) error {
	return netlink.IpsetCreate(name, vtepSetType, netlink.IpsetCreateOptions{})
}

func (kernelSets) list(_ context.Context, name string) (*netlink.IPSetResult, error) {
	return netlink.IpsetList(name)
}

func (kernelSets) add(ctx context.Context, name string, addrs ...netip.Addr) error {
	return eachAddr(ctx, addrs, func(e *netlink.IPSetEntry) error { return netlink.IpsetAdd(name, e) })
}

func (kernelSets) remove(ctx context.Context, name string, addrs ...netip.Addr) error {
	return eachAddr(ctx, addrs, func(e *netlink.IPSetEntry) error { return netlink.IpsetDel(name, e) })
}

// eachAddr changes a set. It ignores the entries that are as desired.
func eachAddr(ctx context.Context, addrs []netip.Addr, change func(*netlink.IPSetEntry) error) error {
	for _, addr := range addrs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := change(&netlink.IPSetEntry{IP: addr.AsSlice()}); err != nil && !isExist(err) {
			return err
		}
	}
	return nil
}

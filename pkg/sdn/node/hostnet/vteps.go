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
}

// newVTEPs returns an empty VTEPs. The first Sync of its Firewall creates the set.
func newVTEPs() *VTEPs {
	return &VTEPs{sets: kernelSets{}, byName: map[string][]netip.Addr{}, uses: map[netip.Addr]int{}}
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
	if v.uses[addr]++; v.uses[addr] > 1 || !v.created {
		return
	}
	if err := v.sets.add(vtepSet, addr); err != nil && !isExist(err) {
		klog.FromContext(ctx).Error(err, "Failed to add VTEP to the set", "set", vtepSet, "vtep", addr, "hostSubnet", name)
	}
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
		if !v.created {
			continue
		}
		if err := v.sets.remove(vtepSet, a); err != nil && !isExist(err) {
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
func (v *VTEPs) sync() (changes []string, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	set, err := v.sets.list(vtepSet)
	if errors.Is(err, unix.ENOENT) {
		if err = v.sets.create(vtepSet); err == nil {
			changes = append(changes, "set "+vtepSet+" created")
			set, err = v.sets.list(vtepSet)
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
	for addr := range v.uses {
		if have[addr] {
			continue
		}
		if err := v.sets.add(vtepSet, addr); err != nil && !isExist(err) {
			return changes, fmt.Errorf("add %s to set %s: %w", addr, vtepSet, err)
		}
		changes = append(changes, fmt.Sprintf("set %s: added %s", vtepSet, addr))
	}
	for addr := range have {
		if !v.complete || v.uses[addr] > 0 {
			continue
		}
		if err := v.sets.remove(vtepSet, addr); err != nil && !isExist(err) {
			return changes, fmt.Errorf("remove %s from set %s: %w", addr, vtepSet, err)
		}
		changes = append(changes, fmt.Sprintf("set %s: removed %s", vtepSet, addr))
	}
	slices.Sort(changes)
	return changes, nil
}

// isExist reports whether an entry to be added exists, or one to be removed does not.
func isExist(err error) bool { return errors.Is(err, nl.IPSetError(nl.IPSET_ERR_EXIST)) }

// RemoveSets deletes the sets of VTEPs and of egress IPs, for an uninstall, after the rules that match them. It does not delete a set of another program, and
// succeeds on a kernel without sets.
func RemoveSets(ctx context.Context) error {
	return errors.Join(removeSet(ctx, vtepSet, vtepSetType), removeSet(ctx, egressSet, egressSetType))
}

func removeSet(ctx context.Context, name, setType string) error {
	const interval, timeout = 20 * time.Millisecond, 5 * time.Second
	set, err := netlink.IpsetList(name)
	if err == nil && set.TypeName != setType {
		klog.FromContext(ctx).Info("Skipped removal of the set of another program", "set", name, "type", set.TypeName)
		return nil
	}
	// The kernel releases the set asynchronously after a rule of nftables was deleted.
	_ = wait.PollUntilContextTimeout(ctx, interval, timeout, true, func(context.Context) (bool, error) {
		err = netlink.IpsetDestroy(name)
		return !errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)), nil
	})
	switch {
	case err == nil, errors.Is(err, unix.ENOENT), lacksSets(err):
		return nil
	default:
		return fmt.Errorf("destroy set %s: %w", name, err)
	}
}

// lacksSets reports whether the error is that of a kernel without ip_set (EINVAL) or without nfnetlink (EPROTONOSUPPORT).
func lacksSets(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT)
}

// kernelSets implements ipsets for the calling thread's network namespace.
type kernelSets struct{}

func (kernelSets) create(name string) error {
	return netlink.IpsetCreate(name, vtepSetType, netlink.IpsetCreateOptions{})
}

func (kernelSets) list(name string) (*netlink.IPSetResult, error) { return netlink.IpsetList(name) }

func (kernelSets) add(name string, addr netip.Addr) error {
	return netlink.IpsetAdd(name, &netlink.IPSetEntry{IP: addr.AsSlice()})
}

func (kernelSets) remove(name string, addr netip.Addr) error {
	return netlink.IpsetDel(name, &netlink.IPSetEntry{IP: addr.AsSlice()})
}

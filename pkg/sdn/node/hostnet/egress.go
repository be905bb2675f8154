package hostnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

// EgressRouteProtocol is the protocol of the routes to the egress IPs that this node hosts (package egressaddress), and of their proxy neighbours. Tun0 does
// not change these routes. /etc/iproute2/rt_protos assigns no other program this number.
const EgressRouteProtocol = 87

const (
	// egressSet is the kernel's set (ipset(8)) of the egress IPs that the node hosts.
	egressSet     = "OVSDN-EGRESS-IPS"
	egressSetType = vtepSetType
)

// egressChains forward packets of the egress IPs, which the switch has translated: they come out of tun0 with an egress IP as their source, and replies go to
// tun0.
//
// The host's conntrack does not track them, so no rule translates them again, and a pod that opens many connections does not fill its table. Two kinds of packets
// are tracked: those to the node itself, as HostAccess evaluates their state, and ICMP from tun0 other than echo requests. An ICMP error
// without a connection is then INVALID, and unrelatedICMP drops it.
//
// Without sets, conntrack tracks all of them, podLimit limits the connections of each egress IP, and replies are accepted by their state.
func egressChains() []Chain {
	fromSet := []string{"-m", "set", "--match-set", egressSet, "src"}
	toSet := []string{"-m", "set", "--match-set", egressSet, "dst"}
	out, in := []string{"-i", Tun0Name, "!", "-o", Tun0Name}, []string{"!", "-i", Tun0Name, "-o", Tun0Name}
	notrack := func(icmp ...string) []Rule {
		return []Rule{
			rule(append([]string{"-i", Tun0Name, "-p", "icmp"}, icmp...), "ICMP that needs a connection", "RETURN"),
			rule(slices.Concat([]string{"-i", Tun0Name}, fromSet, []string{"-m", "addrtype", "!", "--dst-type", "LOCAL"}), "from egress IPs", "CT", "--notrack"),
			rule(append([]string{"!", "-i", Tun0Name}, toSet...), "to egress IPs", "CT", "--notrack"),
		}
	}
	return []Chain{
		{
			Table: tableFilter, Name: chainPrefix + "EGRESS", BuiltIn: "FORWARD", Set: egressSet,
			Comment: "ovsdn: from and to egress IPs",
			Rules:   []Rule{rule(append(out, fromSet...), "from egress IPs", "ACCEPT"), rule(append(in, toSet...), "to egress IPs", "ACCEPT")},
			Fallbacks: [][]Rule{{
				rule(out, "from egress IPs", "ACCEPT"),
				rule(append(in, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"), "to egress IPs", "ACCEPT"),
			}},
		},
		{
			Table: tableRaw, Name: chainPrefix + "NOTRACK-EGRESS", BuiltIn: "PREROUTING", Set: egressSet,
			Comment:   "ovsdn: egress IPs without conntrack",
			Rules:     notrack("-m", "icmp", "!", "--icmp-type", "8"),
			Fallbacks: [][]Rule{notrack()}, // see unrelatedICMPOrReply
			Optional: &Optional{
				Feature: FeatureEgressNotrack, Set: egressSet,
				Modules: "ip_set, ip_set_hash_ip, xt_set, xt_CT, xt_addrtype and, for iptables-legacy, iptable_raw",
			},
		},
	}
}

// ensureSet creates the chain's set if it does not exist. On a kernel without sets it replaces the rules of a chain that is not optional by its fallback.
func (f *iptablesFirewall) ensureSet(ctx context.Context, c Chain) (Chain, error) {
	if c.Set == "" {
		return c, nil
	}
	_, err := listEgressSet(ctx, f.vteps.sets)
	if err != nil && c.Optional == nil && (hasNoSets(err) || errors.Is(err, errForeignSet) || errors.Is(err, fs.ErrPermission)) {
		c.Rules, c.Fallbacks = c.Fallbacks[0], nil
		return c, nil
	}
	return c, err
}

// EgressSet is the set of the egress IPs that the node hosts. The firewall accepts forwarded packets from and to its entries, and does not track them. The zero
// value is the kernel's set for iptables, in the network namespace of the calling thread: on a kernel without sets it is empty, and the methods succeed, since
// iptables does not need it.
type EgressSet struct {
	sets ipsets // nil: those of the kernel
}

func (e EgressSet) ipsets() ipsets {
	if e.sets == nil {
		return kernelSets{}
	}
	return e.sets
}

// List returns the entries. It creates the set if it does not exist.
func (e EgressSet) List(ctx context.Context) ([]netip.Addr, error) {
	all, err := listEgressSet(ctx, e.ipsets())
	if hasNoSets(err) || errors.Is(err, errForeignSet) {
		return nil, nil
	}
	return all, err
}

// Add adds an entry, if it does not exist.
func (e EgressSet) Add(ctx context.Context, addr netip.Addr) error {
	if err := e.ipsets().add(ctx, egressSet, addr); err != nil && !hasNoSets(err) {
		return fmt.Errorf("add %s to set %s: %w", addr, egressSet, err)
	}
	return nil
}

// Remove removes an entry, if it exists.
func (e EgressSet) Remove(ctx context.Context, addr netip.Addr) error {
	if err := e.ipsets().remove(ctx, egressSet, addr); err != nil && !hasNoSets(err) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s from set %s: %w", addr, egressSet, err)
	}
	return nil
}

// listEgressSet returns the entries of the set, which it creates if it does not exist.
func listEgressSet(ctx context.Context, sets ipsets) ([]netip.Addr, error) {
	set, err := sets.list(ctx, egressSet)
	if errors.Is(err, unix.ENOENT) {
		// EEXIST: the firewall and package egressaddress create it at the same time.
		if err = sets.create(ctx, egressSet); err == nil || isExist(err) || errors.Is(err, unix.EEXIST) {
			set, err = sets.list(ctx, egressSet)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("create set %s: %w", egressSet, err)
	}
	if set.TypeName != egressSetType {
		return nil, fmt.Errorf("set %s has type %s, want %s: %w", egressSet, set.TypeName, egressSetType, errForeignSet)
	}
	var all []netip.Addr
	for _, e := range set.Entries {
		if addr, ok := netip.AddrFromSlice(e.IP); ok {
			all = append(all, addr.Unmap())
		}
	}
	return all, nil
}

// hasNoSets reports whether the error is that of a kernel without the sets that the firewall needs.
func hasNoSets(err error) bool {
	return err != nil && (lacksSets(err) || errors.Is(err, nl.IPSetError(nl.IPSET_ERR_FIND_TYPE)))
}

// SetEgressUplink sets the sysctls of an interface in whose network the node hosts an egress IP, and returns the changes, for logging. It is safe for concurrent
// use with Sync.
func (t *Tun0) SetEgressUplink(device string) (changes []string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, s := range sysctl.Table() {
		if s.Scope != sysctl.ScopeEgressUplink {
			continue
		}
		change, err := t.config.Sysctls.ensure(s, device)
		if change != "" {
			changes = append(changes, change)
		}
		errs = append(errs, err)
	}
	return changes, errors.Join(errs...)
}

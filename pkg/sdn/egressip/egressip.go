// Package egressip decides which node hosts which egress IP, and which namespace may use it, from NetNamespaces and HostSubnets. Agents and the controller
// use it, so that both decide alike. It does no I/O.
package egressip

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"
)

// Node is a node of the cluster, whether it hosts egress IPs or not.
type Node struct {
	Addr        netip.Addr   // its tunnel endpoint, which is no egress IP
	IPs         []netip.Addr // the egress IPs that it hosts
	Unreachable bool
}

// Problem is the reason why an egress IP is not used; "": it is.
type Problem string

// The problems of egress IPs.
const (
	Unhosted     Problem = "no node hosts it"
	ManyNodes    Problem = "several nodes host it"
	ManyNames    Problem = "several namespaces have it"
	NodeAddress  Problem = "it is the address of a node"
	InNetwork    Problem = "it lies in the cluster network or the service network"
	NotReachable Problem = "its node is not reachable"
	Unused       Problem = "no namespace has it"
)

// IP is the state of an egress IP.
type IP struct {
	Addr       netip.Addr
	Namespaces []string   // that have it, sorted
	Nodes      []string   // that host it, sorted
	VTEP       netip.Addr // of the only node; invalid: none or several host it, or its HostSubnet is invalid
	Problem    Problem
}

// IsConflict reports whether users must remove the IP from an object. Such an IP is not used.
func (i IP) IsConflict() bool {
	return slices.Contains([]Problem{ManyNodes, ManyNames, NodeAddress, InNetwork}, i.Problem)
}

// Table has the egress IPs of a cluster. It is not safe for concurrent use. Each change costs as much as the object that it is about has egress IPs.
type Table struct {
	reserved   []netip.Prefix
	namespaces map[string][]netip.Addr
	nodes      map[string]Node
	ips        map[netip.Addr]*entry
	addrs      map[netip.Addr]map[string]bool // names of nodes by Node.Addr
}

type entry struct{ namespaces, nodes []string } // sorted

// New returns an empty table. Addresses in the reserved prefixes, which are the cluster networks and the service network, are no egress IPs.
func New(reserved []netip.Prefix) *Table {
	return &Table{
		reserved: reserved, namespaces: map[string][]netip.Addr{}, nodes: map[string]Node{},
		ips: map[netip.Addr]*entry{}, addrs: map[netip.Addr]map[string]bool{},
	}
}

// SetNamespace sets the egress IPs of a namespace, without duplicates; none deletes it. It returns the IPs whose state may have changed.
func (t *Table) SetNamespace(name string, ips []netip.Addr) (changed []netip.Addr) {
	before := t.namespaces[name]
	if slices.Equal(before, ips) {
		return nil
	}
	t.namespaces[name] = slices.Clone(ips)
	if len(ips) == 0 {
		delete(t.namespaces, name)
	}
	return t.replace(before, ips, func(e *entry) *[]string { return &e.namespaces }, name)
}

// SetNode sets a node. The zero Node deletes it. It returns the IPs whose state may have changed.
func (t *Table) SetNode(name string, n Node) (changed []netip.Addr) {
	before := t.nodes[name]
	if before.Addr == n.Addr && before.Unreachable == n.Unreachable && slices.Equal(before.IPs, n.IPs) {
		return nil
	}
	n.IPs = slices.Clone(n.IPs)
	t.nodes[name] = n
	if !n.Addr.IsValid() && len(n.IPs) == 0 {
		delete(t.nodes, name)
	}
	changed = t.replace(before.IPs, n.IPs, func(e *entry) *[]string { return &e.nodes }, name)
	if before.Addr != n.Addr {
		if names := t.addrs[before.Addr]; names != nil {
			if delete(names, name); len(names) == 0 {
				delete(t.addrs, before.Addr)
			}
		}
		if n.Addr.IsValid() {
			if t.addrs[n.Addr] == nil {
				t.addrs[n.Addr] = map[string]bool{}
			}
			t.addrs[n.Addr][name] = true
		}
	}
	for _, a := range []netip.Addr{before.Addr, n.Addr} {
		if t.ips[a] != nil && before.Addr != n.Addr {
			changed = append(changed, a)
		}
	}
	if before.Addr != n.Addr || before.Unreachable != n.Unreachable {
		changed = append(changed, n.IPs...)
	}
	return sorted(changed)
}

// replace replaces one owner's IPs in the index, and returns those that only one of both lists has.
func (t *Table) replace(before, now []netip.Addr, list func(*entry) *[]string, name string) (changed []netip.Addr) {
	for _, a := range before {
		if slices.Contains(now, a) {
			continue
		}
		e := t.ips[a]
		if at, ok := slices.BinarySearch(*list(e), name); ok {
			*list(e) = slices.Delete(*list(e), at, at+1)
		}
		if len(e.namespaces) == 0 && len(e.nodes) == 0 {
			delete(t.ips, a)
		}
		changed = append(changed, a)
	}
	for _, a := range now {
		if slices.Contains(before, a) {
			continue
		}
		if t.ips[a] == nil {
			t.ips[a] = &entry{}
		}
		e := t.ips[a]
		if at, ok := slices.BinarySearch(*list(e), name); !ok {
			*list(e) = slices.Insert(*list(e), at, name)
		}
		changed = append(changed, a)
	}
	return sorted(changed)
}

func sorted(ips []netip.Addr) []netip.Addr {
	slices.SortFunc(ips, netip.Addr.Compare)
	return slices.Compact(ips)
}

// IP returns the state of an IP, which no object need have.
func (t *Table) IP(a netip.Addr) IP {
	i := IP{Addr: a}
	e := t.ips[a]
	if e == nil {
		i.Problem = Unhosted
		return i
	}
	i.Namespaces, i.Nodes = slices.Clone(e.namespaces), slices.Clone(e.nodes)
	isReachable := true
	if len(i.Nodes) == 1 {
		n := t.nodes[i.Nodes[0]]
		i.VTEP, isReachable = n.Addr, !n.Unreachable
	}
	switch {
	case slices.ContainsFunc(t.reserved, func(p netip.Prefix) bool { return p.Contains(a) }):
		i.Problem = InNetwork
	case len(t.addrs[a]) > 0:
		i.Problem = NodeAddress
	case len(i.Namespaces) > 1:
		i.Problem = ManyNames
	case len(i.Nodes) > 1:
		i.Problem = ManyNodes
	case !i.VTEP.IsValid():
		i.Problem = Unhosted
	case !isReachable:
		i.Problem = NotReachable
	case len(i.Namespaces) == 0:
		i.Problem = Unused
	}
	return i
}

// IPs returns all IPs, sorted.
func (t *Table) IPs() []netip.Addr {
	all := make([]netip.Addr, 0, len(t.ips))
	for a := range t.ips {
		all = append(all, a)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// Namespace returns the egress IPs of a namespace that its pods can use, in the NetNamespace's order; asks reports whether it has any, usable or not. If all
// nodes of its IPs are unreachable, it returns these: the controller may be the one that is cut off.
func (t *Table) Namespace(name string) (usable []netip.Addr, asks bool) {
	var unreachable []netip.Addr
	for _, a := range t.namespaces[name] {
		switch t.IP(a).Problem {
		case "":
			usable = append(usable, a)
		case NotReachable:
			unreachable = append(unreachable, a)
		}
	}
	if len(usable) == 0 {
		usable = unreachable
	}
	return usable, len(t.namespaces[name]) > 0
}

// Select returns the egress IP of a pod among those of its namespace: the one with the highest hash of both addresses, so that a removed IP
// moves its own pods only. It returns the zero Addr if there are none.
func Select(pod netip.Addr, ips []netip.Addr) netip.Addr {
	var selected netip.Addr
	var highest uint64
	for _, ip := range ips {
		if h := weight(pod, ip); !selected.IsValid() || h > highest {
			selected, highest = ip, h
		}
	}
	return selected
}

func weight(pod, ip netip.Addr) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(pod.AsSlice()) // never fails
	_, _ = h.Write(ip.AsSlice())
	// FNV's high bits hardly depend on the last bytes: mix them (the finalizer of MurmurHash3).
	x := binary.BigEndian.Uint64(h.Sum(nil))
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

package hostnet

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// nftSets implements ipsets with sets of the agent's table.
type nftSets struct{ nft knftables.Interface }

func addressSet(name string) *knftables.Set { return &knftables.Set{Name: name, Type: "ipv4_addr"} }

func (s nftSets) create(ctx context.Context, name string) error {
	tx := s.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(addressSet(name))
	return s.nft.Run(ctx, tx)
}

func (s nftSets) list(ctx context.Context, name string) (*netlink.IPSetResult, error) {
	elements, err := s.nft.ListElements(ctx, "set", name)
	if knftables.IsNotFound(err) {
		return nil, unix.ENOENT
	}
	if err != nil {
		return nil, err
	}
	set := &netlink.IPSetResult{TypeName: vtepSetType}
	for _, e := range elements {
		addr, err := netip.ParseAddr(e.Key[0])
		if err != nil {
			return nil, fmt.Errorf("parse an element of set %s: %w", name, err)
		}
		set.Entries = append(set.Entries, netlink.IPSetEntry{IP: addr.AsSlice()})
	}
	return set, nil
}

// add is one transaction. It creates the set if another program has deleted it.
func (s nftSets) add(ctx context.Context, name string, addrs ...netip.Addr) error {
	if len(addrs) == 0 {
		return nil
	}
	tx := s.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(addressSet(name))
	for _, addr := range addrs {
		tx.Add(&knftables.Element{Set: name, Key: []string{addr.String()}})
	}
	return s.nft.Run(ctx, tx)
}

// remove is one transaction. It adds the elements first, since nftables deletes none that does not exist.
func (s nftSets) remove(ctx context.Context, name string, addrs ...netip.Addr) error {
	if len(addrs) == 0 {
		return nil
	}
	tx := s.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(addressSet(name))
	for _, addr := range addrs {
		e := &knftables.Element{Set: name, Key: []string{addr.String()}}
		tx.Add(e)
		tx.Delete(e)
	}
	return s.nft.Run(ctx, tx)
}

// egressEntries is the set of egress IPs with a copy of the desired entries, which are restored together with the chains.
type egressEntries struct {
	nftSets

	mu      sync.Mutex // held while nft changes the entries
	listed  bool
	desired map[netip.Addr]bool
}

func newEgressEntries(nft knftables.Interface) *egressEntries {
	return &egressEntries{nftSets: nftSets{nft}, desired: map[netip.Addr]bool{}}
}

// list copies the entries of a previous agent when it is called first.
func (e *egressEntries) list(ctx context.Context, name string) (*netlink.IPSetResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	set, err := e.nftSets.list(ctx, name)
	if err != nil || e.listed {
		return set, err
	}
	e.listed = true
	for _, entry := range set.Entries {
		if addr, ok := netip.AddrFromSlice(entry.IP); ok {
			e.desired[addr.Unmap()] = true
		}
	}
	return set, nil
}

func (e *egressEntries) add(ctx context.Context, name string, addrs ...netip.Addr) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, addr := range addrs {
		e.desired[addr] = true
	}
	return e.nftSets.add(ctx, name, addrs...)
}

func (e *egressEntries) remove(ctx context.Context, name string, addrs ...netip.Addr) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, addr := range addrs {
		delete(e.desired, addr)
	}
	return e.nftSets.remove(ctx, name, addrs...)
}

// runWith runs a transaction that also adds the desired entries.
func (e *egressEntries) runWith(ctx context.Context, nft knftables.Interface, tx *knftables.Transaction) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, addr := range sortedAddrs(e.desired, func(netip.Addr) bool { return true }) {
		tx.Add(&knftables.Element{Set: egressSet, Key: []string{addr.String()}})
	}
	return nft.Run(ctx, tx)
}

package hostnet

import (
	"net/netip"

	"github.com/vishvananda/netlink"
)

// iptablesClient is the part of *iptables.IPTables that Firewall uses.
type iptablesClient interface {
	List(table, chain string) ([]string, error)
	ListWithCounters(table, chain string) ([]string, error)
	NewChain(table, chain string) error
	ClearAndDeleteChain(table, chain string) error
	Insert(table, chain string, pos int, rule ...string) error
	Delete(table, chain string, rule ...string) error
	DeleteById(table, chain string, id int) error
}

// ipsets are the operations on the kernel's sets that VTEPs uses.
type ipsets interface {
	create(name string) error
	list(name string) (*netlink.IPSetResult, error)
	add(name string, addr netip.Addr) error
	remove(name string, addr netip.Addr) error
}

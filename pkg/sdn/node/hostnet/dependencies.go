package hostnet

import (
	"context"
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

// ipsets are the operations on the sets of IPv4 addresses that the rules match: those of ipset(8), or of nftables. add and remove ignore entries that are as desired.
type ipsets interface {
	create(ctx context.Context, name string) error
	list(ctx context.Context, name string) (*netlink.IPSetResult, error) // unix.ENOENT: it does not exist
	add(ctx context.Context, name string, addrs ...netip.Addr) error
	remove(ctx context.Context, name string, addrs ...netip.Addr) error
}

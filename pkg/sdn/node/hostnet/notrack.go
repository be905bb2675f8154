package hostnet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/coreos/go-iptables/iptables"
	"k8s.io/klog/v2"
)

// The tables of iptables. Some kernels lack tableRaw.
const (
	tableRaw    = "raw"
	tableMangle = "mangle"
	tableNAT    = "nat"
	tableFilter = "filter"
)

// notrackChains exempt the node's own VXLAN from the host's conntrack, which would store an entry for each inner connection: the outer source
// port is a hash of the inner headers.
//
// Only packets from and to the node's own addresses match. Raw PREROUTING precedes DNAT: a packet to a service, also to one whose endpoint is a
// VTEP, still has the service's address and is tracked, and so is VXLAN that the node routes. Packets out of tun0 go to pods and services, and
// are tracked. A service on the VXLAN port of an address of the node is not translated: it would hijack the tunnel.
func notrackChains(vxlan []string) []Chain {
	notrack := func(match []string, addrType, comment string) []Rule {
		return []Rule{rule(slices.Concat(match, []string{"-m", "addrtype", addrType, "LOCAL"}), comment, "CT", "--notrack")}
	}
	return []Chain{
		{
			Table: tableRaw, Name: chainPrefix + "NOTRACK-IN", BuiltIn: "PREROUTING", Optional: true,
			Comment: "ovsdn: tunnel without conntrack",
			Rules:   notrack(vxlan, "--dst-type", "VXLAN to this node"),
		},
		{
			Table: tableRaw, Name: chainPrefix + "NOTRACK-OUT", BuiltIn: "OUTPUT", Optional: true,
			Comment: "ovsdn: tunnel without conntrack",
			Rules:   notrack(append([]string{"!", "-o", Tun0Name}, vxlan...), "--src-type", "VXLAN from this node"),
		},
	}
}

// isNoTable reports whether the kernel lacks the table: iptables-legacy then exits with the status of a version mismatch.
func isNoTable(err error) bool {
	const versionProblem = 3 // XTF_VERSION_PROBLEM of xtables.h
	failed := (*iptables.Error)(nil)
	return errors.As(err, &failed) && failed.ExitStatus() == versionProblem
}

// skip records the failure of an optional chain, and logs each cause once.
func (f *Firewall) skip(ctx context.Context, c Chain, err error) {
	err = fmt.Errorf("set up iptables chain %s of table %s: %w; the kernel needs xt_CT, xt_addrtype and, for iptables-legacy, iptable_raw", c.Name, c.Table, err)
	f.mu.Lock()
	was := f.skipped[c.Name]
	if f.skipped == nil {
		f.skipped = map[string]error{}
	}
	f.skipped[c.Name] = err
	f.mu.Unlock()
	if was == nil || was.Error() != err.Error() {
		klog.FromContext(ctx).Error(err, "Skipped optional iptables chain", "chain", c.Name, "table", c.Table, "effect", "conntrack tracks the tunnel")
	}
}

// done records that an optional chain is installed.
func (f *Firewall) done(c Chain) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.skipped, c.Name)
}

// Skipped returns the causes of missing optional chains, nil if none is missing. The node works without them. It is safe for concurrent use.
func (f *Firewall) Skipped() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, c := range f.rules {
		errs = append(errs, f.skipped[c.Name])
	}
	return errors.Join(errs...)
}

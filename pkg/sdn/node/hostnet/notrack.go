package hostnet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/coreos/go-iptables/iptables"
	"k8s.io/klog/v2"
)

// The tables of iptables. A kernel can lack tableRaw.
const (
	tableRaw    = "raw"
	tableMangle = "mangle"
	tableNAT    = "nat"
	tableFilter = "filter"
)

// notrackChains exempt the node's own VXLAN from the host's conntrack, where each inner connection would cost an entry: the outer source
// port is a hash of the inner headers.
//
// Only packets between the tunnel endpoints match. Raw PREROUTING comes before DNAT: a packet to a service, also to one whose endpoint is a
// VTEP, still has the service's address and stays tracked, and so does VXLAN that the node routes for others. What leaves by tun0 goes to a
// pod or a service. A service on the VXLAN port of an address that the node itself has is not translated: it would hijack the tunnel.
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

// isNoTable returns whether the kernel lacks the table: the older backend then exits with the status of a version that does not fit.
func isNoTable(err error) bool {
	const versionProblem = 3 // XTF_VERSION_PROBLEM of xtables.h
	failed := (*iptables.Error)(nil)
	return errors.As(err, &failed) && failed.ExitStatus() == versionProblem
}

// skip records the failure of an optional chain, and logs it once.
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
		klog.FromContext(ctx).Error(err, "Skipped optional iptables chain: the host's conntrack tracks the tunnel")
	}
}

// done records that an optional chain is in place.
func (f *Firewall) done(c Chain) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.skipped, c.Name)
}

// Skipped returns why optional chains are missing, nil if none is. The node works without them. It may be called at any time.
func (f *Firewall) Skipped() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, c := range f.rules {
		errs = append(errs, f.skipped[c.Name])
	}
	return errors.Join(errs...)
}

package hostnet

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"k8s.io/klog/v2"
)

// FirewallProgram is what has the rules of the host.
type FirewallProgram string

// The values of FirewallProgram.
const (
	// FirewallAuto is iptables where it is installed, else nftables.
	FirewallAuto FirewallProgram = "auto"

	// FirewallIPTables is iptables, with the backend that the host uses.
	FirewallIPTables FirewallProgram = "iptables"

	// FirewallNFTables is nftables, for a host whose kernel lacks modules of iptables, and for an agent's image that contains iptables.
	FirewallNFTables FirewallProgram = "nftables"
)

// IsValid reports whether p is one of the values.
func (p FirewallProgram) IsValid() bool {
	return p == FirewallAuto || p == FirewallIPTables || p == FirewallNFTables
}

// ErrNoFirewall is the error of a host on which neither iptables nor nft is installed. Its message has the remedy.
var ErrNoFirewall = errors.New("the node has neither iptables nor nftables, one of which it requires to masquerade pods")

// errNoIPTables is the error of a host without iptables.
var errNoIPTables = errors.New("find iptables: neither iptables nor iptables-legacy is in PATH")

// NewFirewall returns the firewall with the program of the configuration. It never replaces an iptables that is installed but fails: the caller tries again.
func NewFirewall(ctx context.Context, c FirewallConfig) (f Firewall, err error) {
	uses, err := c.Program.usesIPTables()
	switch {
	case err != nil:
		return nil, err
	case uses:
		f, err = newIPTablesFirewall(ctx, c)
	default:
		f, err = newNFTFirewall(ctx, c)
	}
	switch {
	case err == nil:
		klog.FromContext(ctx).Info("Selected the program of the host's firewall", "backend", f.Backend(), "firewall", c.Program)
		return f, nil
	case errors.Is(err, errNoIPTables):
		return nil, fmt.Errorf("--firewall=%s: %w; install iptables 1.8 or later, or set --firewall=%s", c.Program, err, FirewallNFTables)
	case errors.Is(err, errNoNFTables) && c.Program == FirewallNFTables:
		return nil, fmt.Errorf("--firewall=%s: %w; install nft 1.0.1 or later and %s, or set --firewall=%s", c.Program, err, nftRequirements, FirewallIPTables)
	case errors.Is(err, errNoNFTables):
		return nil, fmt.Errorf("%w: %w; %w; install iptables 1.8 or later with its kernel modules, or nft 1.0.1 or later and %s",
			ErrNoFirewall, errNoIPTables, err, nftRequirements)
	}
	return nil, err
}

// usesIPTables reports whether the rules are in iptables. "" is FirewallAuto.
func (p FirewallProgram) usesIPTables() (bool, error) {
	switch p {
	case FirewallIPTables:
		return true, nil
	case FirewallNFTables:
		return false, nil
	default:
		return isIPTablesInstalled()
	}
}

// isIPTablesInstalled reports whether a program of iptables is in PATH. It does not run it: one that fails at the moment is installed, too.
func isIPTablesInstalled() (bool, error) {
	var errs []error
	for _, name := range []string{iptablesProgram, legacyProgram} {
		_, err := exec.LookPath(name)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, exec.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return false, fmt.Errorf("find iptables: %w", err)
	}
	return false, nil
}

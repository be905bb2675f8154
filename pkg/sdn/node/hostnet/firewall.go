package hostnet

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Firewall reconciles the host's packet filter with the rules, which are the same in iptables and nftables. Its methods are safe for concurrent use.
type Firewall interface {
	// Sync makes the chains equal to the rules and returns the changes, for logging.
	Sync(ctx context.Context) (changes []string, err error)

	// Run calls Sync until the context ends: at once, every interval, and when the kernel reports a change of a relevant chain.
	Run(ctx context.Context, interval time.Duration)

	// Restrict drops VXLAN from other addresses than the VTEPs. It must be called after all peers were added and their flows installed.
	Restrict(ctx context.Context) (changes []string, err error)

	// SetNonMasqueradeCIDRs replaces the networks of the configuration. After an error, Run tries again.
	SetNonMasqueradeCIDRs(ctx context.Context, networks []netip.Prefix) (changes []string, err error)

	// SyncHostPorts updates the rules that depend on the pods with host ports.
	SyncHostPorts(ctx context.Context) error

	// Remove deletes the rules, for an uninstall. It continues after errors and joins them.
	Remove(ctx context.Context) error

	// Drops returns the counters of the agent's rules that drop or reject packets.
	Drops(ctx context.Context) ([]RuleDrops, error)

	// Path returns what the host does with the packet: the kernel's decision on its route, and that of the rules of the agent's chains. It sends no packet, and
	// does not wait for Sync.
	Path(ctx context.Context, p HostPacket) (HostPath, error)

	// VTEPs returns the addresses from which VXLAN is accepted after Restrict.
	VTEPs() *VTEPs

	// EgressIPs returns the set of the egress IPs that the node hosts.
	EgressIPs() EgressSet

	// Healthy returns the persistent failure of Run, or nil.
	Healthy() error

	// Skipped returns the missing optional features, each once. The node works without them.
	Skipped() []Skipped

	// Backend returns what has the rules: BackendIPTables, BackendLegacy or BackendNFTables.
	Backend() string
}

// What can have the rules.
const (
	BackendIPTables = "iptables"        // of the backend nf_tables, or the only one of the host
	BackendLegacy   = "iptables-legacy" // where nf_tables is supported, too, or another iptables is installed
	BackendNFTables = "nftables"        // see FirewallProgram
)

// firewallState is what the firewalls of iptables and nftables have in common.
type firewallState struct {
	rules  Ruleset
	status syncStatus
	vteps  *VTEPs

	podConnections func() (int, error) // nil: no limit

	syncing    sync.Mutex // held by Sync
	config     FirewallConfig
	masquerade *Chain // replaces that of rules; nil: not changed
	foreign    foreignChains

	mu      sync.Mutex
	skipped map[string]Skipped // missing optional chains, by name
}

// VTEPs implements Firewall.
func (f *firewallState) VTEPs() *VTEPs { return f.vteps }

// EgressIPs implements Firewall.
func (f *firewallState) EgressIPs() EgressSet { return EgressSet{f.vteps.sets} }

// Healthy implements Firewall.
func (f *firewallState) Healthy() error { return f.status.err() }

// configured returns the chain as it is configured at the moment, with its rules about pods.
func (f *firewallState) configured(c Chain) Chain {
	if m := f.masquerade; m != nil && m.Table == c.Table && m.Name == c.Name {
		c = *m
	}
	return c.withPods()
}

// limited returns the chain of podLimit with the rules of the current limit.
func (f *firewallState) limited(c Chain) (Chain, error) {
	if c.Optional == nil || c.Optional.Feature != FeaturePodLimit || f.podConnections == nil {
		return c, nil
	}
	limit, err := f.podConnections()
	if err != nil {
		return c, err
	}
	c.Rules = append(c.Rules[:len(c.Rules):len(c.Rules)], podLimitRules(limit)...)
	return c, nil
}

// setExceptions replaces the networks of the configuration, and returns the chain that masquerades.
func (f *firewallState) setExceptions(networks []netip.Prefix) Chain {
	f.config.NonMasqueradeCIDRs = networks
	chain := f.config.masqueradeChain(ipv4(f.config.ClusterNetworks))
	f.masquerade = &chain
	return chain
}

// run is Run of a firewall with the methods.
func (f *firewallState) run(ctx context.Context, interval time.Duration, sync func(context.Context) ([]string, error), watch func() (*watcher, error)) {
	restore := func(ctx context.Context) (changes []string, err error) {
		changes, err = sync(ctx)
		f.syncing.Lock()
		restored := f.foreign.take()
		f.syncing.Unlock()
		if len(restored) > 0 && f.config.Restored != nil {
			f.config.Restored(restored)
		}
		return changes, err
	}
	syncLoop(klog.NewContext(ctx, klog.FromContext(ctx).WithValues("part", "firewall")), interval, restore, watch, &f.status)
}

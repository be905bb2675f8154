package servicenat

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/knftables"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/nftables"
)

const tableName = "ovsdn-services"

// Maps and sets of the table.
const (
	mapNodePorts     = "node-ports"
	mapAddresses     = "external-addresses"
	setNodePorts     = "all-node-ports" // of any verdict
	setTenantIPs     = "tenant-external-ips"
	setRejected      = "rejected-addresses"
	setRejectedPorts = "rejected-node-ports"
	setDropped       = "dropped-addresses"
	setDroppedPorts  = "dropped-node-ports"
	setLimited       = "limited-addresses"
	setSourceRanges  = "source-ranges"
)

// Keys of the maps and sets, as types and as expressions.
const (
	portType    = "inet_proto . inet_service"
	addressType = "ipv4_addr . " + portType
	targetType  = "ipv4_addr . inet_service"

	packetPort    = "meta l4proto . th dport"
	packetAddress = "ip daddr . " + packetPort
)

// ofNode returns the match of packets to addresses at which node ports answer.
func (o Options) ofNode() string {
	const match, isLocal = "ip daddr != 127.0.0.0/8 ", "fib daddr type local"
	if len(o.NodePortAddresses) == 0 {
		return match + isLocal
	}
	ranges := make([]string, len(o.NodePortAddresses))
	for i, p := range o.NodePortAddresses {
		ranges[i] = p.String()
	}
	return match + "ip daddr { " + strings.Join(ranges, ", ") + " } " + isLocal
}

// servesNodePorts reports whether node ports answer at the address, if it is one of the node.
func (o Options) servesNodePorts(addr netip.Addr) bool {
	return len(o.NodePortAddresses) == 0 || slices.ContainsFunc(o.NodePortAddresses, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// translationPriority is behind that of other programs, of which the kernel runs the newest first: while a node changes its service proxy, kube-proxy translates all
// that it has rules for, since its mode nftables rejects packets to cluster IPs that another program has translated.
const translationPriority = knftables.DNATPriority + "+10"

// chain is a base chain with its rules.
type chain struct {
	name     string
	kind     knftables.BaseChainType
	hook     knftables.BaseChainHook
	priority knftables.BaseChainPriority
	rules    []string
}

// chains returns the chains, whose rules never change. Node ports precede addresses: an external IP may be an address of the node.
func (o Options) chains() []chain {
	evaluated := fmt.Sprintf("iifname { \"lo\", %q } return", o.Interface) // by the switch, or for the node's own packets by the output hooks
	toService := fmt.Sprintf("oifname %q ip daddr %s", o.Interface, o.ServiceNetwork)
	const isNew = "ct state new "
	ofNode := o.ofNode()
	nodePort := packetPort + " @" + setNodePorts + " " + ofNode + " return"
	tenantAddress := packetAddress + " @" + setTenantIPs + " return"
	tenantAddressOfNode := "fib daddr type local " + tenantAddress
	limit := isNew + packetAddress + " @" + setLimited + " " + packetAddress + " . ip saddr != @" + setSourceRanges + " drop"
	translatePorts := ofNode + " meta l4proto { tcp, udp, sctp } dnat ip to " + packetPort + " map @" + mapNodePorts
	translate := "meta l4proto { tcp, udp, sctp } dnat ip to " + packetAddress + " map @" + mapAddresses
	filterPorts := []string{
		isNew + ofNode + " " + packetPort + " @" + setRejectedPorts + " reject",
		isNew + ofNode + " " + packetPort + " @" + setDroppedPorts + " drop",
	}
	filter := []string{
		isNew + packetAddress + " @" + setRejected + " reject",
		isNew + packetAddress + " @" + setDropped + " drop",
	}
	received := slices.Concat([]string{evaluated}, filterPorts, []string{isNew + tenantAddressOfNode}, filter)
	sent := slices.Concat(filterPorts, []string{isNew + tenantAddress}, filter)
	return []chain{
		// Before the translation, after which the destination is the cluster IP.
		{"limit-prerouting", knftables.FilterType, knftables.PreroutingHook, knftables.DNATPriority + "-10", []string{
			evaluated, isNew + nodePort, isNew + tenantAddressOfNode, limit,
		}},
		{"limit-output", knftables.FilterType, knftables.OutputHook, knftables.DNATPriority + "-10", []string{isNew + nodePort, isNew + tenantAddress, limit}},
		{"prerouting", knftables.NATType, knftables.PreroutingHook, translationPriority, []string{
			evaluated, translatePorts, nodePort, tenantAddressOfNode, translate,
		}},
		{"output", knftables.NATType, knftables.OutputHook, translationPriority, []string{translatePorts, nodePort, tenantAddress, translate}},
		{"filter-input", knftables.FilterType, knftables.InputHook, knftables.FilterPriority + "-10", received},
		{"filter-forward", knftables.FilterType, knftables.ForwardHook, knftables.FilterPriority + "-10", received},
		{"filter-output", knftables.FilterType, knftables.OutputHook, knftables.FilterPriority + "-10", sent},
		{"forward", knftables.FilterType, knftables.ForwardHook, knftables.ManglePriority, []string{
			toService + " meta l4proto { tcp, udp } th sport 0 drop", // the switch could flush such a connection with those of all hosts outside only
			fmt.Sprintf("iifname != %q %s ct status dnat ct original ip daddr != %s ct direction original ip dscp set %d", o.Interface, toService, o.ServiceNetwork, o.ForwardedDSCP),
		}},
		{"postrouting", knftables.NATType, knftables.PostroutingHook, knftables.SNATPriority + "-10", []string{
			// Replies to another address may not pass the switch, and lower ports may be those of clients outside.
			fmt.Sprintf("%s meta l4proto { tcp, udp, sctp } fib saddr type local ip saddr != %s snat to %[2]s:%d-65535", toService, o.Gateway, o.FirstClientPort),
		}},
	}
}

// sets returns the sets and the maps.
func sets() ([]*knftables.Set, []*knftables.Map) {
	return []*knftables.Set{
			{Name: setNodePorts, Type: portType}, {Name: setTenantIPs, Type: addressType},
			{Name: setRejected, Type: addressType}, {Name: setRejectedPorts, Type: portType},
			{Name: setDropped, Type: addressType}, {Name: setDroppedPorts, Type: portType},
			{Name: setLimited, Type: addressType}, {Name: setSourceRanges, Type: addressType + " . ipv4_addr", Flags: []knftables.SetFlag{knftables.IntervalFlag}},
		}, []*knftables.Map{
			{Name: mapNodePorts, Type: portType + " : " + targetType}, {Name: mapAddresses, Type: addressType + " : " + targetType},
		}
}

// replaceTable adds to the transaction all that replaces the table by one with the frontends. The kernel applies it at once: no packet misses the rules.
func (o Options) replaceTable(tx *knftables.Transaction, frontends map[key]*Frontend) {
	tx.Add(&knftables.Table{}) // it may not exist
	tx.Delete(&knftables.Table{})
	tx.Add(&knftables.Table{})
	allSets, allMaps := sets()
	for _, s := range allSets {
		tx.Add(s)
	}
	for _, m := range allMaps {
		tx.Add(m)
	}
	for _, c := range o.chains() {
		tx.Add(&knftables.Chain{Name: c.name, Type: &c.kind, Hook: &c.hook, Priority: &c.priority})
		for _, r := range c.rules {
			tx.Add(&knftables.Rule{Chain: c.name, Rule: r})
		}
	}
	for _, f := range frontends {
		for _, e := range f.elements() {
			tx.Add(e.object())
		}
	}
}

// newNFT returns a client of the table. It starts nft, without a context.
func newNFT() (knftables.Interface, error) {
	nft, err := knftables.New(knftables.IPv4Family, tableName)
	if err != nil {
		return nil, fmt.Errorf("find nftables: %w", err)
	}
	return nft, nil
}

// Requirements are what services need of the host's kernel.
const Requirements = "a kernel of version 5.10 or later with nf_tables, nft_chain_nat, nft_ct, nft_fib_ipv4, nft_nat and nft_reject_ipv4"

// ErrUnsupported is the error of a host that lacks what services need, until nft or the kernel's modules are installed. Its message has the remedy.
var ErrUnsupported = errors.New("nftables does not support the rules of services")

// Supported returns ErrUnsupported if the kernel or nft lacks what services need, and another error if nft can't run at present. It changes nothing.
func Supported(ctx context.Context) error {
	nft, err := knftables.New(knftables.IPv4Family, "ovsdn-supports-services")
	if err != nil {
		return unsupported(ctx, err, "install nft 1.0.1 or later and "+Requirements)
	}
	addr := netip.AddrFrom4([4]byte{192, 0, 2, 1})
	network, target := netip.PrefixFrom(addr, addr.BitLen()), netip.AddrPortFrom(addr, 1)
	o := Options{Interface: "tun0", ServiceNetwork: network, Gateway: addr.Next()}
	tx := nft.NewTransaction()
	o.replaceTable(tx, map[key]*Frontend{
		{}:           {Protocol: corev1.ProtocolTCP, Verdict: endpoints.Forward, To: target},
		{port: 1}:    {Addr: addr, Protocol: corev1.ProtocolSCTP, Verdict: endpoints.Forward, To: target, Sources: []netip.Prefix{network}},
		{port: 2}:    {Addr: addr, Protocol: corev1.ProtocolUDP, Verdict: endpoints.Reject, TenantAddress: true},
		{addr: addr}: {Addr: addr, Protocol: corev1.ProtocolTCP, Verdict: endpoints.Drop},
	})
	if err := nft.Check(ctx, tx); err != nil {
		return unsupported(ctx, err, "use "+Requirements)
	}
	return nil
}

// unsupported returns the error of a failed run of nft.
func unsupported(ctx context.Context, err error, remedy string) error {
	if notRun(ctx, err) {
		return fmt.Errorf("run nft: %w", err)
	}
	return fmt.Errorf("%w: %w; %s, and restart the agent", ErrUnsupported, err, remedy)
}

// notRun reports whether nft did not start or was ended, so that its error does not show what the kernel refuses. A program that never starts is not such an error.
func notRun(ctx context.Context, err error) bool {
	var state interface{ Exited() bool } // *exec.ExitError
	switch {
	case ctx.Err() != nil, errors.As(err, new(*os.SyscallError)), errors.As(err, &state) && !state.Exited():
		return true
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOEXEC):
		return false
	}
	return errors.As(err, new(*fs.PathError))
}

// Remove deletes the rules of all services, as for an uninstallation. It runs nft only if they may exist: most starts of an agent find none.
func Remove(ctx context.Context) error {
	if exists, err := nftables.HasTable(tableName); err == nil && !exists {
		return nil
	}
	nft, err := newNFT()
	if err != nil {
		if notRun(ctx, err) {
			return err
		}
		return nil //nolint:nilerr // without nftables there is no table
	}
	if _, err := nft.ListRules(ctx, ""); knftables.IsNotFound(err) {
		return nil
	}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{}) // it may have been deleted in the meantime
	tx.Delete(&knftables.Table{})
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("delete table ip %s: %w", tableName, err)
	}
	return nil
}

package hostnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/nftables"
)

// FeatureAccept is that packets which the rules accept reach their destination. With nftables, chains of other tables can drop them.
const FeatureAccept Feature = "accept"

// errDropPolicy is the cause of a missing FeatureAccept.
var errDropPolicy = errors.New("chains of other programs drop packets by default, which the agent's rules can't override")

// The kernel's uapi/linux/netfilter.h and uapi/linux/netfilter/nf_tables.h.
const (
	hookInput   = 1 // NF_INET_LOCAL_IN
	hookForward = 2 // NF_INET_FORWARD

	nftaHookNumber = 1 // NFTA_HOOK_HOOKNUM
	verdictDrop    = 0 // NF_DROP
)

// nftTable is a table of nf_tables.
type nftTable struct {
	family byte
	name   string
}

func (t nftTable) familyName() string {
	return map[byte]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip"}[t.family]
}

// isOfIPTables reports whether iptables has the table.
func (t nftTable) isOfIPTables() bool {
	return t.family == unix.NFPROTO_IPV4 && slices.Contains([]string{tableRaw, tableMangle, tableNAT, tableFilter, "security"}, t.name)
}

func (t nftTable) isOwn() bool { return t.family == unix.NFPROTO_IPV4 && t.name == nftTableName }

// listNFTTables returns the tables of nf_tables that see packets of IPv4.
func listNFTTables() (all []nftTable, err error) {
	messages, err := nftables.Dump(unix.NFT_MSG_GETTABLE, unix.NFT_MSG_NEWTABLE)
	for _, m := range messages {
		if t, ok := parseNFTTable(m); ok {
			all = append(all, t)
		}
	}
	return all, err
}

// parseNFTTable reads a message about a table. ok is false if the table sees no packets of IPv4.
func parseNFTTable(message []byte) (t nftTable, ok bool) {
	if len(message) < nl.SizeofNfgenmsg {
		return t, false
	}
	t.family = message[0]
	for kind, value := range attributes(message[nl.SizeofNfgenmsg:]) {
		if kind == unix.NFTA_TABLE_NAME {
			t.name = unix.ByteSliceToString(value)
		}
	}
	return t, t.name != "" && t.familyName() != ""
}

// dropPolicy is a base chain that drops the packets which its rules do not accept.
type dropPolicy struct{ nftChainName }

// nftChainName is a chain of nf_tables.
type nftChainName struct {
	table nftTable
	chain string
}

// parseNFTChain reads a message about a chain. ok is false if it sees no packets of IPv4.
func parseNFTChain(message []byte) (c nftChainName, ok bool) {
	if len(message) < nl.SizeofNfgenmsg {
		return c, false
	}
	c.table.family = message[0]
	for kind, value := range attributes(message[nl.SizeofNfgenmsg:]) {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			c.table.name = unix.ByteSliceToString(value)
		case unix.NFTA_CHAIN_NAME:
			c.chain = unix.ByteSliceToString(value)
		}
	}
	return c, c.table.familyName() != ""
}

// listDropPolicies returns such chains of other programs for packets to this host and for forwarded ones.
func listDropPolicies() (all []dropPolicy, err error) {
	messages, err := nftables.Dump(unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_NEWCHAIN)
	for _, m := range messages {
		if p, ok := parseDropPolicy(m); ok && !p.table.isOwn() {
			all = append(all, p)
		}
	}
	return all, err
}

// parseDropPolicy reads a message about a chain. ok is false if the chain drops no packets to this host and no forwarded ones by default.
func parseDropPolicy(message []byte) (p dropPolicy, ok bool) {
	if p.nftChainName, ok = parseNFTChain(message); !ok {
		return p, false
	}
	hook, verdict := uint32(0), uint32(verdictDrop+1)
	for kind, value := range attributes(message[nl.SizeofNfgenmsg:]) {
		switch kind {
		case unix.NFTA_CHAIN_POLICY:
			verdict = bigEndian(value)
		case unix.NFTA_CHAIN_HOOK:
			for kind, value := range attributes(value) {
				if kind == nftaHookNumber {
					hook = bigEndian(value)
				}
			}
		}
	}
	return p, (hook == hookInput || hook == hookForward) && verdict == verdictDrop
}

// bigEndian returns an attribute of 4 bytes; other ones are no value of the attributes here.
func bigEndian(value []byte) uint32 {
	if len(value) != 4 {
		return ^uint32(0)
	}
	return binary.BigEndian.Uint32(value)
}

// checkDropPolicies is findDropPolicies. A failure is logged once, and the result of the last check remains.
func (f *nftFirewall) checkDropPolicies(ctx context.Context) {
	err := f.findDropPolicies(ctx)
	if err != nil && !f.unlisted && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Failed to look for chains of other programs that drop packets by default; trying again")
	}
	f.unlisted = err != nil
}

// findDropPolicies finds the chains of other programs that drop by default, in tables without a rule about tun0: the node's administrator has not adapted them.
func (f *nftFirewall) findDropPolicies(ctx context.Context) error {
	policies, err := listDropPolicies()
	if err != nil {
		return fmt.Errorf("list chains of other programs in nftables: %w", err)
	}
	var names []string
	for _, p := range policies {
		chains, err := listNFT(ctx, "table", p.table.familyName(), p.table.name)
		if err != nil {
			klog.FromContext(ctx).V(4).Info("Failed to list a table of another program", "table", p.table.name, "err", err)
			continue // it may have been deleted in the meantime
		}
		if !slices.ContainsFunc(rulesOf(chains), func(r nftRule) bool { return r.mentions(Tun0Name) }) {
			names = append(names, fmt.Sprintf("%s %s %s", p.table.familyName(), p.table.name, p.chain))
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropped = nil
	if len(names) > 0 {
		slices.Sort(names)
		f.dropped = &Skipped{
			Feature: FeatureAccept, Err: fmt.Errorf("%w: %s", errDropPolicy, strings.Join(names, ", ")),
			Remedy: fmt.Sprintf("accept packets from and to interface %s, and UDP port %d from the other nodes, in these chains", Tun0Name, f.config.VXLANPort),
		}
	}
	return nil
}

func rulesOf(chains map[string]*nftChain) (rules []nftRule) {
	for _, c := range chains {
		rules = append(rules, c.rules...)
	}
	return rules
}

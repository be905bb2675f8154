package hostnet

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// maxOthers is the largest number of other programs' rules in a HostPath.
const maxOthers = 16

// HostPacket is the first packet of a connection that the host routes.
type HostPacket struct {
	FromPods            bool       // it comes in on tun0; otherwise the host sends it
	Translated          bool       // the host has translated its destination, as kube-proxy does
	Protocol            string     // tcp, udp, sctp or icmp
	Source, Destination netip.Addr // IPv4
	DestinationPort     uint16
}

// HostPath is what the host does with a packet, as far as its routes and the agent's own rules decide.
type HostPath struct {
	Route  HostRoute
	Source netip.Addr // as it leaves the host; zero: an address of the host that is not known
	// Masqueraded reports that the agent's rules replace the source.
	Masqueraded bool

	Drops bool   // a rule of the agent drops the packet
	By    string // the rule of the agent that drops or accepts it: its chain and comment; "": none does
	// Others are rules that are not evaluated, of other programs, by table and chain: those that may match before a rule of the agent decides. OthersFirst reports
	// that one of them precedes the agent's rule that drops the packet, and could accept it.
	Others      []string
	OthersFirst bool
}

// Path returns what the host does with the packet: the kernel's decision on its route, and that of the rules that the agent's chains have at the moment. It sends no
// packet. It is safe for concurrent use, and does not wait for Sync.
func (f *Firewall) Path(ctx context.Context, p HostPacket) (path HostPath, err error) {
	packet := rulePacket{source: p.Source, destination: p.Destination, protocol: p.Protocol, port: p.DestinationPort, translated: p.Translated, isVTEP: f.vteps.has}
	if p.FromPods {
		packet.in, packet.fromEgressIP = Tun0Name, f.isEgressIP(p.Source)
	}
	if path.Route, err = lookUpRoute(packet.in, p.Source, p.Destination); err != nil {
		return path, err
	}
	if path.Source = p.Source; !p.Source.IsValid() {
		path.Source, packet.source = path.Route.Source, path.Route.Source
	}
	packet.out = path.Route.Interface
	type step struct{ table, builtIn string }
	var steps []step
	switch isForwarded := path.Route.Kind == RouteForwarded; {
	case path.Route.Kind == RouteLocal && p.FromPods:
		steps = []step{{tableMangle, "INPUT"}, {tableFilter, "INPUT"}}
	case isForwarded && !p.FromPods:
		steps = []step{{tableFilter, "OUTPUT"}, {tableNAT, "POSTROUTING"}}
	case isForwarded && packet.out != Tun0Name:
		steps = []step{{tableMangle, "FORWARD"}, {tableFilter, "FORWARD"}, {tableNAT, "POSTROUTING"}}
	default:
		return path, nil
	}
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return path, err
		}
		if err := f.pass(&path, &packet, s.table, s.builtIn); err != nil || path.Drops {
			return path, err
		}
	}
	tables, err := nftTables()
	path.addOthers(tables...)
	return path, err
}

// isEgressIP reports whether the source of a packet from tun0 is an egress IP: the bridge lets no other foreign source pass.
func (f *Firewall) isEgressIP(source netip.Addr) bool {
	return source != f.config.ServiceNextHop && !slices.ContainsFunc(f.config.ClusterNetworks, func(n netip.Prefix) bool { return n.Contains(source) })
}

// pass lets the packet pass the rules of a built-in chain, until one of the agent decides.
func (f *Firewall) pass(path *HostPath, packet *rulePacket, table, builtIn string) error {
	rules, _, err := f.list(table, builtIn)
	if err != nil {
		return fmt.Errorf("list iptables chain %s of table %s: %w", builtIn, table, err)
	}
	isOther := false
	for _, r := range rules {
		target := r.target()
		if !strings.HasPrefix(target, chainPrefix) {
			packet.marked = mayMatch
			if target != "" && packet.matches(r) != matchesNot {
				isOther = true
				path.addOthers(fmt.Sprintf("%s/%s %s", table, builtIn, target))
			}
			continue
		}
		own, _, err := f.list(table, target)
		if err != nil {
			return fmt.Errorf("list iptables chain %s of table %s: %w", target, table, err)
		}
		verdict, by, unknown := packet.evaluate(own)
		if unknown != "" {
			isOther = true
			path.addOthers(fmt.Sprintf("%s/%s %q", table, target, unknown))
		}
		switch verdict {
		case "":
			continue
		case "MASQUERADE":
			path.Masqueraded = true
			path.Source, err = masqueradeAddr(path.Route.index, cmp.Or(path.Route.Gateway, packet.destination))
			return err
		}
		path.Drops, path.By, path.OthersFirst = verdict != "ACCEPT", fmt.Sprintf("%s (%s)", target, by), isOther
		return nil
	}
	return nil
}

// evaluate returns the verdict of a chain of the agent and the comment of its rule; "" if the packet returns. unknown is the comment of a rule before it about which
// too little is known of the packet. It assumes that other programs do not mark the packet.
func (p *rulePacket) evaluate(rules []Rule) (verdict, by, unknown string) {
	p.marked = matchesNot
	for _, r := range rules {
		target := r.target()
		if !slices.Contains([]string{"ACCEPT", "DROP", "REJECT", "RETURN", "MASQUERADE"}, target) {
			continue // it changes the packet only
		}
		switch p.matches(r) {
		case matchesNot:
		case mayMatch:
			unknown = r.comment()
		case matches:
			if target == "RETURN" {
				return "", "", unknown
			}
			return target, r.comment(), unknown
		}
	}
	return "", "", unknown
}

func (p *HostPath) addOthers(names ...string) {
	for _, name := range names {
		switch {
		case slices.Contains(p.Others, name) || len(p.Others) > maxOthers:
		case len(p.Others) == maxOthers:
			p.Others = append(p.Others, "further ones")
		default:
			p.Others = append(p.Others, name)
		}
	}
}

// has reports whether the set of VTEPs has the address. Until all were added it may have further ones.
func (v *VTEPs) has(addr netip.Addr) matched {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.uses[addr] == 0 && !v.complete {
		return mayMatch
	}
	return matchIf(v.uses[addr] > 0)
}

// nftTables returns the tables of nf_tables that other programs than iptables have for IPv4, none if the kernel does not support it.
func nftTables() (names []string, err error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	messages, err := request.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE)
	if supported, err := supportsNFTables(err); err != nil || !supported {
		return nil, err
	}
	for _, m := range messages {
		if name := nftTable(m); name != "" {
			names = append(names, name)
		}
	}
	return names, nil
}

// nftTable returns the family and the name of a table, "" if it is not for IPv4 or one of iptables.
func nftTable(message []byte) string {
	if len(message) < nl.SizeofNfgenmsg {
		return ""
	}
	family := map[byte]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip"}[message[0]]
	for kind, value := range attributes(message[nl.SizeofNfgenmsg:]) {
		if kind != unix.NFTA_TABLE_NAME || family == "" {
			continue
		}
		name := unix.ByteSliceToString(value)
		if family == "ip" && slices.Contains([]string{tableRaw, tableMangle, tableNAT, tableFilter, "security"}, name) {
			return ""
		}
		return "nftables table " + family + " " + name
	}
	return ""
}

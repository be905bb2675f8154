package hostnet

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
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

	Drops bool   // a rule drops the packet
	By    string // the rule that drops or accepts it: chain and comment of the agent's, table, chain and target of another program's; "": none does
	// ByOther reports that By is a rule or the policy of another program.
	ByOther bool
	// Others are rules that are not evaluated, of other programs, by table and chain: those that may match before a rule decides. OthersFirst reports that one of them
	// precedes the rule that drops the packet, and could accept it, or MayTranslate: translate its destination, so that Route is another one.
	Others                    []string
	OthersFirst, MayTranslate bool
}

// ruleSource is what has the rules.
type ruleSource interface {
	// builtIn returns the rules and the policy of a built-in chain.
	builtIn(table, chain string) (rules []Rule, policy string, err error)
	// list returns the rules of a chain of the agent.
	list(table, chain string) (rules []Rule, exists bool, err error)
	// otherTables returns the tables of other programs whose rules builtIn does not return.
	otherTables() ([]string, error)
}

// pathTracer evaluates rules.
type pathTracer struct {
	*firewallState
	ruleSource
}

// Path implements Firewall. It has the rules that iptables has at the moment.
func (f *iptablesFirewall) Path(ctx context.Context, p HostPacket) (HostPath, error) {
	return pathTracer{&f.firewallState, f}.trace(ctx, p)
}

// trace implements Path of a firewall.
func (f pathTracer) trace(ctx context.Context, p HostPacket) (path HostPath, err error) {
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
	if err := f.translations(&path, packet, p.FromPods); err != nil {
		return path, err
	}
	for _, s := range stepsOf(path.Route, p.FromPods) {
		if err := ctx.Err(); err != nil {
			return path, err
		}
		if err := f.pass(&path, &packet, s.table, s.builtIn); err != nil || path.Drops {
			return path, err
		}
	}
	return path, nil
}

// pathStep is a built-in chain.
type pathStep struct{ table, builtIn string }

// stepsOf returns the chains after routing in which the agent has rules.
func stepsOf(route HostRoute, isFromPods bool) []pathStep {
	switch isForwarded := route.Kind == diagnostics.RouteForwarded; {
	case route.Kind == diagnostics.RouteLocal && isFromPods:
		return []pathStep{{tableMangle, "INPUT"}, {tableFilter, "INPUT"}}
	case isForwarded && !isFromPods:
		return []pathStep{{tableFilter, "OUTPUT"}, {tableNAT, "POSTROUTING"}}
	case isForwarded && route.Interface != Tun0Name:
		return []pathStep{{tableMangle, "FORWARD"}, {tableFilter, "FORWARD"}, {tableNAT, "POSTROUTING"}}
	}
	return nil
}

// translations adds what may translate the destination, as kube-proxy does, and all tables of nftables. The kernel routes a packet from tun0 after it. A connection is
// translated once.
func (f pathTracer) translations(path *HostPath, packet rulePacket, isFromPods bool) error {
	isRouted := path.Route.Kind == diagnostics.RouteLocal || path.Route.Kind == diagnostics.RouteForwarded
	if !isFromPods && !isRouted {
		return nil // the kernel routes it before
	}
	tables, err := f.otherTables()
	if err != nil {
		return err
	}
	if path.addOthers(tables...); packet.translated {
		return nil
	}
	path.MayTranslate = len(tables) > 0
	builtIn := "PREROUTING"
	switch {
	case isFromPods:
		packet.out = ""
	case path.Route.Kind == diagnostics.RouteLocal:
		builtIn, packet.out = "OUTPUT", "lo"
	default:
		builtIn = "OUTPUT"
	}
	rules, _, err := f.builtIn(tableNAT, builtIn)
	if err != nil {
		return err
	}
	packet.marked = mayMatch
	for _, r := range rules {
		target, matched := r.next(), packet.matches(r)
		switch {
		case matched == matchesNot || target == "" || strings.HasPrefix(target, chainPrefix) || continues(target):
		case target != "ACCEPT" && target != "RETURN":
			path.MayTranslate = true
			path.addOthers(fmt.Sprintf("%s/%s %s", tableNAT, builtIn, target))
		case matched == matches:
			return nil
		}
	}
	return nil
}

// isEgressIP reports whether the source of a packet from tun0 is an egress IP: the bridge lets no other foreign source pass.
func (f *firewallState) isEgressIP(source netip.Addr) bool {
	if source == f.config.ServiceNextHop || source == f.config.ServiceOutside {
		return false
	}
	return !slices.ContainsFunc(f.config.ClusterNetworks, func(n netip.Prefix) bool { return n.Contains(source) })
}

// pass lets the packet pass the rules of a built-in chain, until one decides.
func (f pathTracer) pass(path *HostPath, packet *rulePacket, table, builtIn string) error {
	rules, policy, err := f.builtIn(table, builtIn)
	if err != nil {
		return err
	}
	mayAccept := false // a rule that is not evaluated
	for _, r := range rules {
		target := r.next()
		if !strings.HasPrefix(target, chainPrefix) {
			packet.marked = mayMatch
			accepts, decides := path.passOther(fmt.Sprintf("%s/%s %s", table, builtIn, target), target, packet.matches(r), mayAccept)
			if decides {
				return nil
			}
			mayAccept = mayAccept || accepts
			continue
		}
		own, _, err := f.list(table, target)
		if err != nil {
			return fmt.Errorf("list iptables chain %s of table %s: %w", target, table, err)
		}
		verdict, by, unknown := packet.evaluate(own)
		if unknown != "" {
			mayAccept = true
			path.addOthers(fmt.Sprintf("%s/%s %q", table, target, unknown))
		}
		switch by = fmt.Sprintf("%s (%s)", target, by); verdict {
		case "":
			continue
		case "MASQUERADE":
			path.Masqueraded = true
			path.Source, err = masqueradeAddr(path.Route.index, cmp.Or(path.Route.Gateway, packet.destination))
			return err
		case "ACCEPT":
			path.By = by
		default:
			path.drop(by, false, mayAccept)
		}
		return nil
	}
	if policy == "DROP" {
		path.drop(fmt.Sprintf("%s/%s policy DROP", table, builtIn), true, mayAccept)
	}
	return nil
}

// passOther lets the packet pass a rule of another program. It reports whether the rule may accept it, and whether it certainly accepts or drops it.
func (p *HostPath) passOther(name, target string, matched matched, mayAccept bool) (accepts, decides bool) {
	isCertain, isDrop := matched == matches, target == "DROP" || target == "REJECT"
	switch {
	case matched == matchesNot || target == "" || continues(target):
		return false, false
	case isCertain && target == "ACCEPT":
		return true, true
	case isCertain && isDrop:
		p.drop(name, true, mayAccept)
		return false, true
	}
	p.addOthers(name)
	return !isDrop, false
}

// drop sets the rule that drops the packet, unless one before it accepts or translates it.
func (p *HostPath) drop(by string, isOther, mayAccept bool) {
	p.Drops, p.By, p.ByOther, p.OthersFirst = true, by, isOther, mayAccept || p.MayTranslate
}

// builtIn returns the rules and the policy of a built-in chain.
func (f *iptablesFirewall) builtIn(table, chain string) (rules []Rule, policy string, err error) {
	lines, _, err := f.lines(table, chain)
	if err == nil {
		rules, err = parseRules(lines)
	}
	if err != nil {
		return nil, "", fmt.Errorf("list iptables chain %s of table %s: %w", chain, table, err)
	}
	for _, line := range lines {
		if after, ok := strings.CutPrefix(line, "-P "+chain+" "); ok {
			policy, _, _ = strings.Cut(after, " ")
		}
	}
	return rules, policy, nil
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

// otherTables returns the tables of nf_tables that iptables does not have.
func (f *iptablesFirewall) otherTables() (names []string, err error) {
	tables, err := listNFTTables()
	for _, t := range tables {
		if !t.isOfIPTables() && !t.isOwn() {
			names = append(names, t.String())
		}
	}
	return names, err
}

func (t nftTable) String() string { return "nftables table " + t.familyName() + " " + t.name }

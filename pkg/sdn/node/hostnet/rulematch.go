package hostnet

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// matched is whether a packet matches a rule, or a part of it.
type matched int

const (
	matchesNot matched = iota
	mayMatch           // it depends on what is not known of the packet
	matches
)

func (m matched) negated() matched { return matches - m }

func matchIf(is bool) matched {
	if is {
		return matches
	}
	return matchesNot
}

// rulePacket is the first packet of a connection, as rules see it.
type rulePacket struct {
	in, out             string // interfaces; "": the host itself
	source, destination netip.Addr
	protocol            string  // as iptables prints it
	port                uint16  // the destination's
	translated          bool    // the host has translated the destination
	fromEgressIP        bool    // conntrack tracks only some of them (egressChains)
	marked              matched // whether it has a mark of another program
	isVTEP              func(netip.Addr) matched
}

// ruleOption is an option of a rule with its values.
type ruleOption struct {
	name    string
	negated bool
	values  []string
}

// options returns the matches of the rule.
func (r Rule) options() (all []ruleOption) {
	isOption := func(word string) bool { return word == "!" || strings.HasPrefix(word, "-") }
	negated := false
	for i := 0; i < len(r) && r[i] != "-j" && r[i] != "-g"; {
		if r[i] == "!" {
			negated = true
			i++
			continue
		}
		end := i + 1
		if r[i] == "--comment" && end < len(r) { // any text
			end++
		}
		for end < len(r) && !isOption(r[end]) {
			end++
		}
		all = append(all, ruleOption{name: r[i], negated: negated, values: r[i+1 : end]})
		negated, i = false, end
	}
	return all
}

// next returns the target of the rule, or the chain that it goes to; "" if it only counts.
func (r Rule) next() string {
	if i := slices.Index(r, "-g"); i >= 0 && i+1 < len(r) && r.target() == "" {
		return r[i+1]
	}
	return r.target()
}

// continues reports whether the packet passes the next rule after the target in any case.
func continues(target string) bool {
	return slices.Contains([]string{
		"AUDIT", "CHECKSUM", "CLASSIFY", "CONNMARK", "CONNSECMARK", "CT", "DSCP", "ECN", "HL", "LOG", "MARK", "NFLOG", "NOTRACK", "RATEEST", "SECMARK", "SET", "TCPMSS", "TCPOPTSTRIP", "TOS",
		"TRACE", "TTL", "ULOG",
	}, target)
}

// comment returns the comment of the rule; "" if it has none.
func (r Rule) comment() string {
	if i := slices.Index(r, "--comment"); i >= 0 && i+1 < len(r) {
		return r[i+1]
	}
	return ""
}

// matches reports whether the packet matches all options of the rule.
func (p *rulePacket) matches(r Rule) matched {
	result := matches
	for _, o := range r.options() {
		m := p.option(o)
		if o.negated {
			m = m.negated()
		}
		result = min(result, m)
	}
	return result
}

func (p *rulePacket) option(o ruleOption) matched {
	if o.name == "--comment" {
		return matches
	}
	if len(o.values) == 0 {
		return mayMatch
	}
	value := o.values[0]
	switch o.name {
	case "-m":
		return match(value)
	case "-s":
		if !p.source.IsValid() { // the host has not selected it
			return mayMatch
		}
		return matchIf(isInNetwork(p.source, value))
	case "-d":
		return matchIf(isInNetwork(p.destination, value))
	case "-i":
		return matchIf(isInterface(p.in, value))
	case "-o":
		return matchIf(isInterface(p.out, value))
	case "-p":
		return matchIf(value == p.protocol)
	case "--dport":
		return matchIf(isPort(p.port, value))
	case "--icmp-type":
		return matchIf(value == "any" || strings.HasPrefix(value+"/", "8/")) // an echo request
	case "--ctstate":
		return p.state(value)
	case "--ctdir":
		return matchIf(value == "ORIGINAL")
	case "--mark":
		return p.marked
	case "--match-set":
		return p.set(o.values)
	}
	return mayMatch
}

// match returns what a match of iptables decides besides its options. One such as socket or rpfilter has a condition without an option.
func match(name string) matched {
	if slices.Contains([]string{"addrtype", "comment", "conntrack", "icmp", "mark", "sctp", "set", "tcp", "udp"}, name) {
		return matches
	}
	return mayMatch
}

// state matches the states of a connection, separated by commas.
func (p *rulePacket) state(states string) (m matched) {
	for state := range strings.SplitSeq(states, ",") {
		switch {
		case state == "DNAT":
			m = max(m, matchIf(p.translated))
		case p.fromEgressIP && (state == "NEW" || state == "UNTRACKED"):
			m = max(m, mayMatch)
		case state == "NEW":
			m = matches
		}
	}
	return m
}

// set matches a set of addresses. Only those of the agent are known.
func (p *rulePacket) set(values []string) matched {
	switch strings.Join(values, " ") {
	case vtepSet + " src":
		return p.isVTEP(p.source)
	case vtepSet + " dst":
		return p.isVTEP(p.destination)
	case egressSet + " src":
		return matchIf(p.fromEgressIP)
	}
	return mayMatch
}

// isInNetwork reports whether an address is in a network as iptables prints it, whose mask can have any bits.
func isInNetwork(addr netip.Addr, network string) bool {
	text, mask, _ := strings.Cut(network, "/")
	base, err := netip.ParseAddr(text)
	if err != nil || !addr.Is4() || !base.Is4() {
		return false
	}
	bits := net.CIDRMask(32, 32)
	if n, err := strconv.Atoi(mask); err == nil && n >= 0 && n <= 32 {
		bits = net.CIDRMask(n, 32)
	} else if m, err := netip.ParseAddr(mask); err == nil && m.Is4() {
		bits = m.AsSlice()
	}
	a, b := addr.As4(), base.As4()
	for i := range a {
		if (a[i]^b[i])&bits[i] != 0 {
			return false
		}
	}
	return true
}

// isInterface reports whether the interface has the name, or that prefix before a "+".
func isInterface(name, pattern string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "+"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return name == pattern
}

// isPort reports whether the port is in a range as iptables prints it.
func isPort(port uint16, ports string) bool {
	first, last, isRange := strings.Cut(ports, ":")
	from, err := strconv.ParseUint(first, 10, 16)
	if err != nil {
		return false
	}
	if !isRange {
		return uint64(port) == from
	}
	to, err := strconv.ParseUint(last, 10, 16)
	return err == nil && uint64(port) >= from && uint64(port) <= to
}

package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// errNoTranslation is the error of a rule with a match or a target that no rule of the agent has.
var errNoTranslation = errors.New("the rule has no translation to nftables")

// nftStates are the states of iptables' conntrack that nftables has in the status of a connection.
var nftStates = []string{"DNAT", "SNAT"} //nolint:gochecknoglobals // a constant

// nft returns the rule in the syntax of nftables, without its comment. A packet matches it if and only if it matches the rule of iptables.
func (r Rule) nft() (string, error) {
	var words []string
	protocol, limit := "", ""
	includesProtocol, needsProtocol := false, false
	for _, o := range r.options() {
		switch o.name {
		case "-p":
			protocol = o.value()
		case "--dport", "--icmp-type":
			includesProtocol = true
		case "--ctorigdstport":
			needsProtocol = true // before the port
		case "--connlimit-above":
			limit = "add @" + connectionSet + " { ip saddr ct count over " + o.value() + " }"
		}
	}
	for _, o := range r.options() {
		match, err := o.nft(protocol, includesProtocol && !needsProtocol)
		if err != nil {
			return "", fmt.Errorf("%w: %s", err, r)
		}
		if match != "" {
			words = append(words, match)
		}
	}
	if limit != "" {
		words = append(words, limit)
	}
	statement, err := r.nftTarget()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, r)
	}
	return strings.Join(append(words, "counter", statement), " "), nil
}

func (o ruleOption) value() string {
	if len(o.values) == 0 {
		return ""
	}
	return o.values[0]
}

// nft returns the match; "" if another one includes it.
func (o ruleOption) nft(protocol string, includesProtocol bool) (string, error) {
	equal, value := "", o.value()
	if o.negated {
		equal = "!= "
	}
	switch o.name {
	case "-m", "--comment", "--connlimit-above", "--connlimit-saddr":
		return "", nil
	case "--connlimit-mask":
		return "", supportedIf(value == "32")
	case "--bytecode":
		// nftables compares no two fields of a packet: the pair of its addresses is in the set only if they are equal.
		return "update @" + itselfSet + " { ip saddr . ip saddr } ip saddr . ip daddr @" + itselfSet, supportedIf(value == toItselfProgram && !o.negated)
	case "-p":
		if includesProtocol {
			return "", supportedIf(!o.negated)
		}
		return "ip protocol " + equal + value, nil
	case "-s":
		return o.nftAddress("ip saddr ")
	case "-d":
		return o.nftAddress("ip daddr ")
	case "-i":
		return "iifname " + equal + nftInterface(value), nil
	case "-o":
		return "oifname " + equal + nftInterface(value), nil
	case "--dport":
		return protocol + " dport " + equal + strings.ReplaceAll(value, ":", "-"), supportedIf(protocol != "")
	case "--icmp-type":
		return "icmp type " + equal + value, nil
	case "--match-set":
		if !slices.Contains(o.values, "src") {
			return "ip daddr " + equal + "@" + value, nil
		}
		return "ip saddr " + equal + "@" + value, nil
	case "--dst-type":
		return "fib daddr type " + equal + strings.ToLower(value), nil
	case "--src-type":
		return "fib saddr type " + equal + strings.ToLower(value), nil
	}
	return o.nftConnection(equal)
}

// nftConnection returns a match of the packet's connection or mark.
func (o ruleOption) nftConnection(equal string) (string, error) {
	value := o.value()
	switch o.name {
	case "--ctstate":
		states := strings.Split(value, ",")
		if !slices.ContainsFunc(states, func(s string) bool { return slices.Contains(nftStates, s) }) {
			return "ct state " + equal + strings.ToLower(value), nil
		}
		return "ct status " + strings.ToLower(value), supportedIf(len(states) == 1 && !o.negated)
	case "--ctstatus":
		return "ct status & " + strings.ToLower(value) + " == 0", supportedIf(o.negated && !strings.Contains(value, ","))
	case "--ctdir":
		return "ct direction " + equal + strings.ToLower(value), nil
	case "--ctorigsrc":
		return o.nftAddress("ct original ip saddr ")
	case "--ctorigdst":
		return o.nftAddress("ct original ip daddr ")
	case "--ctorigdstport":
		return "ct original proto-dst " + equal + value, nil
	case "--mark":
		mark, mask, hasMask := strings.Cut(value, "/")
		return "meta mark & " + mask + " == " + mark, supportedIf(hasMask && !o.negated)
	}
	return "", errNoTranslation
}

func supportedIf(is bool) error {
	if is {
		return nil
	}
	return errNoTranslation
}

// nftAddress matches an address and a mask, whose bits need not be adjacent.
func (o ruleOption) nftAddress(expression string) (string, error) {
	address, mask, _ := strings.Cut(o.value(), "/")
	m, err := netip.ParseAddr(mask)
	switch {
	case err == nil && o.negated:
		return expression + "& " + m.String() + " != " + address, nil
	case err == nil:
		return expression + "& " + m.String() + " == " + address, nil
	case o.negated:
		return expression + "!= " + o.value(), nil
	}
	_, _, err = net.ParseCIDR(o.value())
	return expression + o.value(), err
}

// nftInterface returns an interface's name, or the prefix of names before a "+" of iptables.
func nftInterface(pattern string) string {
	if prefix, ok := strings.CutSuffix(pattern, "+"); ok {
		pattern = prefix + "*"
	}
	return strconv.Quote(pattern)
}

// nftTarget returns the statement for the target.
func (r Rule) nftTarget() (string, error) {
	target := r.target()
	options := r[min(slices.Index(r, "-j")+2, len(r)):]
	value := ""
	if len(options) > 1 {
		value = options[1]
	}
	switch target {
	case "ACCEPT", "DROP", "RETURN":
		return strings.ToLower(target), supportedIf(len(options) == 0)
	case "REJECT":
		return "reject with icmp type port-unreachable", supportedIf(slices.Equal(options, rejects()[1:]))
	case "MASQUERADE":
		if slices.Equal(options, []string{randomly}) {
			return "masquerade fully-random", nil
		}
		return "masquerade", supportedIf(len(options) == 0)
	case "DSCP":
		return "ip dscp set " + value, supportedIf(len(options) == 2)
	case "CT":
		return "notrack", supportedIf(slices.Equal(options, []string{"--notrack"}))
	case "MARK":
		mark, mask, _ := strings.Cut(value, "/")
		bits, err := strconv.ParseUint(strings.TrimPrefix(mask, "0x"), 16, 32)
		if err != nil || options[0] != "--set-xmark" {
			return "", errNoTranslation
		}
		return fmt.Sprintf("meta mark set meta mark & %#08x ^ %s", ^uint32(bits), mark), nil
	}
	return "", errNoTranslation
}

package ovs

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// fieldID numbers the match fields in the order in which Open vSwitch prints them (match_format in its match.c), so that a
// canonical match reads like the line of dump-flows.
type fieldID int

const (
	fieldPktMark fieldID = iota
	fieldConjID
	fieldCTState
	fieldCTZone
	fieldCTMark
	fieldProtocol // the word that stands for dl_type and nw_proto: ip, tcp6, arp …
	fieldReg0
	fieldTunID = iota + maxReg // reg1 to reg15 lie between
	fieldTunSrc
	fieldTunDst
	fieldTunIPv6Src
	fieldTunIPv6Dst
	fieldMetadata
	fieldInPort
	fieldDLSrc
	fieldDLDst
	fieldDLType
	fieldNWSrc
	fieldNWDst
	fieldARPSPA
	fieldARPTPA
	fieldIPv6Src
	fieldIPv6Dst
	fieldIPv6Label
	fieldNWProto
	fieldARPOp
	fieldARPSHA
	fieldARPTHA
	fieldNWTOS
	fieldNWECN
	fieldNWTTL
	fieldNWFrag
	fieldICMPType
	fieldICMPCode
	fieldNDTarget
	fieldNDSLL
	fieldNDTLL
	fieldTPSrc
	fieldTPDst
	fieldTCPFlags
	numFields
)

// A field is what is known of one match field.
type field struct {
	id    fieldID
	name  string // as Open vSwitch prints it
	form  form
	bits  int   // of an integer
	needs needs // what the match must say of the packet before this field means anything
}

// form is how a field's value is written.
type form int

const (
	formDecimal       form = iota // no mask
	formMaskedDecimal             // hexadecimal when masked
	formHex                       // with or without mask
	formTOS
	formMAC
	formMaskedMAC
	formIPv4
	formIPv6
	formPort
	formFrag
	formCTState
	formTCPFlags
)

// needs is a field's prerequisite. Open vSwitch silently drops a field without it, which widens the match.
type needs int

const (
	needsNothing needs = iota
	needsARP
	needsIPv4 // or ARP, where nw_src means arp_spa
	needsIPv6
	needsIP // of either family
	needsTransport
	needsTCP
	needsUDP
	needsSCTP
	needsICMP
	needsICMPv6
)

func (n needs) String() string {
	switch n {
	case needsARP:
		return "arp"
	case needsIPv4:
		return "ip"
	case needsIPv6:
		return "ipv6"
	case needsIP:
		return "ip or ipv6"
	case needsTransport:
		return "tcp, udp or sctp"
	case needsTCP:
		return "tcp"
	case needsUDP:
		return "udp"
	case needsSCTP:
		return "sctp"
	case needsICMP:
		return "icmp or icmp6"
	case needsICMPv6:
		return "icmp6"
	}
	return "nothing"
}

// lookupField finds a field by any of the names that ovs-ofctl takes for it. The fields are those in use; what is missing is
// refused rather than compared wrongly.
func lookupField(name string) (field, bool) {
	switch name {
	case "pkt_mark":
		return field{fieldPktMark, name, formHex, 32, needsNothing}, true
	case "conj_id":
		return field{fieldConjID, name, formDecimal, 32, needsNothing}, true
	case "ct_state":
		return field{fieldCTState, name, formCTState, 0, needsNothing}, true
	case "ct_zone":
		return field{fieldCTZone, name, formDecimal, 16, needsNothing}, true
	case "ct_mark":
		return field{fieldCTMark, name, formHex, 32, needsNothing}, true
	case "tun_id", "tunnel_id":
		return field{fieldTunID, "tun_id", formHex, 64, needsNothing}, true
	case "tun_src":
		return field{fieldTunSrc, name, formIPv4, 0, needsNothing}, true
	case "tun_dst":
		return field{fieldTunDst, name, formIPv4, 0, needsNothing}, true
	case "tun_ipv6_src":
		return field{fieldTunIPv6Src, name, formIPv6, 0, needsNothing}, true
	case "tun_ipv6_dst":
		return field{fieldTunIPv6Dst, name, formIPv6, 0, needsNothing}, true
	case "metadata":
		return field{fieldMetadata, name, formHex, 64, needsNothing}, true
	case "in_port":
		return field{fieldInPort, name, formPort, 16, needsNothing}, true
	case "dl_src", "eth_src":
		return field{fieldDLSrc, "dl_src", formMaskedMAC, 0, needsNothing}, true
	case "dl_dst", "eth_dst":
		return field{fieldDLDst, "dl_dst", formMaskedMAC, 0, needsNothing}, true
	case "dl_type", "eth_type":
		return field{fieldDLType, "dl_type", formDecimal, 16, needsNothing}, true
	case "nw_src", "ip_src":
		return field{fieldNWSrc, "nw_src", formIPv4, 0, needsIPv4}, true
	case "nw_dst", "ip_dst":
		return field{fieldNWDst, "nw_dst", formIPv4, 0, needsIPv4}, true
	case "arp_spa":
		return field{fieldARPSPA, name, formIPv4, 0, needsARP}, true
	case "arp_tpa":
		return field{fieldARPTPA, name, formIPv4, 0, needsARP}, true
	case "ipv6_src":
		return field{fieldIPv6Src, name, formIPv6, 0, needsIPv6}, true
	case "ipv6_dst":
		return field{fieldIPv6Dst, name, formIPv6, 0, needsIPv6}, true
	case "nw_proto", "ip_proto":
		return field{fieldNWProto, "nw_proto", formDecimal, 8, needsIP}, true
	case "arp_op":
		return field{fieldARPOp, name, formDecimal, 16, needsARP}, true
	case "arp_sha":
		return field{fieldARPSHA, name, formMaskedMAC, 0, needsARP}, true
	case "arp_tha":
		return field{fieldARPTHA, name, formMaskedMAC, 0, needsARP}, true
	case "nw_tos":
		return field{fieldNWTOS, name, formTOS, 8, needsIP}, true
	case "nw_ecn", "ip_ecn":
		return field{fieldNWECN, "nw_ecn", formDecimal, 2, needsIP}, true
	case "nw_ttl":
		return field{fieldNWTTL, name, formDecimal, 8, needsIP}, true
	case "nw_frag", "ip_frag":
		return field{fieldNWFrag, "nw_frag", formFrag, 0, needsIP}, true
	case "icmp_type":
		return field{fieldICMPType, name, formDecimal, 8, needsICMP}, true
	case "icmp_code":
		return field{fieldICMPCode, name, formDecimal, 8, needsICMP}, true
	case "icmpv6_type":
		return field{fieldICMPType, "icmp_type", formDecimal, 8, needsICMPv6}, true
	case "icmpv6_code":
		return field{fieldICMPCode, "icmp_code", formDecimal, 8, needsICMPv6}, true
	case "tp_src":
		return field{fieldTPSrc, name, formMaskedDecimal, 16, needsTransport}, true
	case "tp_dst":
		return field{fieldTPDst, name, formMaskedDecimal, 16, needsTransport}, true
	case "tcp_src":
		return field{fieldTPSrc, "tp_src", formMaskedDecimal, 16, needsTCP}, true
	case "tcp_dst":
		return field{fieldTPDst, "tp_dst", formMaskedDecimal, 16, needsTCP}, true
	case "udp_src":
		return field{fieldTPSrc, "tp_src", formMaskedDecimal, 16, needsUDP}, true
	case "udp_dst":
		return field{fieldTPDst, "tp_dst", formMaskedDecimal, 16, needsUDP}, true
	case "sctp_src":
		return field{fieldTPSrc, "tp_src", formMaskedDecimal, 16, needsSCTP}, true
	case "sctp_dst":
		return field{fieldTPDst, "tp_dst", formMaskedDecimal, 16, needsSCTP}, true
	case "tcp_flags":
		return field{fieldTCPFlags, name, formTCPFlags, 12, needsTCP}, true
	}
	if n, ok := strings.CutPrefix(name, "reg"); ok {
		reg, err := strconv.ParseUint(n, 10, 8)
		if err == nil && reg <= maxReg && n == strconv.FormatUint(reg, 10) {
			return field{fieldReg0 + fieldID(reg), name, formHex, 32, needsNothing}, true
		}
	}
	return field{}, false
}

// canonical returns the one way in which the value is written, "" for a value that matches everything.
func (f field) canonical(value string) (string, error) {
	v, mask, masked := strings.Cut(value, "/")
	switch f.form {
	case formDecimal, formMaskedDecimal, formHex, formTOS:
		return f.canonicalInt(v, mask, masked)
	case formMAC, formMaskedMAC:
		return f.canonicalMAC(v, mask, masked)
	case formIPv4:
		return f.canonicalIP(v, mask, masked, netip.Addr.Is4)
	case formIPv6:
		return f.canonicalIP(v, mask, masked, netip.Addr.Is6)
	case formPort:
		return canonicalPort(value)
	case formFrag:
		switch value {
		case "yes", "no", "first", "later", "not_later":
			return value, nil
		}
		return "", fmt.Errorf("%q is not yes, no, first, later or not_later", value)
	case formCTState:
		return canonicalFlags(value, "new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat")
	case formTCPFlags:
		return canonicalFlags(value, "fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns")
	}
	return "", fmt.Errorf("%s: no form", f.name)
}

func (f field) canonicalInt(v, mask string, masked bool) (string, error) {
	all := ^uint64(0) >> (64 - f.bits)
	n, err := parseUint(v, f.bits)
	if err != nil {
		return "", err
	}
	m := all
	if masked {
		if m, err = parseUint(mask, f.bits); err != nil {
			return "", err
		}
		if m != all && f.form != formHex && f.form != formMaskedDecimal {
			return "", fmt.Errorf("the field takes no mask")
		}
	}
	if f.form == formTOS && n&3 != 0 {
		return "", fmt.Errorf("the lower two bits are nw_ecn's")
	}
	n &= m
	switch {
	case m == 0:
		return "", nil
	case m != all:
		return hexText(n) + "/" + hexText(m), nil
	case f.form == formHex:
		return hexText(n), nil
	}
	return strconv.FormatUint(n, 10), nil
}

// hexText is C's %#x, which Open vSwitch prints with: zero has no prefix.
func hexText(n uint64) string {
	if n == 0 {
		return "0"
	}
	return "0x" + strconv.FormatUint(n, 16)
}

// parseUint takes decimal and 0x. A leading zero is refused, since ovs-ofctl reads octal there.
func parseUint(s string, bits int) (uint64, error) {
	digits, base := s, 10
	if h, ok := strings.CutPrefix(s, "0x"); ok {
		digits, base = h, 16
	} else if len(s) > 1 && s[0] == '0' {
		return 0, fmt.Errorf("%q: write a number in decimal or with 0x", s)
	}
	return strconv.ParseUint(digits, base, bits)
}

func (f field) canonicalMAC(v, mask string, masked bool) (string, error) {
	mac, err := parseMAC(v)
	if err != nil {
		return "", err
	}
	if !masked {
		return mac.String(), nil
	}
	m, err := parseMAC(mask)
	if err != nil {
		return "", err
	}
	ones, zeros := true, true
	for i := range mac {
		mac[i] &= m[i]
		ones = ones && m[i] == 0xff
		zeros = zeros && m[i] == 0
	}
	switch {
	case zeros:
		return "", nil
	case ones:
		return mac.String(), nil
	}
	return mac.String() + "/" + m.String(), nil
}

func parseMAC(s string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(s)
	if err != nil {
		return nil, err
	}
	if len(mac) != 6 {
		return nil, fmt.Errorf("%q is not an Ethernet address", s)
	}
	return mac, nil
}

func (f field) canonicalIP(v, mask string, masked bool, family func(netip.Addr) bool) (string, error) {
	addr, err := netip.ParseAddr(v)
	if err != nil {
		return "", err
	}
	if !family(addr) || addr.Zone() != "" {
		return "", fmt.Errorf("%s is of the wrong kind for the field", addr)
	}
	bits := addr.BitLen()
	if masked {
		if bits, err = strconv.Atoi(mask); err != nil || strconv.Itoa(bits) != mask {
			if bits, err = netmaskBits(mask, family); err != nil {
				return "", err
			}
		}
	}
	p, err := addr.Prefix(bits)
	switch {
	case err != nil:
		return "", err
	case bits == 0:
		return "", nil
	case p.IsSingleIP():
		return p.Addr().String(), nil
	}
	return p.Addr().String() + "/" + strconv.Itoa(bits), nil
}

// netmaskBits turns a mask written as an address into a prefix length. Masks with holes are refused: nothing here
// needs one, and readers mistake them.
func netmaskBits(mask string, family func(netip.Addr) bool) (int, error) {
	m, err := netip.ParseAddr(mask)
	if err != nil || !family(m) || m.Zone() != "" {
		return 0, fmt.Errorf("%q is not a mask for the field", mask)
	}
	ones, bits := net.IPMask(m.AsSlice()).Size()
	if bits == 0 {
		return 0, fmt.Errorf("the mask %s has holes", mask)
	}
	return ones, nil
}

// portLocal is the bridge's own port (OFPP_LOCAL).
const (
	portLocal     = "LOCAL"
	portLocalNum  = 65534
	portLocalFlow = -1 // in Flow.InPort
)

func canonicalPort(v string) (string, error) {
	if strings.EqualFold(v, portLocal) || v == strconv.Itoa(portLocalFlow) {
		return portLocal, nil
	}
	n, err := parseUint(v, 16)
	switch {
	case err != nil:
		return "", err
	case n == portLocalNum:
		return portLocal, nil
	case n > maxPort:
		return "", fmt.Errorf("%d is not a port number (at most %d)", n, maxPort)
	}
	return strconv.FormatUint(n, 10), nil
}

// canonicalFlags takes flags in the form +set-unset and returns them in the order of names.
func canonicalFlags(v string, names ...string) (string, error) {
	signs := make([]byte, len(names))
	for rest := v; rest != ""; {
		sign := rest[0]
		if sign != '+' && sign != '-' {
			return "", fmt.Errorf("%q: write flags as +set-unset", v)
		}
		end := strings.IndexAny(rest[1:], "+-") + 1
		if end == 0 {
			end = len(rest)
		}
		i := slices.Index(names, rest[1:end])
		if i < 0 {
			return "", fmt.Errorf("%q is not one of %s", rest[1:end], strings.Join(names, ", "))
		}
		if signs[i] != 0 && signs[i] != sign {
			return "", fmt.Errorf("%s is both set and unset", names[i])
		}
		signs[i] = sign
		rest = rest[end:]
	}
	var b strings.Builder
	for i, sign := range signs {
		if sign != 0 {
			b.WriteByte(sign)
			b.WriteString(names[i])
		}
	}
	return b.String(), nil
}

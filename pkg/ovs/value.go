package ovs

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

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
	case m != all && f.form == formMaskedDecimal:
		return fmt.Sprintf("0x%x/0x%x", n, m), nil
	case m != all:
		return hexText(n) + "/" + hexText(m), nil
	case f.form == formHex:
		return hexText(n), nil
	}
	return strconv.FormatUint(n, 10), nil
}

// hexText is C's %#x, with which Open vSwitch prints most numbers: zero has no prefix.
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

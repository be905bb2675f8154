package endpoints

import (
	"net/netip"
	"strconv"
	"strings"
)

// parseAddr parses an IP address as the API does in its older fields: decimal numbers may have leading zeros, and an IPv4 address may be written as
// an IPv6 address.
func parseAddr(text string) (addr netip.Addr, ok bool) {
	addr, ok = parseFamily(text)
	return addr.Unmap(), ok
}

// parseFamily parses an address without changing its family.
func parseFamily(text string) (addr netip.Addr, ok bool) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		addr, err = netip.ParseAddr(trimZeros(text))
	}
	return addr, err == nil && addr.Zone() == ""
}

// trimZeros removes the leading zeros of the numbers of an IPv4 address.
func trimZeros(text string) string {
	parts := strings.Split(text, ".")
	for i, part := range parts {
		if number := strings.TrimLeft(part, "0"); number != "" {
			parts[i] = number
		} else if part != "" {
			parts[i] = "0"
		}
	}
	return strings.Join(parts, ".")
}

// parsePrefix parses an IP range. Host bits are cleared.
func parsePrefix(text string) (p netip.Prefix, ok bool) {
	addrText, bitsText, _ := strings.Cut(text, "/")
	addr, ok := parseFamily(addrText)
	bits, err := strconv.ParseUint(bitsText, 10, 8)
	if !ok || err != nil || addr.Is4In6() {
		return netip.Prefix{}, false
	}
	p = netip.PrefixFrom(addr, int(bits)).Masked()
	return p, p.IsValid()
}

// isUnusable reports whether no packet can be routed to the address. The API rejects most of these for endpoints and external IPs.
func isUnusable(addr netip.Addr) bool {
	return addr.IsUnspecified() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

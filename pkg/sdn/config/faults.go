package config

import (
	"errors"
	"fmt"
	"net/netip"
)

// FieldError is a fault of an object, with the field that has it. Parsers of objects join them.
type FieldError struct {
	Field string // such as "clusterNetworks[0].CIDR"
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

func (e *FieldError) Unwrap() error { return e.Err }

// faults collects what is wrong with an object.
type faults []error

func (f *faults) add(field string, err error) {
	if err != nil {
		*f = append(*f, &FieldError{Field: field, Err: err})
	}
}

func (f *faults) addf(field, format string, args ...any) {
	f.add(field, fmt.Errorf(format, args...))
}

func (f *faults) join() error { return errors.Join(*f...) }

// prefix reads an IPv4 range and says whether it could. One with bits behind its mask is a fault, but it is clear what
// range is meant, so that what else is wrong with that can be reported too.
func (f *faults) prefix(field, s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	if err != nil || !p.Addr().Is4() {
		f.addf(field, "%q is no IPv4 range: write it as ADDRESS/BITS, such as 10.128.0.0/14", s)
		return netip.Prefix{}, false
	}
	if p != p.Masked() {
		f.addf(field, "%s has bits set behind its mask: write %s", p, p.Masked())
	}
	return p.Masked(), true
}

// usable reports ranges that hosts treat specially.
func (f *faults) usable(field string, p netip.Prefix) {
	for _, r := range []struct {
		cidr, what string
	}{
		{"0.0.0.0/8", "\"this network\""},
		{"127.0.0.0/8", "loopback"},
		{"169.254.0.0/16", "link-local"},
		{"224.0.0.0/4", "multicast"},
	} {
		if special := netip.MustParsePrefix(r.cidr); p.Overlaps(special) {
			f.addf(field, "%s overlaps %s (%s), which can't be routed: choose a private range, such as one in 10.0.0.0/8", p, special, r.what)
		}
	}
}

// hostBits reports a host length that leaves no node a subnet, or no pod an address. Of a range that could not be read
// (the zero Prefix) it is judged by itself.
func (f *faults) hostBits(field string, bits uint32, p netip.Prefix) {
	if !p.IsValid() {
		if bits < minHostBits || bits > maxHostBits {
			f.addf(field, "%d host bits make no subnet: choose %d to %d", bits, minHostBits, maxHostBits)
		}
		return
	}
	room := p.Addr().BitLen() - p.Bits()
	switch {
	case room < minHostBits:
		f.addf(field, "%s is too small to be a cluster network: choose /%d or larger", p, p.Addr().BitLen()-minHostBits)
	case bits < minHostBits || bits > maxHostBits || int(bits) > room:
		f.addf(field, "%d host bits don't fit %s: choose %d to %d", bits, p, minHostBits, min(room, maxHostBits))
	}
}

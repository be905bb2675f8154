package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// FieldError is the error of an invalid field. Parsers of objects join them.
type FieldError struct {
	Field string // such as "clusterNetworks[0].CIDR"
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

func (e *FieldError) Unwrap() error { return e.Err }

// maxShown is the longest part of an invalid value that messages repeat, in bytes: an annotation can have 256 KiB.
const maxShown = 128

// Shorten returns the value, or its beginning if it is too long for a message.
func Shorten(value string) string {
	if len(value) <= maxShown {
		return value
	}
	return strings.ToValidUTF8(value[:maxShown], "") + "..."
}

// faults collects the FieldErrors of an object.
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

// prefix parses an IPv4 range. ok is false if it can't be parsed. A range with host bits set is a fault, but is returned masked, so that
// further faults of it are reported too.
func (f *faults) prefix(field, s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	if err != nil || !p.Addr().Is4() {
		f.addf(field, "%q is not an IPv4 range: write it as ADDRESS/BITS, such as 10.128.0.0/14", Shorten(s))
		return netip.Prefix{}, false
	}
	if p != p.Masked() {
		f.addf(field, "%s has bits set behind its mask: write %s", p, p.Masked())
	}
	return p.Masked(), true
}

// usable adds a fault if the range overlaps a special-purpose range.
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

// hostBits adds a fault if a range with these host bits has no subnet for a node, or a subnet has no address for a pod. If the range could not
// be parsed (the zero Prefix), it checks only the bounds of the CRD.
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

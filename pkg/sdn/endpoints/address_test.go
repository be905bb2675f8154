package endpoints

import (
	"testing"
)

func TestParseAddr(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"IPv4", "10.128.0.1", "10.128.0.1"},
		{"leading zeros are decimal", "010.0128.000.01", "10.128.0.1"},
		{"IPv4 in IPv6", "::ffff:10.128.0.1", "10.128.0.1"},
		{"IPv6", "2001:db8::1", "2001:db8::1"},
		{"empty", "", ""},
		{"number out of range", "10.128.0.256", ""},
		{"three numbers", "10.128.1", ""},
		{"empty number", "10..0.1", ""},
		{"zone", "fe80::1%eth0", ""},
		{"host name", "db.example.com", ""},
		{"space", " 10.128.0.1", ""},
		{"NUL", "10.128.0.1\x00", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr, ok := parseAddr(c.text)
			if ok != (c.want != "") || ok && addr.String() != c.want {
				t.Errorf("parseAddr(%q): got %v, %v, want %q", c.text, addr, ok, c.want)
			}
		})
	}
}

func TestParsePrefix(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"IPv4", "192.0.2.0/24", "192.0.2.0/24"},
		{"host bits", "192.0.2.7/24", "192.0.2.0/24"},
		{"leading zeros", "192.000.02.0/024", "192.0.2.0/24"},
		{"all", "0.0.0.0/0", "0.0.0.0/0"},
		{"IPv6", "2001:db8::/32", "2001:db8::/32"},
		{"no length", "192.0.2.0", ""},
		{"too long", "192.0.2.0/33", ""},
		{"sign", "192.0.2.0/+8", ""},
		{"IPv4 in IPv6", "::ffff:192.0.2.0/120", ""},
		{"empty", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, ok := parsePrefix(c.text)
			if ok != (c.want != "") || ok && p.String() != c.want {
				t.Errorf("parsePrefix(%q): got %v, %v, want %q", c.text, p, ok, c.want)
			}
		})
	}
}

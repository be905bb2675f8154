package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestNonMasqueradeCIDRs(t *testing.T) {
	var many, most []string
	for i := range maxNonMasqueradeCIDRs + 1 {
		many = append(many, fmt.Sprintf("10.0.%d.0/24", i))
	}
	most = many[:maxNonMasqueradeCIDRs]
	for _, tc := range []struct {
		value string
		want  string
		fault string
	}{
		{value: ""},
		{value: " "},
		{value: "10.0.0.0/8", want: "10.0.0.0/8"},
		{value: "192.168.0.0/16, 10.0.0.0/8,10.0.0.0/8", want: "10.0.0.0/8,192.168.0.0/16"},
		{value: "10.1.0.0/16,10.0.0.0/8,203.0.113.7/32", want: "10.0.0.0/8,203.0.113.7/32"}, // one contains another
		{value: "10.128.0.0/14", want: "10.128.0.0/14"},                                     // the cluster network is never masqueraded
		{value: "10.0.0.0/8,0.0.0.0/0", want: "0.0.0.0/0"},
		{value: strings.Join(most, ","), want: strings.Join(most, ",")},
		{value: strings.Join(many, ","), fault: "annotation ovsdn.io/non-masquerade-cidrs: 65 networks are too many: write at most 64"},
		{value: "10.0.0.0", fault: `annotation ovsdn.io/non-masquerade-cidrs: "10.0.0.0" is not an IPv4 network: write ADDRESS/BITS, such as 10.0.0.0/8, separated by commas`},
		{value: "10.0.0.0/8 192.168.0.0/16", fault: "is not an IPv4 network"},
		{value: "10.0.0.0/8,", fault: `"" is not an IPv4 network`},
		{value: "10.0.0.0/33", fault: "is not an IPv4 network"},
		{value: "fd00::/8", fault: `"fd00::/8" is not an IPv4 network`},
		{value: "::ffff:10.0.0.0/104", fault: "is not an IPv4 network"},
		{value: "10.1.2.3/8", fault: "10.1.2.3/8 has bits set behind its mask: write 10.0.0.0/8"},
		{value: "0.0.0.0/32", fault: "0.0.0.0/32 is no network of hosts: write 0.0.0.0/0 for all destinations"},
		{value: "a,b,c,d,e", fault: "and 2 more"},
	} {
		o := object()
		o.Annotations = map[string]string{NonMasqueradeCIDRsAnnotation: tc.value}
		n, err := ParseNetwork(o)
		if tc.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tc.fault) {
				t.Errorf("%q: got error %v, want %q", tc.value, err, tc.fault)
			}
			continue
		}
		var want []netip.Prefix
		for s := range strings.SplitSeq(tc.want, ",") {
			if s != "" {
				want = append(want, netip.MustParsePrefix(s))
			}
		}
		if err != nil || !slices.Equal(n.NonMasqueradeCIDRs, want) {
			t.Errorf("%q: got %+v, %v, want %v", tc.value, n, err, want)
			continue
		}
		// AcceptedAnnotation contains it.
		value, err := n.Accepted()
		if err != nil {
			t.Fatal(err)
		}
		o.Annotations = map[string]string{AcceptedAnnotation: value, NonMasqueradeCIDRsAnnotation: "invalid"}
		if again, err := ActiveNetwork(o); err != nil || !slices.Equal(again.NonMasqueradeCIDRs, want) {
			t.Errorf("active network after an invalid edit: got %+v, %v, want %v", again, err, want)
		}
	}
}

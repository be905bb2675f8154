package config

import (
	"strings"
	"testing"
)

func TestRoutableMTU(t *testing.T) {
	for _, tc := range []struct {
		value string
		mtu   uint32 // 0: none
		want  int
		fault string
	}{
		{value: "1400", mtu: 1450, want: 1400},
		{value: "1450", mtu: 1450, want: 1450},
		{value: "8900", want: 8900}, // the nodes compare it with their underlay
		{value: "576", want: 576},
		{value: "", fault: `annotation ovsdn.io/routable-mtu: "" is not a number of bytes: write one such as "65485"`},
		{value: "1400 bytes", mtu: 1450, fault: `"1400 bytes" is not a number of bytes: write one such as "1450"`},
		{value: "99999999999999999999", fault: "is not a number of bytes"},
		{value: "0", mtu: 1450, fault: "0 bytes is out of range: choose 576 to 1450, or remove the annotation"},
		{value: "-1400", fault: "-1400 bytes is out of range"},
		{value: "65486", fault: "65486 bytes is out of range: choose 576 to 65485"},
		{value: "1451", mtu: 1450, fault: "1451 bytes is more than the mtu, 1450"},
		// Two faults are two faults.
		{value: "575", mtu: 70000, fault: "mtu: 70000 bytes is out of range: choose 576 to 65485, or leave it out for the nodes' own less 50\n" +
			"annotation ovsdn.io/routable-mtu: 575 bytes is out of range"},
	} {
		o := object()
		o.Annotations = map[string]string{RoutableMTUAnnotation: tc.value}
		if tc.mtu != 0 {
			o.MTU = &tc.mtu
		}
		n, err := ParseNetwork(o)
		if tc.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tc.fault) {
				t.Errorf("%q with MTU %d: %v, want %q", tc.value, tc.mtu, err, tc.fault)
			}
			continue
		}
		if err != nil || n.RoutableMTU != tc.want {
			t.Errorf("%q with MTU %d: %+v, %v, want %d", tc.value, tc.mtu, n, err, tc.want)
			continue
		}
		// AcceptedAnnotation contains it.
		value, err := n.Accepted()
		if err != nil {
			t.Fatal(err)
		}
		o.Annotations = map[string]string{AcceptedAnnotation: value}
		if again, err := ActiveNetwork(o); err != nil || again.RoutableMTU != tc.want || again.MTU != n.MTU {
			t.Errorf("active network: got %+v, %v, want MTU %d and %d", again, err, n.MTU, tc.want)
		}
	}
}

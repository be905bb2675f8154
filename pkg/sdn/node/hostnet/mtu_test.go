package hostnet

import (
	"testing"
)

func TestMTU(t *testing.T) {
	for _, test := range []struct{ underlay, given, want int }{
		{1500, 0, 1450},
		{9000, 0, 8950},
		{1500, 1450, 1450},
		{1500, 1400, 1400},
		{626, 0, 576},
	} {
		got, err := MTU(Underlay{MTU: test.underlay}, test.given)
		if err != nil || got != test.want {
			t.Errorf("underlay %d, given %d: %d, %v; want %d", test.underlay, test.given, got, err, test.want)
		}
	}
	eth0 := func(mtu int) Underlay { return Underlay{Name: "eth0", MTU: mtu} }
	_, err := MTU(eth0(1500), 1500)
	wantError(t, err, "MTU 1500 is too large", "eth0 has 1500", "VXLAN takes 50", "at most 1450")
	_, err = MTU(eth0(1500), 575)
	wantError(t, err, "MTU 575 is too small", "576")
	_, err = MTU(eth0(1500), -1)
	wantError(t, err, "MTU -1 is too small")
	_, err = MTU(eth0(600), 0)
	wantError(t, err, "eth0 has MTU 600", "leaves 550", "--iface")
}

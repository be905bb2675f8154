package hostnet

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
)

func TestMTU(t *testing.T) {
	for _, test := range []struct{ underlay, configured, routable, want int }{
		{1500, 0, 0, 1450},
		{9000, 0, 0, 8950},
		{1500, 1450, 0, 1450},
		{1500, 1400, 0, 1400},
		{626, 0, 0, 576},
		{1500, 0, 1400, 1450},
		{1500, 1450, 1450, 1450},
		{9000, 8950, 576, 8950},
	} {
		got, err := MTU(Underlay{MTU: test.underlay}, test.configured, test.routable)
		if want := (linkmtu.MTU{Link: test.want, Routes: test.routable}); err != nil || got != want {
			t.Errorf("underlay %d, configured %d and %d: got %#v, %v; want %#v", test.underlay, test.configured, test.routable, got, err, want)
		}
	}
	eth0 := func(mtu int) Underlay { return Underlay{Name: "eth0", MTU: mtu} }
	_, err := MTU(eth0(1500), 1500, 0)
	wantError(t, err, "MTU 1500 is too large", "eth0 has MTU 1500", "VXLAN needs 50", "at most 1450")
	_, err = MTU(eth0(1500), 575, 0)
	wantError(t, err, "MTU 575 is too small", "576")
	_, err = MTU(eth0(1500), -1, 0)
	wantError(t, err, "MTU -1 is too small")
	_, err = MTU(eth0(1500), 0, 1451)
	wantError(t, err, "routable MTU 1451 is too large", "have MTU 1450", "raise the MTU first")
	_, err = MTU(eth0(1500), 1400, 1450)
	wantError(t, err, "routable MTU 1450 is too large", "have MTU 1400")
	_, err = MTU(eth0(1500), 0, 575)
	wantError(t, err, "routable MTU 575 is too small", "576")
	_, err = MTU(eth0(1500), 0, -1)
	wantError(t, err, "routable MTU -1 is too small")
	_, err = MTU(eth0(600), 0, 0)
	wantError(t, err, "eth0 has MTU 600", "leaves 550", "--iface")
}

// The MTU of a tun0 in use is raised and lowered, by the agent or by Open vSwitch.
func TestTun0_mtu(t *testing.T) {
	inNetNS(t)
	addInterface(t, Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")))
	for _, step := range []struct {
		mtu     linkmtu.MTU
		prepare []string // changes that must precede that of Open vSwitch
	}{
		{mtu: linkmtu.MTU{Link: 1450}},
		{mtu: linkmtu.MTU{Link: 1450, Routes: 1400}, prepare: []string{"route 10.128.0.0/14 MTU 1400 (was 0)", "route 172.30.0.0/16 MTU 1400 (was 0)"}},
		{mtu: linkmtu.MTU{Link: 1400}},
		{mtu: linkmtu.MTU{Link: 8950, Routes: 8000}, prepare: []string{"route 10.128.0.0/14 MTU 1400 (was 0)", "route 172.30.0.0/16 MTU 1400 (was 0)"}},
		{mtu: linkmtu.MTU{Link: 1450}, prepare: []string{"route 10.128.0.0/14 MTU 1450 (was 8000)", "route 172.30.0.0/16 MTU 1450 (was 8000)"}},
	} {
		c := node1()
		c.MTU = step.mtu
		prepared, err := NewTun0(c).PrepareMTU(t.Context())
		must(t, err)
		if diff := cmp.Diff(step.prepare, prepared, cmpopts.SortSlices(strings.Compare)); diff != "" {
			t.Errorf("%v: prepared (-want +got):\n%s", step.mtu, diff)
		}
		sh(t, fmt.Sprintf("ip link set tun0 mtu %d", step.mtu.Link))
		syncTun0(t, c)
		suffix := ""
		if step.mtu.Routes != 0 {
			suffix = fmt.Sprintf(" mtu %d", step.mtu.Routes)
		}
		want := []string{"10.128.0.0/14 scope link" + suffix, "172.30.0.0/16" + suffix}
		if diff := cmp.Diff(want, stateOfTun0(t).Routes); diff != "" {
			t.Errorf("%v: routes (-want +got):\n%s", step.mtu, diff)
		}
		if got := sh(t, "ip link show tun0"); !strings.Contains(got, fmt.Sprintf("mtu %d ", step.mtu.Link)) {
			t.Errorf("%v: got %s", step.mtu, got)
		}
	}
	sh(t, "ip link del tun0")
	if changes, err := NewTun0(node1()).PrepareMTU(t.Context()); err != nil || len(changes) > 0 {
		t.Errorf("PrepareMTU without tun0: got changes %q, error %v", changes, err)
	}
}

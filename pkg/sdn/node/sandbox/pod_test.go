package sandbox

import (
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/utils"
	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

func equateAddrs() cmp.Option { return cmp.Comparer(func(a, b netip.Addr) bool { return a == b }) }

func testPod() Pod {
	return Pod{
		Attachment: Attachment{Sandbox: "0123456789abcdef", IfName: "eth0"},
		Netns:      "/run/netns/x", Namespace: "default", Name: "web", UID: "1-2",
		Addrs:  []netip.Addr{netip.MustParseAddr("10.128.2.2"), netip.MustParseAddr("fd00::2")},
		OFPort: 7,
	}
}

func TestParsePort(t *testing.T) {
	for _, parent := range []string{"", "eth1"} {
		want := testPod()
		want.Macvlan = parent
		port := want.Port()
		port.OFPort = want.OFPort
		if id, ok := port.ExternalIDs[IDMacvlan]; id != parent || ok != (parent != "") {
			t.Errorf("got external_ids:%s %q, %t, want %q", IDMacvlan, id, ok, parent)
		}
		got, err := ParsePort(port)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, equateAddrs()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestNames checks names that other versions of the agent, and users, depend on: they must never change.
func TestNames(t *testing.T) {
	p := testPod()
	if got, want := p.HostVeth(), "veth60373cf9024"; got != want {
		t.Errorf("got host veth %s, want %s", got, want)
	}
	if got, want := p.MAC().String(), "0a:58:0a:80:02:02"; got != want {
		t.Errorf("got MAC %s, want %s", got, want)
	}
	if got, want := p.Owner(), (pipeline.Owner{Kind: pipeline.KindPod, Key: "0123456789abcdef"}); got != want {
		t.Errorf("got owner %v, want %v", got, want)
	}
	if got, want := p.MacvlanMAC().String(), "5e:0e:bd:ec:26:a1"; got != want {
		t.Errorf("got MAC %s of the macvlan interface, want %s", got, want)
	}
	second := Attachment{p.Sandbox, "net1"}
	if second.Owner() == p.Owner() || second.HostVeth() == p.HostVeth() || second.MacvlanMAC().String() == p.MacvlanMAC().String() {
		t.Error("two interfaces of a sandbox have the same owner, host veth or MAC")
	}
	for name, want := range map[string]bool{p.HostVeth(): true, "veth60373cf902": false, "veth60373cf90245": false, "veth60373cf902g": false, "eth60373cf9024x": false, "": false} {
		if got := IsHostVeth(name); got != want {
			t.Errorf("IsHostVeth(%q): got %t, want %t", name, got, want)
		}
	}
}

func TestParsePort_invalid(t *testing.T) {
	for _, tt := range []struct {
		name, key, value string
		text             string
	}{
		{"no interface", IDIfName, "", IDIfName},
		{"sandbox with slash", IDSandbox, "a/b", IDSandbox},
		{"another sandbox", IDSandbox, "abc", "belong to port"},
		{"no address", IDIP, "", IDIP},
		{"no IP address", IDIP, "10.128.2.300", IDIP},
		{"an address too many", IDIP, "10.128.2.2,", IDIP},
		{"address with zone", IDIP, "fe80::1%eth0", "is not a valid pod address"},
		{"IPv4 in IPv6", IDIP, "::ffff:10.128.2.2", "is not a valid pod address"},
		{"a parent with a slash", IDMacvlan, "a/b", IDMacvlan},
		{"another MAC", IDMAC, "0a:58:0a:80:02:03", "want 0a:58:0a:80:02:02"},
	} {
		port := testPod().Port()
		port.ExternalIDs[tt.key] = tt.value
		if _, err := ParsePort(port); err == nil || !strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), port.Name) {
			t.Errorf("%s: got %v, want error with %q", tt.name, err, tt.text)
		}
	}
}

func FuzzParsePort(f *testing.F) {
	good := testPod().Port().ExternalIDs
	f.Add(good[IDSandbox], good[IDIfName], good[IDIP], good[IDMAC])
	f.Add("a/b", "eth0", "10.128.2.2,", "")
	f.Fuzz(func(t *testing.T, sandbox, ifName, ip, mac string) {
		ids := maps.Clone(good)
		maps.Copy(ids, map[string]string{IDSandbox: sandbox, IDIfName: ifName, IDIP: ip, IDMAC: mac})
		port := ovs.Port{Name: Attachment{sandbox, ifName}.HostVeth(), OFPort: 3, ExternalIDs: ids}
		p, err := ParsePort(port)
		if err != nil {
			return
		}
		if utils.ValidateContainerID(p.Sandbox) != nil || utils.ValidateInterfaceName(p.IfName) != nil || len(p.Addrs) == 0 {
			t.Errorf("got invalid pod %+v without an error", p)
		}
		again := p.Port()
		again.OFPort = 3
		q, err := ParsePort(again)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(p, q, equateAddrs()); diff != "" {
			t.Error(diff)
		}
	})
}

package hostnet

import (
	"net/netip"
	"slices"
	"testing"
)

// The agent's own changes are not those of another program.
func TestFirewall_ownChanges(t *testing.T) {
	inNetNS(t)
	var ports []HostPort
	connections := 100
	c := sourcesEvaluated()
	c.HostPorts = func() []HostPort { return ports }
	c.PodConnections = func() (int, error) { return connections, nil }
	f, err := newIPTablesFirewall(t.Context(), c)
	must(t, err)
	syncFirewall(t, f)
	for name, change := range map[string]func() error{
		"host ports": func() error {
			ports = []HostPort{{Addr: netip.MustParseAddr("10.128.0.2"), Protocol: "tcp", HostPort: 80, Port: 8080}}
			return f.SyncHostPorts(t.Context())
		},
		"exceptions": func() error { _, err := f.SetNonMasqueradeCIDRs(t.Context(), prefixes("192.0.2.0/24")); return err },
		"VTEPs":      func() error { _, err := f.Restrict(t.Context()); return err },
		"pod limit":  func() error { connections = 200; _, err := f.Sync(t.Context()); return err },
	} {
		must(t, change())
		syncFirewall(t, f)
		if len(f.foreign.changed) > 0 {
			t.Errorf("%s: got chains %q changed by another program, want none", name, f.foreign.changed)
		}
	}
	sh(t, "iptables-nft "+waitForLock+" -t nat -F")
	syncFirewall(t, f)
	if got := f.foreign.take(); !slices.Contains(got, "nat/OVSDN-MASQUERADE") {
		t.Errorf("after a flush: got chains %q changed by another program, want nat/OVSDN-MASQUERADE", got)
	}
}

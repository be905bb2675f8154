package native_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// ownBridge returns the wanted bridge, with the marks of the pod network's ports.
func ownBridge() ovs.Bridge {
	b := bridge()
	b.Ports, b.PortID = []string{"vxlan0", "tun0"}, "sandbox"
	return b
}

// made is a backend on whose switch another program created the bridge with internal ports.
type made struct {
	ovs.Interface
	names []string
	s     *ovstest.Switch // nil for the fake
}

func makeBridge(t *testing.T, backend string, ids map[string]string, names ...string) made {
	t.Helper()
	if backend == "fake" {
		f := ovs.NewFake(ovstest.Bridge)
		var ports []ovs.Port
		for _, name := range names {
			p := ovs.Port{Name: name, Type: "internal"}
			if value, ok := ids[name]; ok {
				p.ExternalIDs = map[string]string{"sandbox": value}
			}
			ports = append(ports, p)
		}
		f.AddBridge(ovs.Bridge{Name: ovstest.Bridge, DatapathType: "netdev"}, ports...)
		return made{f, names, nil}
	}
	s := ovstest.Start(t)
	args := []string{"add-br", ovstest.Bridge, "--", "set", "bridge", ovstest.Bridge, "datapath_type=netdev", "external_ids:uplink=retained"}
	for _, name := range names {
		args = append(args, "--", "add-port", ovstest.Bridge, name, "--", "set", "interface", name, "type=internal")
		if value, ok := ids[name]; ok {
			args = append(args, "external_ids:sandbox="+value)
		}
	}
	s.VSCtl(t, args...)
	s.VSCtl(t, "wait-until", "bridge", ovstest.Bridge, `datapath_version!=""`) // vswitchd writes it later
	if backend == "exec" {
		return made{native.NewExec(ovstest.Bridge, s.RunDir), names, s}
	}
	return made{newNative(t, s), names, s}
}

func onEach(t *testing.T, test func(t *testing.T, backend string)) {
	t.Helper()
	for _, backend := range []string{"fake", "exec", "native"} {
		t.Run(backend, func(t *testing.T) { test(t, backend) })
	}
}

// row returns the bridge's row in OVSDB and its flows, or for the fake its last wanted state.
func (m made) row(t *testing.T) string {
	t.Helper()
	if m.s == nil {
		b, _ := m.Interface.(*ovs.Fake).Bridge()
		return cmp.Diff(ovs.Bridge{}, b)
	}
	return m.s.VSCtl(t, "list", "bridge", ovstest.Bridge) + m.s.VSCtl(t, "get", "open_vswitch", ".", "next_cfg") + strings.Join(m.s.Dump(t), "\n")
}

// A bridge of that name may contain the host's uplink and forward by itself: fail mode secure would disconnect the host.
func TestForeignBridgeIsNotChanged(t *testing.T) {
	tier.Parallel(t)
	onEach(t, func(t *testing.T, backend string) {
		m := makeBridge(t, backend, map[string]string{"veth1": "abc"}, "eth0", "tun0", "veth1", "bond0")
		before := m.row(t)
		for _, datapath := range []string{"netdev", "system"} {
			b := ownBridge()
			b.DatapathType = datapath
			err := m.EnsureBridge(t.Context(), b)
			if !ovs.IsForeignBridge(err) || !strings.Contains(err.Error(), ": bond0, eth0.") {
				t.Errorf("%s: got %v, want an error with the ports bond0 and eth0", datapath, err)
			}
		}
		if diff := cmp.Diff(before, m.row(t)); diff != "" {
			t.Errorf("bridge (-want +got):\n%s", diff)
		}
	})
}

func TestBridgeOfEarlierVersionIsAdopted(t *testing.T) {
	onEach(t, func(t *testing.T, backend string) {
		for name, ports := range map[string][]string{"empty": nil, "with pods": {"vxlan0", "tun0", "veth1"}} {
			t.Run(name, func(t *testing.T) {
				tier.Parallel(t)
				m := makeBridge(t, backend, map[string]string{"veth1": "abc"}, ports...)
				must(t, m.EnsureBridge(t.Context(), ownBridge()))
				got, err := m.ListPorts(t.Context())
				must(t, err)
				if len(got) != len(ports) {
					t.Errorf("got ports %v, want %v", got, ports)
				}
				// The bridge is marked, so that ports of other owners no longer make it foreign.
				must1(t)(m.AddPort(t.Context(), ovs.Port{Name: "eth0", Type: "internal"}))
				must(t, m.EnsureBridge(t.Context(), ownBridge()))
				if m.s == nil {
					return
				}
				if ids := m.s.VSCtl(t, "get", "bridge", ovstest.Bridge, "external_ids"); ids != "{\"ovsdn.io/owner\"=ovsdn-node, uplink=retained}\n" {
					t.Errorf("got external_ids %s, want the owner mark and other keys unchanged", ids)
				}
			})
		}
	})
}

func TestCreatedBridgeIsMarked(t *testing.T) {
	onReal(t, func(t *testing.T, s *ovstest.Switch, b ovs.Interface) {
		must(t, b.EnsureBridge(t.Context(), ownBridge()))
		if ids := s.VSCtl(t, "get", "bridge", ovstest.Bridge, "external_ids"); ids != "{\"ovsdn.io/owner\"=ovsdn-node}\n" {
			t.Errorf("got external_ids %s, want the owner mark and other keys unchanged", ids)
		}
		// Another value of the key is not a mark.
		must1(t)(b.AddPort(t.Context(), ovs.Port{Name: "eth0", Type: "internal"}))
		s.VSCtl(t, "set", "bridge", ovstest.Bridge, "external_ids:ovsdn.io/owner=other")
		poll(t, "the bridge is foreign", func() bool { return ovs.IsForeignBridge(b.EnsureBridge(t.Context(), ownBridge())) })
		s.VSCtl(t, "del-port", "eth0")
		poll(t, "the bridge is adopted", func() bool { return b.EnsureBridge(t.Context(), ownBridge()) == nil })
		if ids := s.VSCtl(t, "get", "bridge", ovstest.Bridge, "external_ids"); ids != "{\"ovsdn.io/owner\"=ovsdn-node}\n" {
			t.Errorf("got external_ids %s, want the owner mark and other keys unchanged", ids)
		}
	})
}

func TestOnlyOwnBridgeIsDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		ports []string
		own   bool
	}{
		"uplink": {[]string{"eth0", "tun0"}, false},
		"empty":  {nil, true},
		"pods":   {[]string{"tun0", "vxlan0", "veth1"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			tier.Parallel(t)
			m := makeBridge(t, "native", map[string]string{"veth1": "abc"}, c.ports...)
			before := m.row(t)
			err := m.Interface.(*native.Native).DeleteBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, Ports: ownBridge().Ports, PortID: "sandbox"})
			if ovs.IsForeignBridge(err) == c.own || c.own && err != nil {
				t.Fatalf("got error %v, want a foreign bridge: %t", err, !c.own)
			}
			if c.own {
				if left := m.s.VSCtl(t, "list-br"); left != "" {
					t.Errorf("got bridges %s, want none", left)
				}
				return
			}
			if diff := cmp.Diff(before, m.row(t)); diff != "" {
				t.Errorf("bridge (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("marked", func(t *testing.T) {
		s, n := startNative(t)
		must1(t)(n.AddPort(t.Context(), ovs.Port{Name: "eth0", Type: "internal"}))
		must(t, n.DeleteBridge(t.Context(), bridge()))
		if left := s.VSCtl(t, "list-br"); left != "" {
			t.Errorf("got bridges %s, want none", left)
		}
		must(t, n.DeleteBridge(t.Context(), bridge()))
	})
}

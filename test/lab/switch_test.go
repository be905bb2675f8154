package lab

import (
	"os/exec"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/test/lab/machine"
)

// A node's address is on the interface that its datapath and kubelet can use.
func TestSwitchUnits(t *testing.T) {
	for _, test := range []struct {
		name     string
		from     Switch
		datapath Datapath
		units    []string
		first    string // owner of the address, when the underlay is up
	}{
		{"the host's, in userspace", HostSwitch, Netdev, []string{"ovsdb", "ovsdb-server", "ovs-init", "ovs-vswitchd", "underlay"}, underlayBridge},
		{"the host's, in the kernel", HostSwitch, System, []string{"ovsdb", "ovsdb-server", "ovs-init", "ovs-vswitchd", "underlay"}, uplink},
		{"a pod's, in userspace", ImageSwitch, Netdev, []string{"underlay", "underlay-bridge"}, uplink},
		{"a pod's, in the kernel", ImageSwitch, System, []string{"underlay"}, uplink},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := &Lab{name: "x", state: state{Shape: Shape{Switch: test.from, Datapath: test.datapath}}}
			units := l.switchUnits("node1", nodeAddr(1))
			var names []string
			for _, u := range units {
				names = append(names, u.Name)
			}
			if diff := cmp.Diff(test.units, names); diff != "" {
				t.Fatalf("units (-want +got):\n%s", diff)
			}
			underlay := units[slices.IndexFunc(units, func(u machine.Unit) bool { return u.Name == "underlay" })]
			if !slices.ContainsFunc(underlay.Commands, func(c []string) bool {
				return slices.Equal(c, []string{"ip", "address", "replace", "172.31.0.11/24", "dev", test.first})
			}) {
				t.Errorf("%s does not get the address by %q", test.first, underlay.Commands)
			}
		})
	}
}

func TestAndRetainsWords(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "sh", "-c", and([]string{"printf", "%s.", "a b", `it's "$x"`}, []string{"echo", "c; d"})).Output()
	if want := `a b.it's "$x".` + "c; d\n"; err != nil || string(out) != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}

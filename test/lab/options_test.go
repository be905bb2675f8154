package lab

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOptionsValidate(t *testing.T) {
	for _, test := range []struct {
		name    string
		change  func(*Options)
		wantErr string // part of it; empty for none
	}{
		{"defaults", func(*Options) {}, ""},
		{"name with upper case", func(o *Options) { o.Name = "Lab" }, "--name"},
		{"name with a slash", func(o *Options) { o.Name = "../x" }, "--name"},
		{"name too long", func(o *Options) { o.Name = "abcdefghijklm" }, "--name"},
		{"longest name", func(o *Options) { o.Name = "abcdefghijkl" }, ""},
		{"name ends in a dash", func(o *Options) { o.Name = "a-" }, "--name"},
		{"too many nodes", func(o *Options) { o.Nodes = maxNodes + 1 }, "--nodes"},
		{"negative nodes", func(o *Options) { o.Nodes = -1 }, "--nodes"},
		{"unknown mode", func(o *Options) { o.Mode = "flat" }, "want one of subnet, multitenant, networkpolicy"},
		{"unknown proxy", func(o *Options) { o.ServiceProxy = "none" }, "want one of external, ovs"},
		{"unknown way to install", func(o *Options) { o.Install = "helm" }, "--install"},
		{"unknown datapath", func(o *Options) { o.Datapath = "dpdk" }, "--datapath"},
		{"no port of a DNS server", func(o *Options) { o.DNSForward = "192.0.2.1" }, "--dns-forward"},
		{"name of a DNS server", func(o *Options) { o.DNSForward = "dns.example:53" }, "--dns-forward"},
		{"IPv6 of a DNS server", func(o *Options) { o.DNSForward = "[2001:db8::1]:53" }, "--dns-forward"},
		{"DNS server", func(o *Options) { o.DNSForward = "192.0.2.1:53" }, ""},
		{"unknown switch", func(o *Options) { o.Switch = "bridge" }, "--switch"},
		{"a switch from the image, without an installation", func(o *Options) { o.Switch, o.Install = ImageSwitch, Processes }, "--install must be"},
		{"a switch from the image", func(o *Options) { o.Switch, o.Install = ImageSwitch, None }, ""},
		{"cluster IPs without nodes", func(o *Options) { o.ClusterIPs, o.ControlPlaneOnly = true, true }, "--cluster-ips"},
		{"cluster IPs", func(o *Options) { o.ClusterIPs = true }, ""},
		{"IPv6", func(o *Options) { o.ClusterNetwork = netip.MustParsePrefix("fd00::/48") }, "--cluster-network"},
		{"host bits set", func(o *Options) { o.ClusterNetwork = netip.MustParsePrefix("10.128.0.1/14") }, "--cluster-network"},
		{"cluster and services overlap", func(o *Options) { o.ServiceNetwork = netip.MustParsePrefix("10.129.0.0/16") }, "overlaps"},
		{"cluster on the fabric", func(o *Options) { o.ClusterNetwork = netip.MustParsePrefix("172.31.0.0/16") }, "the lab's own network"},
		{"service network too large", func(o *Options) { o.ServiceNetwork = netip.MustParsePrefix("11.0.0.0/8") }, "--service-network"},
		{"no room for a second node", func(o *Options) { o.HostBits = 18 }, "--host-bits"},
		{"small nodes", func(o *Options) { o.ClusterNetwork, o.HostBits = netip.MustParsePrefix("10.1.0.0/16"), 6 }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var o Options
			o.setDefaults()
			test.change(&o)
			err := o.validate()
			switch {
			case test.wantErr == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.wantErr != "" && err == nil:
				t.Error("accepted")
			case test.wantErr != "" && !strings.Contains(err.Error(), test.wantErr):
				t.Errorf("error %q does not contain %q", err, test.wantErr)
			}
		})
	}
}

// All errors are reported at once, so that they can be corrected at once.
func TestOptionsValidateJoins(t *testing.T) {
	o := Options{Name: "X", Shape: Shape{Nodes: -1, Mode: "flat"}}
	o.setDefaults()
	err := o.validate()
	for _, want := range []string{"--name", "--nodes", "--mode"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not contain %s", err, want)
		}
	}
}

func TestValidateLanded(t *testing.T) {
	landed := []Mode{Subnet}
	if err := validateLanded("--mode", Subnet, landed, Subnet, Multitenant); err != nil {
		t.Errorf("landed: %v", err)
	}
	err := validateLanded("--mode", Multitenant, landed, Subnet, Multitenant)
	if err == nil || !strings.Contains(err.Error(), "not in this version yet; there is subnet") {
		t.Errorf("known but not landed: %v", err)
	}
	if err := validateLanded("--mode", "flat", landed, Subnet, Multitenant); err == nil {
		t.Error("unknown: accepted")
	}
}

func TestDifference(t *testing.T) {
	have, want := DefaultShape(), DefaultShape()
	if got, err := have.difference(want); err != nil || len(got) > 0 {
		t.Errorf("same shapes differ: %v, %v", got, err)
	}
	want.Nodes, want.HostBits = 3, 8
	got, err := have.difference(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"--host-bits is 9, not 8", "--nodes is 2, not 3"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStateRoundTrip(t *testing.T) {
	want := state{Shape: DefaultShape(), Nodes: []int{1, 3}, Port: 6443, BinDir: "/bin", Checkout: "/src"}
	want.Programs.Kube = "/cache/kube"
	content, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got state
	if err := json.Unmarshal(content, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNodes(t *testing.T) {
	l := &Lab{name: "x", state: state{Shape: DefaultShape(), Nodes: []int{1, 3}}}
	if diff := cmp.Diff([]string{ControlPlane, Outside, "node1", "node3"}, l.Machines()); diff != "" {
		t.Errorf("machines (-want +got):\n%s", diff)
	}
	addr, err := l.NodeAddr("node3")
	if want := netip.MustParseAddr("172.31.0.13"); err != nil || addr != want {
		t.Errorf("address of node3 = %v, %v, want %v", addr, err, want)
	}
	if _, err := l.NodeAddr("node2"); err == nil {
		t.Error("node2 has an address, though it is not there")
	}
	l.state.Shape.ControlPlaneOnly = true
	if diff := cmp.Diff([]string{ControlPlane}, l.Machines()); diff != "" {
		t.Errorf("machines (-want +got):\n%s", diff)
	}
}

// The last address that a node can get must not be the outside host's.
func TestAddressesDoNotCollide(t *testing.T) {
	if last := nodeAddr(maxNodes); !last.Less(outsideFabricAddr()) {
		t.Errorf("node %d has %v, the host outside %v", maxNodes, last, outsideFabricAddr())
	}
}

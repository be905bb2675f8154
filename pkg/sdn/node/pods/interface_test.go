package pods

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/safchain/ethtool"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

func prefixes(text string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range strings.Fields(text) {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func TestNew_withoutDependencies(t *testing.T) {
	if _, err := New(options(), Dependencies{}); err == nil || !strings.Contains(err.Error(), "dependency") {
		t.Errorf("New without dependencies: got %v", err)
	}
}

// Checksum offload is disabled for the userspace datapath only.
func TestAdd_checksumOffload(t *testing.T) {
	for datapath, want := range map[string]bool{ovs.DatapathSystem: true, ovs.DatapathNetdev: false} {
		n := newNode(t)
		n.options.Datapath = datapath
		a, _ := n.start(t)
		pod := newNetns(t)
		req := n.addPod("web", pod)
		add(t, a, req)
		if err := pod.Do(func(ns.NetNS) error {
			tool, err := ethtool.NewEthtool()
			if err != nil {
				return err
			}
			defer tool.Close()
			features, err := tool.Features("eth0")
			if got := features["tx-checksum-ip-generic"]; got != want {
				t.Errorf("datapath %s: got TX checksum offload %v, want %v", datapath, got, want)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		del(t, a, req)
	}
}

// A pod gets addresses and routes of both families, without delay by duplicate address detection.
func TestAdd_dualStack(t *testing.T) {
	n := newNode(t)
	n.options.Subnets = prefixes("10.128.2.0/23 fd00:1::/64")
	n.options.ClusterNetworks = prefixes("10.128.0.0/14 fd00::/16")
	a, _ := n.boot(t)
	a.flows = noFlows{} // the pipeline supports IPv4 only
	if err := a.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	req := n.addPod("web", newNetns(t))
	got := add(t, a, req)
	if len(got.IPs) != 2 || got.IPs[1].Address.String() != "fd00:1::2/64" {
		t.Errorf("got addresses %v, want two", got.IPs)
	}
	if err := a.Check(t.Context(), check(t, req, got)); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	del(t, a, req)
	n.wantClean(t)
}

package cni

import (
	"net"
	"slices"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/pods"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// addUplink adds an interface with the node's default route.
func addUplink(t *testing.T, host ns.NetNS) {
	t.Helper()
	if err := host.Do(func(ns.NetNS) error {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "uplink0"}}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}})
	}); err != nil {
		t.Fatal(err)
	}
}

// The runtime's cached result has the macvlan interface in every version of CNI, CHECK compares it, also after a restart of the agent, and DEL deletes it.
func TestMacvlan(t *testing.T) {
	r := newRig(t)
	addUplink(t, r.NS)
	before := r.state(t)
	for _, v := range versions() {
		t.Run(v, func(t *testing.T) {
			p := newPod(t, router)
			list, rt := r.list(t, v, nil), p.runtimeConf()
			if _, err := r.cni.AddNetworkList(t.Context(), list, rt); err != nil {
				t.Fatal(err)
			}
			cached, err := r.cni.GetNetworkListCachedResult(list, rt)
			if err != nil {
				t.Fatal(err)
			}
			result, err := current.NewResultFromResult(cached)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(result.Interfaces, func(i *current.Interface) bool {
				return i.Name == sandbox.MacvlanName && i.Sandbox == p.path() && i.Mac != ""
			}) {
				t.Errorf("got interfaces %v, want %s in the sandbox", result.Interfaces, sandbox.MacvlanName)
			}
			if has(v, "CHECK") {
				r.stop(t)
				r.start(t)
				if err := r.cni.CheckNetworkList(t.Context(), list, rt); err != nil {
					t.Errorf("CHECK: %v", err)
				}
				deleteMacvlan(t, p)
				if err := r.cni.CheckNetworkList(t.Context(), list, rt); code(t, err) != pods.ErrAttachmentChanged {
					t.Errorf("CHECK without %s: got %v, want code %d", sandbox.MacvlanName, err, pods.ErrAttachmentChanged)
				}
			}
			for range 2 {
				if err := r.cni.DelNetworkList(t.Context(), list, rt); err != nil {
					t.Errorf("DEL: %v", err)
				}
			}
			if left := devicesOf(t, p.netns); !slices.Equal(left, []string{"lo"}) {
				t.Errorf("got devices %v in the pod, want lo only", left)
			}
			r.wantState(t, before)
		})
	}
}

func deleteMacvlan(t *testing.T, p *pod) {
	t.Helper()
	if err := p.netns.Do(func(ns.NetNS) error {
		link, err := netlinksafe.LinkByName(sandbox.MacvlanName)
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}); err != nil {
		t.Error(err)
	}
}

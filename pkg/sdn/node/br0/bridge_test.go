package br0

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/zonelimits"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

// Each change of fail_mode deletes all flows while the connection continues; in fail mode standalone vswitchd forwards without flows.
func TestFlowsRestored_failModeChanged(t *testing.T) {
	tier.Parallel(t)
	h := newHost(t)
	hostSubnet := &config.HostSubnet{Node: "node1", Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.2.0/23")}}
	f := New(h.bridge, ovs.DatapathNetdev, &config.Network{VXLANPort: config.DefaultVXLANPort}, hostSubnet, hostnet.NewTun0(hostnet.Tun0Config{}), linkmtu.MTU{Link: 1450})
	must(t, f.Ensure(t.Context()))
	st := flowstore.New(h.bridge)
	flows := []*ovs.Flow{{Table: 0, Priority: 7, Cookie: 7, Actions: []ovs.Action{goovs.Drop()}}}
	owner := pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}
	written := st.Set(owner, pipeline.State{Flows: flows})
	reconciler := NewReconciler(f, nil, func(err error) { t.Error(err) }, func(message string) { t.Error(message) })
	reconciler.period = time.Hour // only events cause a repair

	ctx, stop := context.WithCancel(t.Context())
	var parts sync.WaitGroup
	t.Cleanup(func() { stop(); parts.Wait() })
	parts.Go(func() { _ = st.Run(ctx) })
	parts.Go(func() { reconciler.Run(ctx) })
	repair := NewFlowRepair(st)
	parts.Go(func() { repair.Run(ctx) })
	parts.Go(func() {
		h.bridge.Watch(ctx, OnEvent(st, reconciler, repair, zonelimits.New(h.bridge, pipeline.Node{}).Reset))
	})
	must(t, written.Wait(t.Context()))
	session, before := h.bridge.Session(), h.Dump(t)
	for range 3 {
		h.VSCtl(t, "del-fail-mode", Name)
		await.OK(t, 90*time.Second, func(context.Context) error {
			if mode := h.VSCtl(t, "get", "bridge", Name, "fail_mode"); mode != "secure\n" {
				return fmt.Errorf("fail_mode is %s", mode)
			}
			if after := h.Dump(t); fmt.Sprint(after) != fmt.Sprint(before) {
				return fmt.Errorf("flows are %q, were %q", after, before)
			}
			return nil
		})
	}
	if h.bridge.Session() != session {
		t.Errorf("got session %v, want the same session %v", h.bridge.Session(), session)
	}
	must(t, st.Delete(owner).Wait(t.Context())) // written after the repairs
	if found := st.Drift(); found.Changes() > 0 {
		t.Errorf("got drift %+v, want none", found)
	}
}

// Fixed ports, and the bridge, that are deleted while the agent runs are restored, and the Node reports it once.
func TestBridgeReconciler_deletedPorts(t *testing.T) {
	h := newHost(t)
	hostSubnet := &config.HostSubnet{Node: "node1", Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.2.0/23")}}
	f := New(h.bridge, ovs.DatapathNetdev, &config.Network{VXLANPort: config.DefaultVXLANPort}, hostSubnet, hostnet.NewTun0(hostnet.Tun0Config{}), linkmtu.MTU{Link: 1450})
	must(t, f.Ensure(t.Context()))
	var got []string
	reconciler := NewReconciler(f, nil, func(err error) { t.Error(err) }, func(message string) { got = append(got, message) })
	for _, tc := range []struct {
		command []string
		missing []string
		want    string
	}{
		{[]string{"del-port", vxlanName}, []string{vxlanName}, "ports vxlan0 of bridge br0"},
		{[]string{"del-port", hostnet.Tun0Name}, []string{hostnet.Tun0Name}, "ports tun0 of bridge br0"},
		{[]string{"del-br", Name}, []string{vxlanName, hostnet.Tun0Name}, "ports vxlan0 and tun0 of bridge br0"},
	} {
		got = nil
		h.VSCtl(t, tc.command...)
		await.OK(t, 90*time.Second, func(ctx context.Context) error { // ovs-vsctl returns before the agent's copy of the database has the change
			missing, err := f.missing(ctx)
			if err == nil && !slices.Equal(missing, tc.missing) {
				err = fmt.Errorf("got missing ports %q, want %q", missing, tc.missing)
			}
			return err
		})
		for range 2 {
			must(t, reconciler.reconcile(t.Context(), Name))
		}
		if len(got) != 1 || !strings.HasPrefix(got[0], tc.want) {
			t.Errorf("after %q: reported %q, want one that begins %q", tc.command, got, tc.want)
		}
	}
}

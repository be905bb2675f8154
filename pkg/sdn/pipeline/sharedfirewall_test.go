package pipeline

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/tier"
)

// TestTraceEgressFirewall_sharedVNID: of pods in different namespaces with one VNID, each is evaluated by the firewall of its own namespace, if that has one.
func TestTraceEgressFirewall_sharedVNID(t *testing.T) {
	tier.Parallel(t)
	const vnid = config.VNID(0x77)
	firewalls := map[int]EgressFirewall{ // by the port of the pod
		3: {ID: 1, Rules: []EgressFirewallRule{{To: prefixes("0.0.0.0/0"), Deny: true}}},
		4: {ID: 2, Rules: []EgressFirewallRule{{To: prefixes("198.51.100.0/24"), Deny: true}, {To: prefixes("0.0.0.0/0")}}},
		5: {},
	}
	sw, bridge := realSwitch(t)
	tracer := sw.NewTracer(t)
	for _, mode := range []config.Mode{config.ModeSubnet, config.ModeNetworkPolicy, config.ModeMultitenant} {
		n := inMode(mode)
		flows := static(t, n).Flows
		for port, f := range firewalls {
			addr := netip.AddrFrom4([4]byte{10, 128, 0, byte(port)})
			flows = append(flows, n.Pod(Pod{OFPort: port, MAC: config.MAC(addr), Addrs: []netip.Addr{addr}, VNID: vnid, EgressFirewall: f.ID}).Flows...)
			flows = append(flows, f.Compile(EgressVerdicts{}).State().Flows...)
		}
		replaceFlows(t, bridge, flows)
		for _, tc := range []struct {
			to   string
			want map[int]bool
		}{
			{"192.0.2.7", map[int]bool{3: false, 4: true, 5: true}},
			{"198.51.100.7", map[int]bool{3: false, 4: false, 5: true}},
		} {
			for port, want := range tc.want {
				traces, err := tracer.Trace(fmt.Sprintf("tcp,in_port=%d,dl_src=0a:58:0a:80:00:%02x,nw_src=10.128.0.%d,nw_dst=%s,tcp_dst=80", port, port, port, tc.to))
				if err != nil {
					t.Fatal(err)
				}
				if got := lastOutput(traces[0]) == "2"; got != want {
					t.Errorf("%s: pod %d to %s passes: got %t, want %t\n%s", mode, port, tc.to, got, want, traces[0])
				}
			}
			// A pod with the source of another one has neither its firewall nor its own.
			traces, err := tracer.Trace(fmt.Sprintf("tcp,in_port=3,dl_src=0a:58:0a:80:00:05,nw_src=10.128.0.5,nw_dst=%s,tcp_dst=80", tc.to))
			if err != nil {
				t.Fatal(err)
			}
			if got := lastOutput(traces[0]); got != "" {
				t.Errorf("%s: pod 3 with the source of pod 5 to %s: got output port %q, want none", mode, tc.to, got)
			}
		}
	}
}

// replaceFlows makes the flows those of the switch. Pods with one VNID share flows, of which the store installs one.
func replaceFlows(t *testing.T, bridge ovs.Interface, flows []*ovs.Flow) {
	t.Helper()
	installed := map[string]bool{}
	flows = slices.DeleteFunc(flows, func(f *ovs.Flow) bool {
		text, err := ovs.FlowText(f)
		if err != nil {
			t.Fatal(err)
		}
		shared := installed[text]
		installed[text] = true
		return shared
	})
	if _, err := bridge.Replace(t.Context(), withMeters(t, flows)); err != nil {
		t.Fatal(err)
	}
}

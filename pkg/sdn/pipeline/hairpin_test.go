package pipeline

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/tier"
)

// selfRule is a rule of a ClusterNetworkPolicy about packets of pod 10.128.0.5 to itself.
type selfRule struct {
	egress, admin bool
	action        PolicyAction
	byVNID        bool // the peer is the pod's namespace
}

// hairpinFlows are the flows of a node with the pod and the rules.
func hairpinFlows(t *testing.T, n Node, policies PodPolicies, rules []selfRule) []*ovs.Flow {
	t.Helper()
	addr := netip.MustParseAddr("10.128.0.5")
	p := Pod{OFPort: 3, MAC: config.MAC(addr), Addrs: []netip.Addr{addr}, VNID: 0x20, Policies: policies}
	p.Policies.Evaluated = true
	states := []State{static(t, n), n.Pod(p)}
	for i, r := range rules {
		id := uint32(i + 1) //nolint:gosec // few
		part := func(k uint8) []RulePart {
			level := uint16(100)
			if r.admin {
				level = 50000
			}
			return []RulePart{{Egress: r.egress, Level: level, Admin: r.admin, Shares: []RuleShare{{id, k, 2}}}}
		}
		peer := n.PolicyPeer(single(addr), part(2))
		if r.byVNID {
			peer = n.PolicyTenant(p.VNID, part(2))
		}
		states = append(states, n.PolicyTarget(p, part(1)), peer, n.PolicyOutcome(id, part(1)[0], r.action))
	}
	var flows []*ovs.Flow
	for _, s := range states {
		flows = append(flows, s.Flows...)
	}
	return flows
}

// TestTraceHairpin: a packet of a pod that the host's proxy sends back to the pod, with tun0's address as its source, is evaluated by
// ClusterNetworkPolicies as a packet of the pod to itself. NetworkPolicies allow it. The node's own packets are not evaluated.
func TestTraceHairpin(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := realSwitch(t)
	tracer := sw.NewTracer(t)
	isolated := PodPolicies{Ingress: true, Egress: true}
	in := func(admin bool, action PolicyAction) selfRule { return selfRule{admin: admin, action: action} }
	out := func(admin bool, action PolicyAction) selfRule {
		return selfRule{egress: true, admin: admin, action: action}
	}
	for _, tc := range []struct {
		name     string
		policies PodPolicies
		rules    []selfRule
		denied   bool
	}{
		{"no rules", PodPolicies{}, nil, false},
		{"NetworkPolicies isolate it", isolated, nil, false},
		{"Admin denies ingress", PodPolicies{}, []selfRule{in(true, PolicyDeny)}, true},
		{"Admin denies egress", PodPolicies{}, []selfRule{out(true, PolicyDeny)}, true},
		{"Admin denies ingress from its namespace", PodPolicies{}, []selfRule{{admin: true, action: PolicyDeny, byVNID: true}}, true},
		{"Admin denies, NetworkPolicies isolate it", isolated, []selfRule{in(true, PolicyDeny)}, true},
		{"Baseline denies ingress", PodPolicies{}, []selfRule{in(false, PolicyDeny)}, true},
		{"Baseline denies egress", PodPolicies{}, []selfRule{out(false, PolicyDeny)}, true},
		{"Baseline denies, NetworkPolicies isolate it", isolated, []selfRule{in(false, PolicyDeny), out(false, PolicyDeny)}, false},
		{"Baseline denies egress, NetworkPolicies isolate its ingress", PodPolicies{Ingress: true}, []selfRule{out(false, PolicyDeny)}, true},
		{"Admin accepts, Baseline denies", PodPolicies{}, []selfRule{in(true, PolicyAllow), in(false, PolicyDeny)}, false},
		{"Admin passes, Baseline denies", PodPolicies{}, []selfRule{in(true, PolicyPass), in(false, PolicyDeny)}, true},
		{"Admin passes, NetworkPolicies isolate it, Baseline denies", isolated, []selfRule{out(true, PolicyPass), out(false, PolicyDeny)}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, mode := range []config.Mode{config.ModeNetworkPolicy, config.ModeMultitenant} {
				if _, err := bridge.Replace(t.Context(), withMeters(t, hairpinFlows(t, inMode(mode), tc.policies, tc.rules))); err != nil {
					t.Fatal(err)
				}
				const packet = "in_port=2,tcp,nw_src=10.128.0.1,nw_dst=10.128.0.5,tcp_dst=8080"
				traces, err := tracer.Trace(packet+fmt.Sprintf(",nw_tos=%d", HairpinDSCP<<dscpShift), packet)
				if err != nil {
					t.Fatal(err)
				}
				want := "3"
				if tc.denied {
					want = ""
				}
				if got := lastOutput(traces[0]); got != want {
					t.Errorf("%s: packet of the pod to itself: got output port %q, want %q:\n%s", mode, got, want, traces[0])
				}
				if strings.Contains(traces[0], "set(ipv4(src") {
					t.Errorf("%s: got a packet with another source, want it unchanged:\n%s", mode, traces[0])
				}
				if got := lastOutput(traces[1]); got != "3" {
					t.Errorf("%s: packet of the node: got output port %q, want 3:\n%s", mode, got, traces[1])
				}
			}
		})
	}
}

// TestTraceHairpin_forged: the DSCP of hairpins opens nothing for other senders.
func TestTraceHairpin_forged(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := realSwitch(t)
	tracer := sw.NewTracer(t)
	for _, mode := range []config.Mode{config.ModeNetworkPolicy, config.ModeMultitenant} {
		n := inMode(mode)
		other := netip.MustParseAddr("10.128.0.6")
		flows := hairpinFlows(t, n, PodPolicies{Ingress: true}, nil)
		for _, s := range []State{
			n.Pod(Pod{OFPort: 4, MAC: config.MAC(other), Addrs: []netip.Addr{other}}),
			n.Peer(Peer{VTEP: netip.MustParseAddr("172.31.0.12"), Subnets: prefixes("10.129.0.0/23"), IsNode: true}),
		} {
			flows = append(flows, s.Flows...)
		}
		if _, err := bridge.Replace(t.Context(), withMeters(t, flows)); err != nil {
			t.Fatal(err)
		}
		for name, from := range map[string]string{
			"pod":                        "in_port=4,dl_src=0a:58:0a:80:00:06,nw_src=10.128.0.6",
			"pod with the node's source": "in_port=4,dl_src=0a:58:0a:80:00:06,nw_src=10.128.0.1",
			"pod through a service":      "in_port=2,nw_src=10.128.0.6",
			"node by its own IP":         "in_port=2,nw_src=172.31.0.11",
			"host outside":               "in_port=2,nw_src=192.0.2.7",
			"pod of another node":        "in_port=1,tun_src=172.31.0.12,nw_src=10.129.0.9",
			"another node":               "in_port=1,tun_src=172.31.0.12,nw_src=10.129.0.1",
			"another node as this one":   "in_port=1,tun_src=172.31.0.12,nw_src=10.128.0.1",
		} {
			traces, err := tracer.Trace(fmt.Sprintf("tcp,%s,nw_dst=10.128.0.5,tcp_dst=8080,nw_tos=%d", from, HairpinDSCP<<dscpShift))
			if err != nil {
				t.Fatal(err)
			}
			want := ""
			if name == "node by its own IP" { // it reaches its pods with any DSCP
				want = "3"
			}
			if got := lastOutput(traces[0]); got != want {
				t.Errorf("%s, %s: got output port %q, want %q:\n%s", mode, name, got, want, traces[0])
			}
		}
	}
}

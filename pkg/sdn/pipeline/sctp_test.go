package pipeline

import (
	"net/netip"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/tier"
)

// Where conntrack ignores the ports of SCTP, replies to allowed connections are evaluated like any packet. Replies of other protocols pass.
func TestTraceStatelessSCTP(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := realSwitch(t)
	for _, tc := range []struct {
		name, protocol string
		userspace      bool
		out, in        string // the ports to which replies of the pod and replies to the pod are output; "" if they are dropped
	}{
		{"TCP", "tcp", true, "1", "3"},
		{"SCTP on the kernel's datapath", "sctp", false, "1", "3"},
		{"SCTP on the userspace datapath", "sctp", true, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := inMode(config.ModeNetworkPolicy)
			n.Userspace = tc.userspace
			flows := static(t, n).Flows
			addr := netip.MustParseAddr("10.128.0.3")
			isolated := Pod{OFPort: 3, MAC: config.MAC(addr), Addrs: []netip.Addr{addr}, Policies: PodPolicies{Evaluated: true, Ingress: true, Egress: true}}
			flows = append(flows, n.Pod(isolated).Flows...)
			flows = append(flows, n.Peer(Peer{VTEP: netip.MustParseAddr("172.31.0.12"), Subnets: prefixes("10.129.0.0/23")}).Flows...)
			if _, err := bridge.Replace(t.Context(), withMeters(t, flows)); err != nil {
				t.Fatal(err)
			}
			fromPod := "in_port=3,dl_src=0a:58:0a:80:00:03," + tc.protocol + ",nw_src=10.128.0.3,nw_dst=10.129.0.9"
			if got := lastOutput(sw.Trace(t, fromPod, "--ct-next", "trk,est,rpl")); got != tc.out {
				t.Errorf("output port of a reply of the pod: got %q, want %q", got, tc.out)
			}
			toPod := "in_port=1,tun_src=172.31.0.12," + tc.protocol + ",nw_src=10.129.0.9,nw_dst=10.128.0.3"
			if got := lastOutput(sw.Trace(t, toPod, "--ct-next", "trk,est,rpl")); got != tc.in {
				t.Errorf("output port of a reply to the pod: got %q, want %q", got, tc.in)
			}
		})
	}
}

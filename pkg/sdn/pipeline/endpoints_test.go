package pipeline

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

func endpoints(addrs ...string) OutsideEndpoints {
	var out OutsideEndpoints
	for _, a := range addrs {
		out.Addrs = append(out.Addrs, netip.MustParseAddrPort(a))
	}
	return out
}

// outsideService has a port with two outside endpoints, one that is closed, and one without.
func outsideService() Service {
	return Service{
		VNID: 0xabcdef, ClusterIPs: []netip.Addr{netip.MustParseAddr("172.30.0.10")},
		Ports: []ServicePort{
			{Protocol: goovs.ProtocolTCPv4, Port: 443, Outside: endpoints("172.31.0.11:6443", "172.31.0.12:6443")},
			{Protocol: goovs.ProtocolTCPv4, Port: 80, Outside: OutsideEndpoints{Closed: true}},
			{Protocol: goovs.ProtocolUDPv4, Port: 53},
		},
	}
}

// endpointServices are services by the last byte of their addresses, with outside endpoints of port TCP 80.
func endpointServices() map[byte]OutsideEndpoints {
	many := OutsideEndpoints{}
	for i := range MaxOutsideEndpoints {
		many.Addrs = append(many.Addrs, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 80+uint16(i/256)))
	}
	manyNodes := OutsideEndpoints{}
	for i := range MaxOutsideEndpoints {
		manyNodes.Addrs = append(manyNodes.Addrs, netip.AddrPortFrom(netip.MustParseAddr("172.31.0.12"), 6000+uint16(i)))
	}
	tooMany := OutsideEndpoints{Addrs: append(many.Addrs[:MaxOutsideEndpoints:MaxOutsideEndpoints], netip.MustParseAddrPort("192.0.2.99:80"))}
	return map[byte]OutsideEndpoints{
		1:  endpoints("172.31.0.11:6443"),                  // the API server on this node
		2:  endpoints("192.0.2.7:8080"),                    // allowed
		3:  endpoints("192.0.2.7:8080", "198.51.100.9:80"), // one of the two is allowed
		4:  endpoints("192.0.2.7:8080", "192.0.2.8:8080"),  // both are
		5:  {},                                             // all are in the pod network
		6:  {Closed: true},                                 //
		7:  many,                                           //
		8:  tooMany,                                        //
		9:  endpoints("172.30.0.2:80"),                     // another service
		10: endpoints("10.128.0.1:9000"),                   // tun0
		11: endpoints("172.31.0.12:30048"),                 // a node port of VNID 0x30 there
		12: endpoints("172.31.0.12:30032"),                 // a node port of VNID 0x20 there
		13: endpoints("192.0.2.7:8080", "203.0.113.1:443"), // an Admin rule denies the second
		14: endpoints("172.31.0.12:31003"),                 // the node port of the third
		15: manyNodes,                                      // the longest way
	}
}

// endpointFlows are a node of the mode. Pods 3 and 4 have VNID 0x20, 5 and 6 VNID 0. Policies select 3 and 5: they may send to 192.0.2.0/24 and to
// TCP port 6443 of 172.31.0.11, and to more; 203.0.113.0/24 is denied by tier Admin.
func endpointFlows(t *testing.T, n Node, more ...string) []*ovs.Flow {
	t.Helper()
	addr := netip.MustParseAddr
	states := []State{static(t, n), n.Peer(Peer{VTEP: addr("172.31.0.12"), Subnets: prefixes("10.129.0.0/23"), IsNode: true}),
		n.NodeAddresses(false, []netip.Addr{addr("172.31.0.12"), addr("198.51.100.50"), addr("10.128.0.6"), addr("172.30.0.5"), addr("2001:db8::1"), addr("127.0.0.1")}),
		n.NodeAddresses(true, []netip.Addr{addr("198.51.100.60")})}
	for port, vnid := range map[int]config.VNID{3: 0x20, 4: 0x20, 5: 0, 6: 0} {
		a := addr(fmt.Sprintf("10.128.0.%d", port))
		p := Pod{OFPort: port, MAC: config.MAC(a), Addrs: []netip.Addr{a}, VNID: vnid, Policies: PodPolicies{Evaluated: port%2 == 1, Egress: port%2 == 1}}
		states = append(states, n.Pod(p))
		if !p.Policies.Evaluated {
			continue
		}
		states = append(states, n.PolicyTarget(p, []RulePart{
			{Egress: true, Level: PolicyIsolation + 1, Shares: []RuleShare{{1, 1, 2}, {2, 1, 3}}},
			{Egress: true, Level: 50000, Admin: true, Shares: []RuleShare{{3, 1, 2}}},
		}))
	}
	rule := func(id uint32, k, n uint8) []RulePart {
		return []RulePart{{Egress: true, Level: PolicyIsolation + 1, Shares: []RuleShare{{id, k, n}}}}
	}
	deny := RulePart{Egress: true, Level: 50000, Admin: true, Shares: []RuleShare{{3, 2, 2}}}
	states = append(states,
		n.PolicyPeer(netip.MustParsePrefix("192.0.2.0/24"), rule(1, 2, 2)), n.PolicyOutcome(1, rule(1, 1, 1)[0], PolicyAllow),
		n.PolicyPeer(netip.MustParsePrefix("172.31.0.11/32"), rule(2, 2, 3)), n.PolicyPort(goovs.ProtocolTCPv4, 6443, 0xffff, rule(2, 3, 3)),
		n.PolicyOutcome(2, rule(2, 1, 1)[0], PolicyAllow),
		n.PolicyPeer(netip.MustParsePrefix("203.0.113.0/24"), []RulePart{deny}), n.PolicyOutcome(3, deny, PolicyDeny))
	for _, block := range more {
		states = append(states, n.PolicyPeer(netip.MustParsePrefix(block), rule(1, 2, 2)))
	}
	for last, outside := range endpointServices() {
		states = append(states, n.Service(Service{
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 30, 0, last})}, VNID: 0x20,
			Ports:     []ServicePort{{Protocol: goovs.ProtocolTCPv4, Port: 80, Outside: outside}, {Protocol: goovs.ProtocolUDPv4, Port: 80}},
			NodePorts: []ServicePort{{Protocol: goovs.ProtocolTCPv4, Port: 31000 + uint16(last), Outside: outside}},
		}))
	}
	for _, vnid := range []config.VNID{0x20, 0x30} {
		states = append(states, n.Service(Service{VNID: vnid, NodePorts: []ServicePort{{Protocol: goovs.ProtocolTCPv4, Port: 30000 + uint16(vnid)}}}))
	}
	var flows []*ovs.Flow
	seen := map[ovs.Key]bool{}
	for _, s := range states {
		for _, f := range s.Flows {
			key, err := ovs.FlowKey(f)
			if err != nil {
				t.Fatal(err)
			}
			if !seen[key] {
				flows = append(flows, f)
			}
			seen[key] = true
		}
	}
	return flows
}

// TestTraceEndpoints: what a pod sends to a service reaches the host's proxy only if the pod may reach all endpoints outside of the pod network.
func TestTraceEndpoints(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := realSwitch(t)
	tracer := sw.NewTracer(t)
	// The pods that reach a service.
	reached := map[config.Mode][]string{
		config.ModeNetworkPolicy: {1: "3456", 2: "3456", 3: "46", 4: "3456", 5: "3456", 6: "46", 7: "3456", 8: "46", 9: "46", 10: "46", 11: "46", 12: "46", 13: "46", 14: "46", 15: "46"},
		config.ModeMultitenant:   {1: "3456", 2: "3456", 3: "46", 4: "3456", 5: "3456", 6: "6", 7: "3456", 8: "6", 9: "6", 10: "46", 11: "6", 12: "46", 13: "46", 14: "6", 15: "46"},
	}
	for mode, services := range reached {
		for _, userspace := range []bool{false, true} {
			n := inMode(mode)
			n.Userspace = userspace
			if _, err := bridge.Replace(t.Context(), withMeters(t, endpointFlows(t, n))); err != nil {
				t.Fatal(err)
			}
			for i, want := range services[1:] {
				service := i + 1
				if got := reachedBy(t, tracer, service); got != want {
					t.Errorf("%s, userspace %v, service %d: reached by pods %q, want %q", mode, userspace, service, got, want)
				}
			}
		}
	}
}

// reachedBy returns the pods whose packets to TCP port 80 of a service are sent to the host's proxy, as the pods have sent them. All must reach UDP
// port 80, which has no outside endpoints.
func reachedBy(t *testing.T, tracer *ovstest.Tracer, service int) (pods string) {
	t.Helper()
	for pod := 3; pod <= 6; pod++ {
		from := fmt.Sprintf(",in_port=%d,dl_src=0a:58:0a:80:00:%02x,nw_src=10.128.0.%d,nw_dst=172.30.0.%d,", pod, pod, pod, service)
		traces, err := tracer.Trace("tcp"+from+"tcp_dst=80", "udp"+from+"udp_dst=80")
		if err != nil {
			t.Fatal(err)
		}
		switch lastOutput(traces[0]) {
		case "":
		case "2":
			pods += strconv.Itoa(pod)
		default:
			t.Errorf("output port: got %q, want 2 or none:\n%s", lastOutput(traces[0]), traces[0])
		}
		if strings.Contains(traces[0], "set(ipv4(dst") || strings.Contains(traces[0], "set(tcp(") {
			t.Errorf("got a packet with another destination, want it unchanged:\n%s", traces[0])
		}
		if lastOutput(traces[1]) != "2" {
			t.Errorf("service %d, pod %d, port without outside endpoints: got output port %q, want 2:\n%s", service, pod, lastOutput(traces[1]), traces[1])
		}
	}
	return pods
}

// TestTraceEndpoints_fragments: conntrack reassembles fragments of a pod with policies before they are evaluated. The userspace datapath passes them
// on unchanged; they have no ports.
func TestTraceEndpoints_fragments(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := realSwitch(t)
	for _, userspace := range []bool{false, true} {
		n := inMode(config.ModeNetworkPolicy)
		n.Userspace = userspace
		if _, err := bridge.Replace(t.Context(), withMeters(t, endpointFlows(t, n))); err != nil {
			t.Fatal(err)
		}
		for service, want := range map[int]map[bool]string{2: {false: "", true: "2"}, 3: {false: "", true: ""}, 5: {false: "2", true: "2"}, 6: {false: "", true: ""}} {
			for _, fragment := range []string{"first", "later"} {
				trace := sw.Trace(t, fmt.Sprintf("in_port=3,dl_src=0a:58:0a:80:00:03,udp,nw_src=10.128.0.3,nw_dst=172.30.0.%d,nw_frag=%s", service, fragment), "--ct-next", "trk,new")
				if got := lastOutput(trace); got != want[userspace] {
					t.Errorf("userspace %v, service %d: %s fragment is sent to port %q, want %q\n%s", userspace, service, fragment, got, want[userspace], trace)
				}
			}
		}
	}
}

// TestTraceFrontends: a service's node ports on any address of a node are evaluated by the outside endpoints, too.
func TestTraceFrontends(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := realSwitch(t)
	tracer := sw.NewTracer(t)
	others := []string{"172.31.0.8/30", "172.31.0.12/32", "10.128.0.1/32", "10.129.0.1/32", "198.51.100.50/32", "198.51.100.60/32"}
	ways := map[string]string{"198.51.100.50": "2", "198.51.100.60": "2", "172.31.0.11": "2", "172.31.0.12": "2", "10.128.0.1": "2", "10.129.0.1": "1"}
	// The pods that reach a service.
	reached := map[config.Mode][]string{
		config.ModeNetworkPolicy: {1: "3456", 2: "3456", 3: "46", 4: "3456", 5: "3456", 6: "46", 7: "3456", 8: "46", 9: "46", 10: "3456", 11: "3456", 12: "3456", 13: "46", 14: "46", 15: "3456"},
		config.ModeMultitenant:   {1: "3456", 2: "3456", 3: "46", 4: "3456", 5: "3456", 6: "6", 7: "3456", 8: "6", 9: "6", 10: "3456", 11: "56", 12: "3456", 13: "46", 14: "6", 15: "3456"},
	}
	for mode, services := range reached {
		if _, err := bridge.Replace(t.Context(), withMeters(t, endpointFlows(t, inMode(mode), others...))); err != nil {
			t.Fatal(err)
		}
		for i, want := range services[1:] {
			for addr, port := range ways {
				to := fmt.Sprintf("nw_dst=%s,tcp_dst=%d", addr, 31000+i+1)
				var got string
				for pod := 3; pod <= 6; pod++ {
					traces, err := tracer.Trace(fmt.Sprintf("tcp,in_port=%d,dl_src=0a:58:0a:80:00:%02x,nw_src=10.128.0.%d,%s", pod, pod, pod, to))
					if err != nil {
						t.Fatal(err)
					}
					switch lastOutput(traces[0]) {
					case "":
					case port:
						got += strconv.Itoa(pod)
					default:
						t.Errorf("output port: got %q, want %s or none:\n%s", lastOutput(traces[0]), port, traces[0])
					}
				}
				if got != want {
					t.Errorf("%s, %s: reached by pods %q, want %q", mode, to, got, want)
				}
			}
		}
	}
	// In mode multitenant this node evaluates the VNID of a node port on all addresses of other nodes. A packet to its own addresses returns through tun0.
	if _, err := bridge.Replace(t.Context(), ovs.State{Flows: endpointFlows(t, inMode(config.ModeMultitenant), others...)}); err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]string{"172.31.0.12": "", "198.51.100.50": "", "198.51.100.60": "2"} {
		traces, err := tracer.Trace(fmt.Sprintf("tcp,in_port=4,dl_src=0a:58:0a:80:00:04,nw_src=10.128.0.4,nw_dst=%s,tcp_dst=30048", addr))
		if err != nil {
			t.Fatal(err)
		}
		if got := lastOutput(traces[0]); got != want {
			t.Errorf("a node port of another VNID at %s: sent to port %q, want %q:\n%s", addr, got, want, traces[0])
		}
	}
	// Other ports of nodes are none of a service.
	traces, err := tracer.Trace("tcp,in_port=3,dl_src=0a:58:0a:80:00:03,nw_src=10.128.0.3,nw_dst=172.31.0.12,tcp_dst=10250")
	if err != nil {
		t.Fatal(err)
	}
	if got := lastOutput(traces[0]); got != "2" {
		t.Errorf("a packet to kubelet is sent to port %q, want 2:\n%s", got, traces[0])
	}
}

package pipeline

import (
	"flag"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

var update = flag.Bool("update", false, "write testdata/*.flows") //nolint:gochecknoglobals // a test binary parses its flags before any test runs

// goldenStates are states of all kinds of owners in all modes, by the names of their golden files.
func goldenStates(t *testing.T) map[string]State {
	all := map[string]State{}
	for _, some := range []map[string]State{goldenNodes(t), goldenPods(), goldenPeers(), goldenServices(), goldenBalance(t), goldenMulticast(), goldenPolicies(), goldenFirewalls(), goldenEgressIPs(), goldenFlowExport(t)} {
		maps.Copy(all, some)
	}
	return all
}

// userspaceNode is a node with the userspace datapath.
func userspaceNode() Node {
	n := inMode(config.ModeNetworkPolicy)
	n.Userspace = true
	return n
}

func goldenNodes(t *testing.T) map[string]State {
	grown := subnetNode()
	grown.ClusterNetworks = prefixes("10.128.0.0/14", "10.200.0.0/16")
	grown.Subnets = prefixes("10.128.0.0/23", "10.200.1.0/24")
	grown.VXLANPort = 8472
	grownTenants := grown
	grownTenants.Mode = config.ModeMultitenant
	return map[string]State{
		"node-subnet":                   static(t, subnetNode()),
		"node-two-networks":             static(t, grown),
		"node-networkpolicy":            static(t, inMode(config.ModeNetworkPolicy)),
		"node-networkpolicy-userspace":  static(t, userspaceNode()),
		"node-multitenant":              static(t, inMode(config.ModeMultitenant)),
		"node-multitenant-two-networks": static(t, grownTenants),
		"node-addresses":                inMode(config.ModeNetworkPolicy).NodeAddresses(true, []netip.Addr{netip.MustParseAddr("198.51.100.60")}),
		"node-addresses-multitenant":    inMode(config.ModeMultitenant).NodeAddresses(false, []netip.Addr{netip.MustParseAddr("198.51.100.50")}),
	}
}

func goldenPods() map[string]State {
	pod := func(vnid config.VNID, policies PodPolicies) Pod {
		addr := netip.MustParseAddr("10.128.0.5")
		return Pod{OFPort: 3, MAC: net.HardwareAddr{0x0a, 0x58, 10, 128, 0, 5}, Addrs: []netip.Addr{addr}, VNID: vnid, Policies: policies}
	}
	tenants, evaluating := inMode(config.ModeMultitenant), inMode(config.ModeNetworkPolicy)
	return map[string]State{
		"pod":                    subnetNode().Pod(pod(0, PodPolicies{})),
		"pod-vnid":               subnetNode().Pod(pod(0xabcdef, PodPolicies{})),
		"pod-multitenant":        tenants.Pod(pod(0xabcdef, PodPolicies{})),
		"pod-multitenant-global": tenants.Pod(pod(0, PodPolicies{})),
		"pod-evaluated":          evaluating.Pod(pod(0, PodPolicies{Evaluated: true})),
		"pod-isolated":           evaluating.Pod(pod(0, PodPolicies{Evaluated: true, Ingress: true, Egress: true})),
		"pod-logged":             evaluating.Pod(pod(0, PodPolicies{Evaluated: true, Ingress: true, Logged: true})),
		"pod-limited":            evaluating.Pod(limited(pod(0, PodPolicies{}))),
		"previous-zones":         evaluating.PreviousZones(),
	}
}

// limited returns the pod with limits of its bandwidth.
func limited(p Pod) Pod {
	p.Bandwidth = config.Bandwidth{Egress: 10e6, Ingress: 20e6}
	return p
}

func goldenPeers() map[string]State {
	tenants, evaluating := inMode(config.ModeMultitenant), inMode(config.ModeNetworkPolicy)
	vtep := netip.MustParseAddr("172.31.0.12")
	machine := func(vnid *config.VNID) Peer {
		return Peer{VTEP: netip.MustParseAddr("172.31.0.99"), Subnets: prefixes("10.131.0.0/23"), FixedVNID: vnid}
	}
	global, tenant := config.GlobalVNID, config.VNID(0xabcdef)
	return map[string]State{
		"hostsubnet":                     subnetNode().Peer(Peer{VTEP: vtep, Subnets: prefixes("10.129.0.0/23")}),
		"hostsubnet-node":                evaluating.Peer(Peer{VTEP: vtep, Subnets: prefixes("10.129.0.0/23"), IsNode: true}),
		"hostsubnet-node-two-subnets":    evaluating.Peer(Peer{VTEP: vtep, Subnets: prefixes("10.129.0.0/23", "10.200.2.0/24"), IsNode: true}),
		"hostsubnet-fixed":               evaluating.Peer(machine(&tenant)),
		"hostsubnet-multitenant":         tenants.Peer(machine(nil)),
		"hostsubnet-multitenant-fixed":   tenants.Peer(machine(&tenant)),
		"hostsubnet-multitenant-fixed-0": tenants.Peer(machine(&global)),
	}
}

func goldenServices() map[string]State {
	clusterIPs := []netip.Addr{netip.MustParseAddr("172.30.0.10")}
	http := Service{
		ClusterIPs: clusterIPs,
		Ports:      []ServicePort{{Protocol: goovs.ProtocolTCPv4, Port: 80}, {Protocol: goovs.ProtocolUDPv4, Port: 80}},
		NodePorts:  []ServicePort{{Protocol: goovs.ProtocolTCPv4, Port: 30080}},
	}
	tenantsHTTP := http
	tenantsHTTP.VNID = 0xabcdef
	dns := Service{ClusterIPs: clusterIPs, Ports: []ServicePort{
		{Protocol: goovs.ProtocolTCPv4, Port: 53}, {Protocol: goovs.ProtocolUDPv4, Port: 53}, {Protocol: ProtocolSCTP, Port: 9},
	}}
	frontends := Service{VNID: 0xabcdef, NodePorts: []ServicePort{
		{Protocol: goovs.ProtocolTCPv4, Port: 30443, Outside: endpoints("192.0.2.7:8443")},
		{Protocol: goovs.ProtocolTCPv4, Port: 30080, Outside: OutsideEndpoints{Closed: true}},
	}}
	tenants, evaluating := inMode(config.ModeMultitenant), inMode(config.ModeNetworkPolicy)
	return map[string]State{
		"service":                       subnetNode().Service(dns),
		"service-multitenant":           tenants.Service(tenantsHTTP),
		"service-multitenant-global":    tenants.Service(http),
		"service-endpoints":             evaluating.Service(outsideService()),
		"service-endpoints-userspace":   userspaceNode().Service(outsideService()),
		"service-endpoints-multitenant": tenants.Service(outsideService()),
		"service-frontends":             evaluating.Service(frontends),
	}
}

// balancing returns the node with its own services.
func balancing(n Node) Node {
	n.BalancesServices = true
	return n
}

// atPrimary returns the node with node ports at its own IP only.
func atPrimary(n Node) Node {
	n.NodePortAddresses = []netip.Prefix{single(n.VTEP)}
	return n
}

// balancedService returns a service with frontends of all kinds.
func balancedService() BalancedService {
	addr := netip.MustParseAddr("172.30.0.10")
	on := func(protocol goovs.Protocol, port uint16, endpoints ...string) Frontend {
		f := Frontend{Addr: addr, Protocol: protocol, Port: port}
		for _, e := range endpoints {
			f.Endpoints = append(f.Endpoints, netip.MustParseAddrPort(e))
		}
		return f
	}
	sticky := on(goovs.ProtocolTCPv4, 443, "10.128.0.5:8443", "10.129.0.7:8443")
	sticky.Affinity = 10800
	closed := on(goovs.ProtocolTCPv4, 8080)
	closed.Closed = true
	stickySCTP, stickyUDP := on(ProtocolSCTP, 9, "10.128.0.5:9"), on(goovs.ProtocolUDPv4, 9, "10.128.0.5:9")
	stickySCTP.Affinity, stickyUDP.Affinity = 60, 60
	return BalancedService{VNID: 0xabcdef, Frontends: []Frontend{
		on(goovs.ProtocolTCPv4, 80, "10.128.0.5:8080", "10.129.0.7:8080", "192.0.2.7:80"), sticky, closed, on(goovs.ProtocolUDPv4, 53), stickySCTP, stickyUDP,
	}}
}

// externalService returns a service with frontends outside of the service network: an address of its owner's choice, one of a load balancer with limited clients, and a
// node port.
func externalService() BalancedService {
	endpoint := netip.MustParseAddr("10.128.0.5")
	on := func(addr netip.Addr, port uint16) Frontend { // each with an endpoint port of its own, since a switch takes each flow once
		return Frontend{Kind: NodePort, Addr: addr, Protocol: goovs.ProtocolTCPv4, Port: port, Endpoints: []netip.AddrPort{netip.AddrPortFrom(endpoint, port+1)}}
	}
	chosen, limited, node := on(netip.MustParseAddr("198.51.100.10"), 443), on(netip.MustParseAddr("198.51.100.20"), 8443), on(netip.Addr{}, 30080)
	chosen.Kind, limited.Kind = ExternalIP, LoadBalancer
	limited.Sources = []netip.Prefix{netip.MustParsePrefix("10.128.0.0/25"), netip.MustParsePrefix("203.0.113.0/24")}
	node.Affinity = 60
	closed := on(netip.Addr{}, 30443)
	closed.Endpoints, closed.Closed = nil, true
	outside := on(netip.MustParseAddr("172.30.0.10"), 443)
	outside.Kind, outside.Affinity, outside.Endpoints = FromOutside, 60, []netip.AddrPort{netip.MustParseAddrPort("10.128.0.6:8080")}
	return BalancedService{VNID: 0xabcdef, Frontends: []Frontend{chosen, limited, node, closed, outside}}
}

// idledService returns a service without endpoints whose packets the agent gets, except those to a closed port.
func idledService() BalancedService {
	var svc BalancedService
	addr := netip.MustParseAddr("172.30.0.10")
	for protocol, port := range map[goovs.Protocol]uint16{goovs.ProtocolTCPv4: 80, goovs.ProtocolUDPv4: 53} {
		external := netip.AddrFrom4([4]byte{198, 51, 100, byte(port)}) // each its own, since a switch takes each flow once
		for _, f := range []Frontend{
			{Kind: ClusterIP, Addr: addr, Port: port}, {Kind: FromOutside, Addr: addr, Port: port}, {Kind: NodePort, Port: 30000 + port},
			{Kind: ExternalIP, Addr: external, Port: port},
		} {
			f.Protocol, f.Idled = protocol, true
			svc.Frontends = append(svc.Frontends, f)
		}
	}
	slices.SortStableFunc(svc.Frontends, func(a, b Frontend) int { return strings.Compare(string(a.Protocol), string(b.Protocol)) })
	closed := Frontend{Kind: ClusterIP, Addr: addr, Protocol: goovs.ProtocolTCPv4, Port: 8080, Idled: true, Closed: true}
	svc.VNID, svc.Frontends = 0xabcdef, append(svc.Frontends, closed)
	return svc
}

func goldenBalance(t *testing.T) map[string]State {
	tenants, evaluating := balancing(inMode(config.ModeMultitenant)), balancing(inMode(config.ModeNetworkPolicy))
	holding := evaluating
	holding.HoldsIdled = true
	addr := netip.MustParseAddr("10.128.0.5")
	pod := Pod{OFPort: 3, MAC: net.HardwareAddr{0x0a, 0x58, 10, 128, 0, 5}, Addrs: []netip.Addr{addr}, VNID: 0xabcdef, Policies: PodPolicies{Evaluated: true}}
	return map[string]State{
		"balance-node-subnet":         static(t, balancing(subnetNode())),
		"balance-node-networkpolicy":  static(t, evaluating),
		"balance-node-multitenant":    static(t, tenants),
		"balance-node-primary":        static(t, atPrimary(balancing(subnetNode()))),
		"balance-pod":                 balancing(subnetNode()).Pod(pod),
		"balance-pod-limited":         balancing(subnetNode()).Pod(limited(pod)),
		"balance-pod-multitenant":     tenants.Pod(pod),
		"balance-service":             evaluating.BalancedService(balancedService()),
		"balance-service-multitenant": tenants.BalancedService(balancedService()),
		"balance-service-userspace":   balancing(userspaceNode()).BalancedService(balancedService()),

		"balance-idled":             holding.BalancedService(idledService()),
		"balance-idled-node":        static(t, holding),
		"balance-idled-pod":         holding.Pod(pod),
		"balance-idled-multitenant": tenants.BalancedService(idledService()),

		"balance-external":             evaluating.BalancedService(externalService()),
		"balance-external-multitenant": tenants.BalancedService(externalService()),
	}
}

func goldenMulticast() map[string]State {
	tenants := inMode(config.ModeMultitenant)
	first, second := netip.MustParseAddr("172.31.0.12"), netip.MustParseAddr("172.31.0.13")
	return map[string]State{
		"multicast":                    subnetNode().MulticastNodes([]netip.Addr{first, second}),
		"multicast-vnid":               tenants.Multicast(Multicast{VNID: 0xabcdef, OFPorts: []int{3, 7}, Nodes: []netip.Addr{first}}),
		"multicast-vnid-here-only":     tenants.Multicast(Multicast{VNID: 0xabcdef, OFPorts: []int{3}}),
		"multicast-vnid-nodes-unknown": tenants.Multicast(Multicast{VNID: 0xabcdef, OFPorts: []int{3}, AllNodes: true}),
	}
}

func goldenPolicies() map[string]State {
	evaluating, userspace := inMode(config.ModeNetworkPolicy), userspaceNode()
	both := []RulePart{
		{Level: 25026, Shares: []RuleShare{{ID: 0xdeadbeef, K: 1, N: 2}, {ID: 7, K: 3, N: 3}}},
		{Egress: true, Level: 50051, Admin: true, Shares: []RuleShare{{ID: 9, K: 2, N: 2}}},
	}
	var outcomes State
	for i, part := range both {
		for _, action := range []PolicyAction{PolicyAllow, PolicyDeny, PolicyPass} {
			outcomes.Flows = append(outcomes.Flows, evaluating.PolicyOutcome(uint32(10*i)+uint32(action), part, action).Flows...) //nolint:gosec // small
		}
	}
	return map[string]State{
		"policy-target":         evaluating.PolicyTarget(Pod{OFPort: 3, Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")}}, both),
		"policy-peer":           evaluating.PolicyPeer(netip.MustParsePrefix("10.129.0.0/23"), both),
		"policy-nodes":          evaluating.PolicyNodes(both),
		"policy-node-block":     evaluating.PolicyNodeBlock(netip.MustParsePrefix("172.31.0.0/20"), both),
		"policy-node-address":   evaluating.PolicyNodeBlock(netip.MustParsePrefix("172.31.0.12/32"), both),
		"policy-tenant":         evaluating.PolicyTenant(0xabcdef, both[:1]),
		"policy-port":           evaluating.PolicyPort(goovs.ProtocolTCPv4, 80, 0xffff, both),
		"policy-port-userspace": userspace.PolicyPort(goovs.ProtocolTCPv4, 80, 0xffff, both),
		"policy-all-userspace":  userspace.PolicyPort(goovs.ProtocolUDPv4, 0, 0, both),
		"policy-ports":          evaluating.PolicyPort(ProtocolSCTP, 8080, 0xfff0, both),
		"policy-all":            evaluating.PolicyPort(goovs.ProtocolUDPv4, 0, 0, both),
		"policy-anything":       evaluating.PolicyAnything(both),
		"policy-outcome":        outcomes,
	}
}

// goldenFirewall is an egress firewall whose rules overlap.
func goldenFirewall() EgressFirewall {
	return EgressFirewall{ID: 7, Rules: []EgressFirewallRule{
		{To: prefixes("198.51.100.7/32"), Deny: true},
		{To: prefixes("192.0.2.0/24", "198.51.100.0/24")},
		{To: prefixes("192.0.2.128/25"), Deny: true}, // has no effect
		{To: prefixes("0.0.0.0/0"), Deny: true},
	}}
}

func goldenFirewalls() map[string]State {
	pod := Pod{OFPort: 3, MAC: net.HardwareAddr{0x0a, 0x58, 10, 128, 0, 5}, Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")}, VNID: 0xabcdef, EgressFirewall: 7}
	global := pod
	global.VNID = config.GlobalVNID
	return map[string]State{
		"egress-firewall":          goldenFirewall().Compile(EgressVerdicts{}).State(),
		"pod-firewall":             inMode(config.ModeNetworkPolicy).Pod(pod),
		"pod-firewall-global":      inMode(config.ModeNetworkPolicy).Pod(global),
		"pod-firewall-multitenant": inMode(config.ModeMultitenant).Pod(pod),
		"pod-firewall-subnet":      subnetNode().Pod(global),
		"balance-pod-firewall":     balancing(inMode(config.ModeNetworkPolicy)).Pod(pod),
	}
}

func goldenEgressIPs() map[string]State {
	tenants, evaluating := inMode(config.ModeMultitenant), inMode(config.ModeNetworkPolicy)
	egressIP := netip.MustParseAddr("198.51.100.7")
	pod := Pod{OFPort: 3, MAC: net.HardwareAddr{0x0a, 0x58, 10, 128, 0, 5}, Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")}, VNID: 0xabcdef, EgressIP: egressIP}
	global := pod
	global.VNID, global.EgressFirewall = config.GlobalVNID, 7
	return map[string]State{
		"egress-ip":              evaluating.EgressIP(EgressIP{IP: egressIP}),
		"egress-ip-remote":       evaluating.EgressIP(EgressIP{IP: egressIP, VTEP: netip.MustParseAddr("172.31.0.12")}),
		"pod-egress-ip":          evaluating.Pod(pod),
		"pod-egress-ip-global":   tenants.Pod(global),
		"pod-egress-ip-subnet":   subnetNode().Pod(pod),
		"balance-pod-egress-ip":  balancing(tenants).Pod(pod),
		"hostsubnet-tenant-node": tenants.Peer(Peer{VTEP: netip.MustParseAddr("172.31.0.12"), Subnets: prefixes("10.129.0.0/23"), IsNode: true}),
	}
}

// exporting returns the node with samples of one in 400 packets.
func exporting(n Node) Node {
	n.FlowExport = FlowExport{Probability: 163, Domain: 172<<24 | 31<<16 | 11}
	return n
}

func goldenFlowExport(t *testing.T) map[string]State {
	evaluating := exporting(inMode(config.ModeNetworkPolicy))
	var outcomes State
	for _, part := range []RulePart{{Level: 25026}, {Egress: true, Level: 50051, Admin: true}} {
		for _, action := range []PolicyAction{PolicyAllow, PolicyDeny, PolicyPass} {
			outcomes.Flows = append(outcomes.Flows, evaluating.PolicyOutcome(435269352+uint32(action), part, action).Flows...)
		}
	}
	firewall := goldenFirewall()
	firewall.Export = evaluating.FlowExport
	return map[string]State{
		"export-node-networkpolicy": static(t, evaluating),
		"export-node-multitenant":   static(t, exporting(inMode(config.ModeMultitenant))),
		"export-policy-outcome":     outcomes,
		"export-egress-firewall":    firewall.Compile(EgressVerdicts{}).State(),
	}
}

func lines(t *testing.T, s State) string {
	t.Helper()
	var b strings.Builder
	for _, m := range s.Meters {
		text, err := ovs.MeterText(m)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString("# " + text + "\n")
	}
	for _, g := range s.Groups {
		text, err := ovs.GroupText(ovs.Group{ID: 1, Buckets: g.Buckets})
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString("# group=" + g.Name + strings.TrimPrefix(text, "group_id=1") + "\n")
	}
	for _, f := range s.Flows {
		text, err := ovs.FlowText(f)
		if err != nil {
			t.Fatalf("%#v: %v", f, err)
		}
		b.WriteString(text + "\n")
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	for name, state := range goldenStates(t) {
		t.Run(name, func(t *testing.T) {
			got := lines(t, state)
			file := filepath.Join("testdata", name+".flows")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("The flows changed (-want +got):\n%s\n"+
					"If the change is intended: run `go test ./pkg/sdn/pipeline -update`, review the difference of the files, and commit it. "+
					"The version note changes with the flows; running nodes install the difference without packet loss.", diff)
			}
		})
	}
}

func TestGoldenComplete(t *testing.T) {
	states := goldenStates(t)
	files, err := filepath.Glob("testdata/*.flows")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), ".flows"); len(states[name].Flows) == 0 {
			t.Errorf("no state for %s: delete the file, or add the state to goldenStates", file)
		}
	}
}

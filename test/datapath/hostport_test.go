package datapath_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	sdn "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/tier"
)

// The VNIDs of the pods, and the host port of the first one.
const (
	hostPortVNID  = 0x20
	otherVNID     = 0x21
	hostPort      = 8053
	hostPortOfPod = 53
)

// hostPorts is a pod with a host port of the first node, with the agent's firewall and rules like those of portmap.
type hostPorts struct {
	*product
	server, same, other, remote *datapath.Pod
}

func newHostPorts(t *testing.T) *hostPorts {
	t.Helper()
	h := &hostPorts{product: &product{Network: datapath.New(t, 2)}}
	node := h.Nodes[0]
	h.server, h.same, h.other, h.remote = node.AddPod(t), node.AddPod(t), node.AddPod(t), h.Nodes[1].AddPod(t)
	h.hostPorts = func() []hostnet.HostPort {
		return []hostnet.HostPort{{Addr: h.server.Addr, Protocol: "udp", HostPort: hostPort, Port: hostPortOfPod}, {Addr: h.server.Addr, Protocol: "tcp", HostPort: hostPort, Port: hostPortOfPod}}
	}
	to := fmt.Sprintf("dport %d dnat to %s:%d", hostPort, h.server.Addr, hostPortOfPod)
	node.Sh(t, "nft add table ip cni_hostport", "nft add chain ip cni_hostport hostports",
		"nft add chain ip cni_hostport prerouting '{ type nat hook prerouting priority dstnat; }'", "nft add rule ip cni_hostport prerouting fib daddr type local jump hostports",
		"nft add chain ip cni_hostport output '{ type nat hook output priority -100; }'", "nft add rule ip cni_hostport output fib daddr type local jump hostports",
		"nft add chain ip cni_hostport masquerading '{ type nat hook postrouting priority srcnat; }'",
		"nft add rule ip cni_hostport hostports udp "+to, "nft add rule ip cni_hostport hostports tcp "+to,
		fmt.Sprintf("nft add rule ip cni_hostport masquerading ip saddr %s ip daddr %s masquerade", h.server.Addr, h.server.Addr))
	return h
}

// apply installs the flows and the firewall of a mode. allowed is the source that a policy of the server allows; the zero value: the server has no policies.
func (h *hostPorts) apply(t *testing.T, mode config.Mode, allowed netip.Addr) {
	t.Helper()
	h.mode = mode
	for _, node := range h.Nodes {
		n := h.compiler(node)
		var states []sdn.State
		var rules []string
		for _, pod := range node.Pods {
			compiled := sdn.Pod{OFPort: pod.OFPort, MAC: pod.MAC, Addrs: []netip.Addr{pod.Addr}, VNID: hostPortVNID}
			if pod == h.other || pod == h.remote {
				compiled.VNID = otherVNID
			}
			if pod == h.server && allowed.IsValid() {
				compiled.Policies = sdn.PodPolicies{Evaluated: true, Ingress: true}
				rules = append(rules, fmt.Sprintf("table=81,priority=26026,ip,reg2=%d,nw_src=%s,actions=goto_table:82", pod.OFPort, allowed))
			}
			states = append(states, n.Pod(compiled))
		}
		h.install(t, node, states, rules)
		h.protect(t, node)
	}
}

// reaches sends a packet to the host port and back, and compares the source that the server sees.
func (h *hostPorts) reaches(t *testing.T, name string, client *datapath.Host, want netip.Addr) {
	t.Helper()
	to := netip.AddrPortFrom(h.Nodes[0].VTEP, hostPort)
	asking, serving := client.UDP(t, 0), h.server.UDP(t, hostPortOfPod)
	defer asking.Close()
	defer serving.Close()
	from := asking.MustReach(t, to, serving)
	if from.Addr() != want {
		t.Errorf("%s: got source %s at the pod, want %s", name, from.Addr(), want)
	}
	if from := serving.MustReach(t, from, asking); from != to {
		t.Errorf("%s: got a reply from %s, want %s", name, from, to)
	}
}

func (h *hostPorts) notReaches(t *testing.T, client *datapath.Host) {
	t.Helper()
	asking, serving := client.UDP(t, 0), h.server.UDP(t, hostPortOfPod)
	defer asking.Close()
	defer serving.Close()
	asking.MustNotReach(t, netip.AddrPortFrom(h.Nodes[0].VTEP, hostPort), serving)
}

// TestHostPort: clients of a host port, and the source that the pod sees (docs/policies.md#host-ports).
func TestHostPort(t *testing.T) {
	tier.Parallel(t)
	h := newHostPorts(t)
	gateway := h.Nodes[0].Addr
	node := &datapath.Host{NS: h.Nodes[0].NS, Addr: h.Nodes[0].VTEP}
	for _, tc := range []struct {
		mode                        config.Mode
		outside, same, remote, node netip.Addr
	}{
		{config.ModeMultitenant, gateway, h.same.Addr, gateway, gateway},
		{config.ModeNetworkPolicy, h.Outside.Addr, h.same.Addr, h.Nodes[1].VTEP, node.Addr},
		{config.ModeSubnet, h.Outside.Addr, gateway, h.Nodes[1].VTEP, node.Addr},
	} {
		t.Run(tc.mode.String(), func(t *testing.T) {
			h.apply(t, tc.mode, netip.Addr{})
			h.reaches(t, "host outside", h.Outside, tc.outside)
			h.reaches(t, "pod of the same namespace", &h.same.Host, tc.same)
			h.reaches(t, "pod of another node", &h.remote.Host, tc.remote)
			h.reaches(t, "itself", &h.server.Host, gateway)
			h.reaches(t, "node", node, tc.node)
			own := h.server.Dial(t, netip.AddrPortFrom(h.Nodes[0].VTEP, hostPort), h.server.ListenTCP(t, hostPortOfPod))
			own.MustPass(t)
			switch tc.mode {
			case config.ModeMultitenant:
				h.notReaches(t, &h.other.Host)
			case config.ModeNetworkPolicy:
				h.reaches(t, "pod of another namespace", &h.other.Host, h.other.Addr)
			case config.ModeSubnet: // evaluates no namespaces
			}
		})
	}
	t.Run("policies", func(t *testing.T) {
		h.apply(t, config.ModeNetworkPolicy, h.Outside.Addr)
		h.reaches(t, "host outside", h.Outside, h.Outside.Addr)
		h.reaches(t, "itself", &h.server.Host, gateway)
		h.notReaches(t, &h.same.Host)
		h.notReaches(t, &h.remote.Host)
		h.apply(t, config.ModeNetworkPolicy, h.same.Addr)
		h.reaches(t, "pod of the same namespace", &h.same.Host, h.same.Addr)
		h.notReaches(t, h.Outside)
	})
}

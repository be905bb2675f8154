package sysctl

import (
	"slices"
	"strconv"
	"strings"
)

// Scope is the interfaces that a Setting concerns.
type Scope string

// Scopes.
const (
	ScopeHost   Scope = "host"   // no interface, or all
	ScopeTun0   Scope = "tun0"   // the host's interface in the pod network
	ScopeUplink Scope = "uplink" // the interface with the node's address, and those of the node's IPv4 default routes of the lowest metric
	// ScopeEgressUplink is an interface in whose network the node hosts an egress IP.
	ScopeEgressUplink Scope = "uplinks of hosted egress IPs"
	ScopeVeth         Scope = "host veths of pods" // the host's end of each pod's veth pair
)

// interfaceName is the part of a key that Name replaces.
const interfaceName = "INTERFACE"

// Setting is a sysctl on which the path of pods' packets depends.
type Setting struct {
	Key   string // a path below /proc/sys, with INTERFACE for the interface's name
	Value string
	Scope Scope

	AtLeast     bool     // a larger number is not changed
	Saved       bool     // the previous value is saved, for an uninstallation; not for interfaces that an uninstallation deletes
	SideEffects []string // other sysctls that the kernel changes when this one is written
	Optional    bool     // a kernel without IPv6, or a network namespace other than the initial one, does not have it
	IPv4Only    bool     // for a node without IPv6 subnets
	Reported    bool     // the kernel reports changes (RTM_NEWNETCONF); others are found by the next check
	Reason      string   // why the path depends on it
}

// Name returns the sysctl's name of an interface.
func (s Setting) Name(device string) string { return strings.Replace(s.Key, interfaceName, device, 1) }

// Satisfied reports whether the sysctl needs no change.
func (s Setting) Satisfied(have string) bool {
	if !s.AtLeast {
		return have == s.Value
	}
	h, err := strconv.Atoi(have)
	want, wantErr := strconv.Atoi(s.Value)
	return err == nil && wantErr == nil && h >= want
}

// Table returns all sysctls that the agent sets, in the order in which it writes them. docs/reference.md is generated from it. The kernel's
// Documentation/networking/ip-sysctl.rst describes how the sysctls of an interface and of `all` are combined. None of `default` is in the table: it only
// initializes new interfaces, whose own sysctls the agent sets.
func Table() []Setting {
	return slices.Concat(forwarding(), redirects(), neighbours(), egress(), veths())
}

const (
	conf4 = "net/ipv4/conf/"
	conf6 = "net/ipv6/conf/"
)

func forwarding() []Setting {
	return []Setting{
		{
			Key: "net/ipv4/ip_forward", Value: "1", Scope: ScopeHost, Saved: true, SideEffects: []string{conf4 + "all/accept_redirects"}, Reported: true,
			Reason: "the host routes between pods and other networks. It is the same sysctl as `net.ipv4.conf.all.forwarding`: a change sets `forwarding` of all interfaces",
		},
		{
			Key: conf4 + interfaceName + "/forwarding", Value: "1", Scope: ScopeTun0, Reported: true,
			Reason: "without it the host drops packets of pods to services and to other networks. A new interface inherits the value of `default`",
		},
		{
			Key: conf4 + interfaceName + "/forwarding", Value: "1", Scope: ScopeUplink, Saved: true, Reported: true,
			Reason: "without it the host drops the replies from other networks to pods",
		},
		{
			Key: conf4 + interfaceName + "/rp_filter", Value: "2", Scope: ScopeTun0, Reported: true,
			Reason: "loose mode: packets from tun0 may have a source that is routed by another interface. Not 0: the kernel applies the larger one of this and `all`, so 0 would not override a strict 1",
		},
		{
			Key: conf4 + interfaceName + "/arp_announce", Value: "2", Scope: ScopeTun0,
			Reason: "ARP requests for pods have the gateway's address, whatever source the packet has: the bridge drops ARP from tun0 with any other sender address, which could poison pods' ARP caches. The kernel applies the larger one of this and `all`",
		},
	}
}

func redirects() []Setting {
	return []Setting{
		{
			Key: conf4 + "all/send_redirects", Value: "0", Scope: ScopeHost, Saved: true,
			Reason: "a packet to a service enters by tun0 and leaves by tun0 to its endpoint. The kernel would send the pod an ICMP redirect to the endpoint, after which the service would not work for that pod. Either of this and tun0's own enables redirects; other interfaces have their own",
		},
		{
			Key: conf4 + interfaceName + "/send_redirects", Value: "0", Scope: ScopeTun0,
			Reason: "as `all`",
		},
	}
}

func neighbours() []Setting {
	const neigh = "net/ipv4/neigh/default/"
	return []Setting{
		// The largest first, so that the thresholds are in order at any time.
		{
			Key: neigh + "gc_thresh3", Value: "65536", Scope: ScopeHost, AtLeast: true, Saved: true, Optional: true,
			Reason: "the host and all pods share the IPv4 neighbour table, which must have room for the addresses of a cluster: 65,536 entries take about 32 MiB",
		},
		{Key: neigh + "gc_thresh2", Value: "32768", Scope: ScopeHost, AtLeast: true, Saved: true, Optional: true, Reason: "as `gc_thresh3`"},
		{Key: neigh + "gc_thresh1", Value: "8192", Scope: ScopeHost, AtLeast: true, Saved: true, Optional: true, Reason: "as `gc_thresh3`"},
		{
			Key: conf6 + interfaceName + "/disable_ipv6", Value: "1", Scope: ScopeTun0, Optional: true, IPv4Only: true,
			Reason: "no router solicitations and no duplicate address detection in a pod network without IPv6",
		},
	}
}

func egress() []Setting {
	return []Setting{
		{
			Key: conf4 + interfaceName + "/forwarding", Value: "1", Scope: ScopeEgressUplink, Saved: true, Reported: true,
			Reason: "without it the host neither answers ARP requests for egress IPs nor forwards packets to them",
		},
		{
			Key: "net/ipv4/neigh/" + interfaceName + "/proxy_delay", Value: "0", Scope: ScopeEgressUplink, Saved: true,
			Reason: "the host answers ARP requests for egress IPs at once, not after a random delay of up to 0.8 s",
		},
	}
}

func veths() []Setting {
	return []Setting{
		{
			Key: conf4 + interfaceName + "/arp_ignore", Value: "8", Scope: ScopeVeth,
			Reason: "with `datapath=netdev` the kernel receives pods' packets, too: it would answer ARP for tun0's address with a MAC that bypasses the bridge. 8: never reply",
		},
		{
			Key: conf4 + interfaceName + "/forwarding", Value: "0", Scope: ScopeVeth,
			Reason: "as `arp_ignore`, where `proxy_arp` of `all` is set: the kernel answers for other addresses only on an interface that forwards",
		},
		{
			Key: conf6 + interfaceName + "/disable_ipv6", Value: "1", Scope: ScopeVeth, Optional: true,
			Reason: "the kernel would accept the pod as a router with `datapath=netdev`. A change of `all` changes all interfaces",
		},
	}
}

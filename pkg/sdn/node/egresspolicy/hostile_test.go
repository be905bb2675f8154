package egresspolicy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/dnsresolver"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
)

// A name allows the addresses beside the networks that DNS must not open, and none in them, up to their first and last ones.
func TestPolicies_hostileDNS(t *testing.T) {
	c := newCluster(t)
	c.hostSubnets.Add(hostSubnet("node1", "172.31.0.11"))
	c.hostSubnets.Add(hostSubnet("node2", "172.31.0.12"))
	a, _ := c.start(t)
	opened := addrs("10.127.255.255", "10.132.0.0", "126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0", "172.29.255.255",
		"172.31.0.0", "172.31.0.10", "172.31.0.13", "223.255.255.255")
	closed := addrs(
		"10.128.0.0", "10.128.0.1", "10.131.255.255", // pods, tun0
		"172.30.0.0", "172.30.0.1", "172.30.255.255", // services
		"172.31.0.11", "172.31.0.12", // nodes
		"127.0.0.0", "127.0.0.1", "127.255.255.255", "169.254.0.0", "169.254.169.254", "169.254.255.255",
		"0.0.0.0", "224.0.0.0", "239.255.255.255", "255.255.255.255",
	)
	all := slices.Concat(opened, closed)
	slices.SortFunc(all, netip.Addr.Compare)
	answer := dnsresolver.Answer{Addrs: all, Latest: all, Known: true}
	firewall := pipeline.EgressFirewall{ID: 1, Rules: []pipeline.EgressFirewallRule{{To: a.allowed(answer)}, {To: everywhere(), Deny: true}}}
	allows := firewall.Compile(pipeline.EgressVerdicts{}).Allows
	for _, addr := range all {
		if got, want := allows(addr), slices.Contains(opened, addr); got != want {
			t.Errorf("DNS opens %s: got %t, want %t", addr, got, want)
		}
	}
	// A Deny rule denies also these, and all addresses if there are too many or none is known.
	denies := func(a dnsresolver.Answer) func(netip.Addr) bool {
		return pipeline.EgressFirewall{ID: 1, Rules: []pipeline.EgressFirewallRule{{To: denied(a), Deny: true}}}.Compile(pipeline.EgressVerdicts{}).Allows
	}
	other := netip.MustParseAddr("203.0.113.1")
	for what, tc := range map[string]struct {
		answer dnsresolver.Answer
		others bool // other addresses are allowed
	}{
		"addresses":                   {answer, true},
		"too many addresses":          {dnsresolver.Answer{Addrs: all, Latest: all, Known: true, Excess: true}, false},
		"no answer yet":               {dnsresolver.Answer{}, false},
		"a failure after all expired": {dnsresolver.Answer{Latest: all, Known: true, Err: fmt.Errorf("no answer")}, true},
	} {
		allows := denies(tc.answer)
		if got := allows(other); got != tc.others {
			t.Errorf("%s: another address is allowed: got %t, want %t", what, got, tc.others)
		}
		if slices.ContainsFunc(all, allows) {
			t.Errorf("%s: got an address of the name that is allowed", what)
		}
	}
	// An address that becomes a node's, or is no node's any longer.
	node3 := hostSubnet("node3", "172.31.0.13")
	c.hostSubnets.Add(node3)
	a.wantAllowed(node3.HostIP, false)
	c.hostSubnets.Delete(node3)
	a.wantAllowed(node3.HostIP, true)
}

// wantAllowed waits until an Allow rule has the address with which DNS answers, or does not.
func (a *agent) wantAllowed(addr string, want bool) {
	a.t.Helper()
	await.OK(a.t, testTimeout, func(context.Context) error {
		if got := len(a.allowed(dnsresolver.Answer{Addrs: addrs(addr)})) == 1; got != want {
			return fmt.Errorf("an Allow rule has %s: got %t, want %t", addr, got, want)
		}
		return nil
	})
}

func hostSubnet(name, hostIP string) *networkv1.HostSubnet {
	o := &networkv1.HostSubnet{Host: name, HostIP: hostIP}
	o.Name = name
	return o
}

func addrs(texts ...string) (all []netip.Addr) {
	for _, t := range texts {
		all = append(all, netip.MustParseAddr(t))
	}
	return all
}

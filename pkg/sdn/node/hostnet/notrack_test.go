package hostnet

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/coreos/go-iptables/iptables"
)

// tracked returns the number of the namespace's conntrack entries of UDP to the port.
func tracked(t *testing.T, port int) int {
	t.Helper()
	return strings.Count(sh(t, fmt.Sprintf("conntrack -L -p udp --orig-port-dst %d 2>/dev/null", port)), "dport="+strconv.Itoa(port)+" ")
}

// VXLAN's outer source port is a hash of the inner headers, so each inner connection would have an entry in the host's conntrack table. The test uses the
// kernel's VXLAN device, whose packets pass the same hooks as those of Open vSwitch's kernel datapath.
func TestTunnelIsNotTracked(t *testing.T) {
	const flows = 200
	n := newNetwork(t, openShift())
	here, err := ns.GetCurrentNS()
	must(t, err)
	defer here.Close()
	sh(t, "ip link add vx0 type vxlan id 7 remote 192.0.2.1 dstport 4789 dev eth0 noudpcsum && ip addr add 198.51.100.1/24 dev vx0 && ip link set vx0 up && iptables -A INPUT -i vx0 -j ACCEPT")
	must(t, n.outside.Do(func(ns.NetNS) error {
		sh(t, "ip link add vx0 type vxlan id 7 remote 192.0.2.10 dstport 4789 dev eth0 noudpcsum && ip addr add 198.51.100.2/24 dev vx0 && ip link set vx0 up")
		return nil
	}))
	exchange := func() int {
		sh(t, "conntrack -F 2>/dev/null")
		peer := udp(t, n.outside, "198.51.100.2:6000")
		defer peer.Close()
		for range flows {
			node := udp(t, here, "198.51.100.1:0")
			send(t, node, "198.51.100.2:6000")
			send(t, peer, sender(t, peer).String())
			sender(t, node)
			must(t, node.Close())
		}
		return tracked(t, 4789)
	}
	if got := exchange(); got != 0 {
		t.Errorf("got %d conntrack entries for the tunnel of %d inner connections, want 0", got, flows)
	}
	f, err := newIPTablesFirewall(t.Context(), openShift())
	must(t, err)
	f.rules = f.rules.in([]string{tableRaw})
	must(t, f.Remove(t.Context()))
	without := exchange()
	if without < flows/2 {
		t.Errorf("got %d conntrack entries for the tunnel of %d inner connections without the rules, want at least half: the test has no effect", without, flows)
	}
	t.Logf("conntrack entries for %d inner connections: 0, and %d without the rules", flows, without)
}

// Services on the VXLAN port are tracked: without conntrack their packets are not translated.
func TestServicesOnTheVXLANPortStayTracked(t *testing.T) {
	c := openShift()
	c.MasqueradeServices = true // pod and endpoint share a namespace here
	n := newNetwork(t, c)
	here, err := ns.GetCurrentNS()
	must(t, err)
	defer here.Close()
	sh(t, `for chain in PREROUTING OUTPUT; do
		iptables -t nat -A $chain -d 172.30.0.10 -p udp --dport 4789 -j DNAT --to-destination 10.128.0.3:5353
		iptables -t nat -A $chain -d 192.0.2.10 -p udp --dport 4789 -j DNAT --to-destination 10.128.0.3:5353
	done`)
	endpoint := udp(t, n.pods, "10.128.0.3:5353")
	for name, client := range map[string]struct {
		netns ns.NetNS
		addr  string
	}{"a pod": {n.pods, "10.128.0.2:5000"}, "the node": {here, "10.128.0.1:5000"}} {
		t.Log(name)
		conn := udp(t, client.netns, client.addr)
		send(t, conn, "172.30.0.10:4789")
		send(t, endpoint, sender(t, endpoint).String())
		if from := sender(t, conn); from.String() != "172.30.0.10:4789" {
			t.Errorf("%s: got a reply from %s, want 172.30.0.10:4789", name, from)
		}
	}
	// VXLAN that this node forwards.
	pod, outside := udp(t, n.pods, "10.128.0.2:4789"), udp(t, n.outside, "192.0.2.1:5001")
	must(t, n.outside.Do(func(ns.NetNS) error { sh(t, "ip route add 10.128.0.0/14 via 192.0.2.10"); return nil }))
	send(t, outside, "10.128.0.2:4789")
	sender(t, pod)
	if out := sh(t, "conntrack -L -p udp --orig-port-src 5001 2>/dev/null"); !strings.Contains(out, "dst=10.128.0.2") {
		t.Errorf("conntrack entry of forwarded VXLAN: got\n%s", out)
	}
	// A service with the node's own address as its external IP does not hijack the tunnel.
	vtep := udp(t, here, "192.0.2.10:4789")
	send(t, outside, "192.0.2.10:4789")
	if from := sender(t, vtep); from.String() != "192.0.2.1:5001" {
		t.Errorf("VTEP: got a packet from %s, want 192.0.2.1:5001", from)
	}
}

// On a kernel without the target CT all other rules are installed, and the missing chains are reported.
func TestFirewall_kernelWithoutNotrack(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		program, err := exec.LookPath(string(b))
		must(t, err)
		// iptables fails for table raw as it does on such a kernel, by its exit status.
		status := map[backend]int{"iptables-nft": 4, legacy: 3}[b]
		dir := t.TempDir()
		writeProgram(t, filepath.Join(dir, "iptables"), fmt.Appendf(nil,
			"#!/bin/sh\ncase \" $* \" in *' raw '*) echo 'Table does not exist (do you need to insmod?)' >&2; exit %d;; esac\nexec %s \"$@\"\n", status, program))
		ipt, err := iptables.New(iptables.Path(filepath.Join(dir, "iptables")), iptables.Timeout(lockWait))
		must(t, err)
		f := &iptablesFirewall{iptables: ipt, firewallState: firewallState{rules: Rules(openShift()), vteps: completeVTEPs()}}
		syncFirewall(t, f)
		skipped := f.Skipped()
		if len(skipped) != 2 || skipped[0].Feature != FeatureNotrack || skipped[1].Feature != FeatureEgressNotrack {
			t.Fatalf("Skipped: got %v, want %s and %s", skipped, FeatureNotrack, FeatureEgressNotrack)
		}
		wantError(t, skipped[0].Err, chainPrefix+"NOTRACK-IN", chainPrefix+"NOTRACK-OUT", "xt_CT")
		if rules := b.save(t); !strings.Contains(rules, chainPrefix+"MASQUERADE") || strings.Contains(rules, "NOTRACK") {
			t.Errorf("got rules\n%s", rules)
		}
		if changes := syncFirewall(t, f); len(changes) > 0 {
			t.Errorf("second Sync: got changes %q", changes)
		}
		if b == legacy {
			must(t, f.Remove(t.Context()))
		}
		// The module is loaded later.
		f.iptables = b.program(t)
		syncFirewall(t, f)
		if skipped := f.Skipped(); skipped != nil {
			t.Errorf("Skipped: got %v, want none", skipped)
		}
		if rules := b.save(t); !strings.Contains(rules, "NOTRACK") {
			t.Errorf("got rules\n%s", rules)
		}
	})
}

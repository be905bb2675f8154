package hostnet

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/coreos/go-iptables/iptables"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

func limited(n int) FirewallConfig {
	c := openShift()
	c.PodConnections = func() (int, error) { return n, nil }
	return c
}

// sendFromManyPorts sends packets from one socket each, and returns the number of the pod's entries in the host's conntrack table.
func sendFromManyPorts(t *testing.T, n network, pod string, packets int) (entries int) {
	t.Helper()
	must(t, n.pods.Do(func(ns.NetNS) error {
		to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:9"))
		for range packets {
			conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(pod)}, to)
			if err != nil {
				return err
			}
			if _, err := conn.Write([]byte("x")); err != nil {
				return err
			}
			conn.Close()
		}
		return nil
	}))
	return strings.Count(sh(t, "conntrack -L -p udp --orig-src "+pod+" 2>/dev/null"), "src="+pod+" ")
}

// UDP packets from many ports of a pod do not fill the host's conntrack table. Other pods and existing connections are not affected.
func TestPodDoesNotFillConntrack(t *testing.T) {
	const limit, packets = 50, 400
	n := newNetwork(t, limited(limit))
	server := udp(t, n.outside, "192.0.2.1:53")
	exchange := func(pod *net.UDPConn) {
		t.Helper()
		send(t, pod, "192.0.2.1:53")
		send(t, server, sender(t, server).String())
		sender(t, pod)
	}
	before := udp(t, n.pods, "10.128.0.2:5000")
	exchange(before)
	if got := sendFromManyPorts(t, n, "10.128.0.2", packets); got > limit {
		t.Errorf("got %d entries of the pod, want at most %d", got, limit)
	} else {
		t.Logf("%d packets, %d entries", packets, got)
	}
	if got := droppedIn(t, "OVSDN-LIMIT"); got == "0" || got == "" {
		t.Errorf("got %q dropped packets, want some", got)
	}
	exchange(before)
	exchange(udp(t, n.pods, "10.128.0.3:5000"))
	// The entries expire.
	sh(t, "conntrack -D -p udp --orig-src 10.128.0.2 >/dev/null 2>&1")
	eventually(t, "the pod opens connections again", func() bool {
		late := udp(t, n.pods, "10.128.0.2:0")
		defer late.Close()
		send(t, late, "192.0.2.1:53")
		must(t, server.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		_, _, err := server.ReadFromUDPAddrPort(make([]byte, 100))
		return err == nil
	})
}

// Packets of an existing entry do not reach connlimit, which would walk all connections of the pod for each of them.
func TestPodLimitPassesExistingEntries(t *testing.T) {
	limit := 100
	c := openShift()
	c.PodConnections = func() (int, error) { return limit, nil }
	n := newNetwork(t, c)
	server, before := udp(t, n.outside, "192.0.2.1:53"), udp(t, n.pods, "10.128.0.2:5000")
	send(t, before, "192.0.2.1:53") // no reply, so the next packet has the state NEW, too
	sender(t, server)
	limit = 50 // connlimit counts from zero, without the entry
	syncFirewall(t, newFirewall(t, c))
	sendFromManyPorts(t, n, "10.128.0.2", 4*limit)
	send(t, before, "192.0.2.1:53")
	must(t, server.SetReadDeadline(time.Now().Add(30*time.Second)))
	sender(t, server)
}

func TestPodConnections(t *testing.T) {
	dir := t.TempDir()
	limit := PodConnections(sysctl.Dir(dir))
	_, err := limit()
	wantError(t, err, "nf_conntrack is not loaded")
	must(t, os.MkdirAll(filepath.Join(dir, "net/netfilter"), 0o755))
	for value, want := range map[string]int{"262144": 16384, "2097152": 32768, "5": 1, "0": 0} {
		must(t, os.WriteFile(filepath.Join(dir, "net/netfilter/nf_conntrack_max"), []byte(value+"\n"), 0o600))
		got, err := limit()
		must(t, err)
		if got != want {
			t.Errorf("nf_conntrack_max %s: got %d, want %d", value, got, want)
		}
	}
}

func TestPodLimitRule(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		limit := 100
		f, r := b.firewall(t, openShift())
		f.podConnections = func() (int, error) { return limit, nil }
		for _, limit = range []int{100, 200, 0, 100} {
			syncFirewall(t, f)
			rules := b.save(t)
			if got, want := strings.Contains(rules, fmt.Sprintf("--connlimit-above %d ", limit)), limit > 0; got != want {
				t.Errorf("limit %d: got rules\n%s", limit, rules)
			}
			r.writes = nil
			if changes := syncFirewall(t, f); len(changes) > 0 || len(r.writes) > 0 { // a rewrite would restart the count
				t.Errorf("limit %d: second Sync: got changes %q", limit, changes)
			}
		}
	})
}

// On a kernel without connlimit all other rules are installed, and the missing limit is reported.
func TestFirewall_kernelWithoutConnlimit(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		program, err := exec.LookPath(string(b))
		must(t, err)
		dir := t.TempDir()
		writeProgram(t, filepath.Join(dir, "iptables"), []byte("#!/bin/sh\ncase \" $* \" in *' connlimit '*) echo 'No chain/target/match by that name.' >&2; exit 1;; esac\nexec "+program+" \"$@\"\n"))
		f, _ := b.firewall(t, limited(100))
		f.podConnections = limited(100).PodConnections
		f.iptables, err = iptables.New(iptables.Path(filepath.Join(dir, "iptables")), iptables.Timeout(lockWait))
		must(t, err)
		syncFirewall(t, f)
		skipped := f.Skipped()
		if len(skipped) != 1 || skipped[0].Feature != FeaturePodLimit {
			t.Fatalf("Skipped: got %v, want %s", skipped, FeaturePodLimit)
		}
		wantError(t, skipped[0].Err, "xt_connlimit")
		if rules := b.save(t); !strings.Contains(rules, chainPrefix+"MASQUERADE") || strings.Contains(rules, "connlimit") {
			t.Errorf("got rules\n%s", rules)
		}
		f.iptables = b.program(t) // the module is loaded later
		syncFirewall(t, f)
		if skipped := f.Skipped(); skipped != nil {
			t.Errorf("Skipped: got %v, want none", skipped)
		}
	})
}

package hostports

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

// Connections of UDP to the same port of other hosts remain, as do the rules of other networks.
func TestPortmap_others(t *testing.T) {
	for _, backend := range []Backend{BackendNFTables, BackendIPTables, BackendLegacy} {
		t.Run(string(backend), func(t *testing.T) {
			tier.Parallel(t)
			h := newHost(t, backend)
			h.serve(t, 53)
			a := h.agent(t, t.TempDir())
			a.ports.Plugin = &forced{h.plugin, backend}
			first, second := request(t, "ADD", "first", "a", udp("", 5354)), request(t, "ADD", "second", "b", udp("", 5353))
			first.Netns, second.Netns = path(h.pod), path(h.pod)
			_, err := a.Add(testContext(t), first) // with rules the host tracks connections
			must(t, err)
			must(t, h.pod.Do(func(ns.NetNS) error {
				conn, err := net.Dial("udp4", outsideIP+":5353")
				if err != nil {
					return err
				}
				defer conn.Close()
				_, err = conn.Write([]byte("?"))
				return err
			}))
			connections := func() int {
				all, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
				must(t, err)
				n := 0
				for _, c := range all {
					if c.Forward.DstIP.String() == outsideIP && c.Forward.DstPort == 5353 {
						n++
					}
				}
				return n
			}
			await.OK(t, await.SyncTime, func(context.Context) error {
				if connections() == 0 {
					return errors.New("no connection")
				}
				return nil
			})
			_, err = a.Add(testContext(t), second)
			must(t, err)
			if connections() != 1 {
				t.Error("ADD flushed a connection of a pod to another host")
			}
		})
	}
}

// A client that went on sending UDP while the rules were missing reaches the pod when they are restored.
func TestPortmap_clientDuringFlush(t *testing.T) {
	h := newHost(t, BackendNFTables)
	h.serve(t, 53)
	a := h.agent(t, t.TempDir())
	req := request(t, "ADD", "sandbox", "a", udp("", 5353))
	req.Netns = path(h.pod)
	_, err := a.Add(testContext(t), req)
	must(t, err)
	sh(t, "nft flush chain ip cni_hostport hostports") // the base chains remain, so that the host tracks connections
	var client net.Conn
	must(t, h.outside.Do(func(ns.NetNS) (err error) {
		client, err = net.Dial("udp4", nodeIP+":5353")
		return err
	}))
	defer client.Close()
	await.OK(t, await.SyncTime, func(context.Context) error {
		_, _ = client.Write([]byte("?")) // fails after an ICMP error
		all, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		must(t, err)
		for _, c := range all {
			if c.Forward.DstPort == 5353 && c.Reverse.SrcIP.String() == nodeIP {
				return nil
			}
		}
		return errors.New("no connection without translation")
	})
	_, err = a.ports.restore(testContext(t))
	must(t, err)
	await.OK(t, 30*time.Second, func(context.Context) error {
		if _, err := client.Write([]byte("?")); err != nil {
			return err
		}
		must(t, client.SetReadDeadline(time.Now().Add(time.Second)))
		_, err := client.Read(make([]byte, 100))
		return err
	})
}

// An uninstallation retains the table of another network, whose rules a previous version of portmap wrote.
func TestRemoveAll_otherNetwork(t *testing.T) {
	h := newHost(t, BackendNFTables)
	sh(t, "nft add table ip cni_hostport; nft add chain ip cni_hostport hostports; nft add chain ip cni_hostport hostip_hostports; nft add rule ip cni_hostport hostip_hostports tcp dport 80 accept")
	must(t, RemoveAll(testContext(t), h.plugin, t.TempDir()))
	if got := sh(t, "nft list tables"); !strings.Contains(got, nftTable) {
		t.Errorf("got tables %q, want that of the other network", got)
	}
}

// A failure that does not show what the kernel supports selects no other backend.
func TestPortmap_unknownSupport(t *testing.T) {
	h := newHost(t, BackendNFTables)
	dir := t.TempDir()
	script := "#!/bin/sh\n[ \"$1\" = --version ] && exec " + sh(t, "command -v nft | tr -d '\\n'") + " --version\nkill -9 $$\n"
	must(t, os.WriteFile(filepath.Join(dir, "nft"), []byte(script), 0o700))
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	if got, err := h.plugin.Backend(testContext(t)); err == nil {
		t.Errorf("got backend %s, want an error", got)
	}
}

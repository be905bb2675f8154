package hostnet

import (
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// message returns a netlink message with the parts as data.
func message(kind uint16, parts ...[]byte) syscall.NetlinkMessage {
	return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: kind}, Data: slices.Concat(parts...)}
}

// attribute returns a padded netlink attribute of a little-endian host.
func attribute(kind byte, value ...byte) []byte {
	a := append([]byte{byte(4 + len(value)), 0, kind, 0}, value...)
	return append(a, make([]byte, -len(a)&3)...)
}

func TestChangedChain(t *testing.T) {
	const nft = unix.NFNL_SUBSYS_NFTABLES << 8
	ipv4 := []byte{unix.NFPROTO_IPV4, 0, 0, 0}
	nat, post := attribute(1, []byte("nat\x00")...), []byte("POSTROUTING\x00")
	for _, test := range []struct {
		name         string
		m            syscall.NetlinkMessage
		table, chain string
		ok           bool
	}{
		{"rule", message(nft|unix.NFT_MSG_DELRULE, ipv4, nat, attribute(2, post...)), "nat", "POSTROUTING", true},
		{"chain", message(nft|unix.NFT_MSG_DELCHAIN, ipv4, nat, attribute(3, post...)), "nat", "POSTROUTING", true},
		{"table", message(nft|unix.NFT_MSG_DELTABLE, ipv4, nat), "nat", "", true},
		{"IPv6", message(nft|unix.NFT_MSG_DELTABLE, []byte{unix.NFPROTO_IPV6, 0, 0, 0}, nat), "", "", false},
		{"a set", message(nft|unix.NFT_MSG_NEWSETELEM, ipv4, nat), "", "", false},
		{"conntrack", message(unix.NFNL_SUBSYS_CTNETLINK<<8|unix.NFT_MSG_DELRULE, ipv4, nat), "", "", false},
		{"short", message(nft|unix.NFT_MSG_DELRULE, ipv4[:3]), "", "", false},
	} {
		if table, chain, ok := changedChain(test.m); table != test.table || chain != test.chain || ok != test.ok {
			t.Errorf("%s: got %q, %q, %v; want %q, %q, %v", test.name, table, chain, ok, test.table, test.chain, test.ok)
		}
	}
}

func TestChangedLink(t *testing.T) {
	link := make([]byte, unix.SizeofIfInfomsg)
	link[4] = 7
	for _, test := range []struct {
		name string
		m    syscall.NetlinkMessage
		want linkChange
	}{
		{"link", message(unix.RTM_NEWLINK, link, attribute(unix.IFLA_IFNAME, []byte("tun0\x00")...)), linkChange{index: 7, name: "tun0"}},
		{"address", message(unix.RTM_DELADDR, []byte{2, 24, 0, 0, 7, 0, 0, 0}), linkChange{index: 7}},
		{"route", message(unix.RTM_NEWROUTE, []byte{2, 14, 0, 0, 254, 0, 0, 0, 0, 0, 0, 0}, attribute(unix.RTA_DST, 10, 128, 0, 0), attribute(unix.RTA_OIF, 7, 0, 0, 0)),
			linkChange{index: 7, dst: netip.MustParsePrefix("10.128.0.0/14")}},
		{"setting of all", message(unix.RTM_NEWNETCONF, []byte{2, 0, 0, 0}, attribute(netconfIfindex, 255, 255, 255, 255)), linkChange{index: -1, all: true, sysctl: true}},
		{"setting of one", message(unix.RTM_NEWNETCONF, []byte{2, 0, 0, 0}, attribute(netconfIfindex, 7, 0, 0, 0)), linkChange{index: 7, sysctl: true}},
		{"neighbour", message(unix.RTM_DELNEIGH, []byte{2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0}, attribute(1, 169, 254, 0, 11)),
			linkChange{neighbour: netip.MustParseAddr("169.254.0.11")}},
		{"neighbour without an address", message(unix.RTM_NEWNEIGH, link), linkChange{}},
		{"short neighbour", message(unix.RTM_NEWNEIGH, link[:11]), linkChange{}},
		{"short", message(unix.RTM_NEWROUTE, link[:5]), linkChange{}},
	} {
		if got := changedLink(test.m); got != test.want {
			t.Errorf("%s: got %+v, want %+v", test.name, got, test.want)
		}
	}
}

func FuzzNetlinkMessages(f *testing.F) {
	f.Add(uint16(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELRULE), []byte("\x02\x00\x00\x00\x08\x00\x01\x00nat\x00\x05\x00\x02\x00x"))
	f.Add(uint16(unix.RTM_NEWROUTE), append([]byte{2, 14, 0, 0, 254, 0, 0, 0, 0, 0, 0, 0}, attribute(unix.RTA_DST, 10, 128, 0, 0)...))
	f.Add(uint16(unix.RTM_NEWNEIGH), append(make([]byte, sizeofNdmsg), attribute(1, 169, 254, 0, 11)...))
	f.Add(uint16(unix.RTM_NEWLINK), make([]byte, unix.SizeofIfInfomsg+3))
	f.Add(uint16(unix.RTM_NEWNETCONF), append([]byte{2, 0, 0, 0}, attribute(netconfIfindex, 255, 255, 255, 255)...))
	f.Fuzz(func(t *testing.T, kind uint16, data []byte) {
		changedChain(message(kind, data))
		changedLink(message(kind, data))
		parseNFTTable(data)
		parseDropPolicy(data)
	})
}

func TestFirewall_isRelevant(t *testing.T) {
	inNetNS(t)
	f, err := newIPTablesFirewall(t.Context(), openShift())
	must(t, err)
	syncFirewall(t, f)

	type change struct {
		table, chain string
		relevant     bool
	}
	all, isRelevant := make(chan change, 100), f.isRelevant()
	w, err := newWatcher(unix.NETLINK_NETFILTER, []uint{unix.NFNLGRP_NFTABLES}, func(m syscall.NetlinkMessage) bool {
		if table, chain, ok := changedChain(m); ok {
			all <- change{table, chain, isRelevant(m)}
		}
		return false
	})
	must(t, err)
	defer w.close()
	sh(t, "iptables -t nat -N KUBE-SVC-X; iptables -t nat -A KUBE-SVC-X -j RETURN; iptables -t security -A INPUT -j ACCEPT; iptables -t nat -D POSTROUTING 1; iptables -t raw -D PREROUTING 1; iptables -N LAST")
	got := map[change]bool{}
	for s := range all {
		got[s] = true
		if s.chain == "LAST" {
			break
		}
	}
	for _, want := range []change{
		{"nat", "KUBE-SVC-X", false}, {"security", "", false}, {"security", "INPUT", false}, {"raw", "PREROUTING", true}, {"nat", "POSTROUTING", true}, {"filter", "LAST", false},
	} {
		if !got[want] {
			t.Errorf("got no %+v in %+v", want, got)
		}
	}
}

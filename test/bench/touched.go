package main

import (
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

// looks returns the state of each pod's network: its device, addresses and routes, and its row in the database. A re-created object has another
// index or UUID.
func (n *startNode) looks(pods []*sandbox) []string {
	n.b.Helper()
	const ifindex = 0 // of the columns
	text := n.ovs.VSCtl(n.b, "--format=csv", "--no-headings", "--columns=ifindex,_uuid,name,ofport,external_ids", "list", "interface")
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	n.b.must(err)
	ports := map[string]string{}
	for _, row := range rows {
		ports[row[ifindex]] = strings.Join(row, " ")
	}
	var all []string
	for _, p := range pods {
		n.b.must(p.netns.Do(func(ns.NetNS) error {
			device, peer, err := deviceLooks()
			all = append(all, device+" "+ports[strconv.Itoa(peer)])
			return err
		}))
	}
	return all
}

// deviceLooks describes eth0 in the namespace of the thread, and returns the index of its other end.
func deviceLooks() (looks string, peer int, err error) {
	link, err := netlinksafe.LinkByName("eth0")
	if err != nil {
		return "", 0, err
	}
	addrs, err := netlinksafe.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return "", 0, err
	}
	routes, err := netlinksafe.RouteList(link, netlink.FAMILY_ALL)
	if err != nil {
		return "", 0, err
	}
	a := link.Attrs()
	return fmt.Sprint(a.Index, a.HardwareAddr, a.MTU, a.Flags, addrs, routes), a.ParentIndex, nil
}

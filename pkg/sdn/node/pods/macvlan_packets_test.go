package pods

import (
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// Packets of macvlan0 are on the parent's network, with its MAC and the pod's own address there, past the bridge. Two pods on one parent do not reach each other
// (mode private), and have their interface in the pod network as well.
func TestMacvlan_packets(t *testing.T) {
	n := newNode(t)
	lan := addLAN(t, n.host)
	a, _ := n.start(t)
	one, two := newNetns(t), newNetns(t)
	reqOne := n.addMacvlanPod("one", one, uplinkName)
	add(t, a, reqOne)
	add(t, a, n.addMacvlanPod("two", two, uplinkName))
	setAddr(t, one, sandbox.MacvlanName, "192.0.2.11")
	setAddr(t, two, sandbox.MacvlanName, "192.0.2.12")

	connect(t, one, lan, lanAddr)
	connect(t, lan, two, "192.0.2.12")
	mac := sandbox.Attachment{Sandbox: reqOne.ContainerID, IfName: "eth0"}.MacvlanMAC()
	inNetns(t, lan, func() error {
		neighbours, err := netlink.NeighList(0, netlink.FAMILY_V4) //nolint:forbidigo // nothing else changes them
		for _, neighbour := range neighbours {
			if neighbour.IP.String() == "192.0.2.11" && !bytes.Equal(neighbour.HardwareAddr, mac) {
				t.Errorf("got MAC %s of the pod on its parent's network, want %s", neighbour.HardwareAddr, mac)
			}
		}
		return err
	})

	// Without ARP, so that mode private alone stops the packet.
	inNetns(t, one, func() error {
		link, err := netlinksafe.LinkByName(sandbox.MacvlanName)
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP("192.0.2.12"), HardwareAddr: macvlanOfPod(t, two).HardwareAddr})
	})
	var receiver net.PacketConn
	inNetns(t, two, func() (err error) {
		receiver, err = net.ListenPacket("udp4", "192.0.2.12:7")
		return err
	})
	defer receiver.Close()
	for _, from := range []ns.NetNS{one, lan} {
		inNetns(t, from, func() error {
			conn, err := net.Dial("udp4", "192.0.2.12:7")
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte("x"))
			return err
		})
	}
	noError(t, receiver.SetReadDeadline(time.Now().Add(patience)))
	_, from, err := receiver.ReadFrom(make([]byte, 1))
	noError(t, err)
	if host, _, _ := net.SplitHostPort(from.String()); host != lanAddr {
		t.Errorf("got a packet of %s first, want only those of %s", host, lanAddr)
	}
}

// The parent is the internal port of another bridge of Open vSwitch, which has the node's address and its uplink.
func TestMacvlan_onOVSBridge(t *testing.T) {
	tier.Parallel(t)
	n, s := newOVSNode(t)
	lan := addLAN(t, n.host)
	s.VSCtl(t, "add-br", "br-ex", "--", "set", "bridge", "br-ex", "datapath_type="+ovstest.DatapathType(t), "--", "add-port", "br-ex", uplinkName)
	setAddr(t, n.host, "br-ex", "192.0.2.2")
	connect(t, n.host, lan, lanAddr)
	addDefaultRoute(t, n.host, "br-ex", 0)
	a, _ := n.start(t)
	pod := newNetns(t)
	req := n.addMacvlanPod("router", pod, "true")
	checkReq := check(t, req, add(t, a, req))
	setAddr(t, pod, sandbox.MacvlanName, "192.0.2.11")
	connect(t, pod, lan, lanAddr)
	connect(t, lan, pod, "192.0.2.11")
	connect(t, lan, n.host, "192.0.2.2")
	noError(t, a.Check(t.Context(), checkReq))
	del(t, a, req)
	n.wantClean(t)
}

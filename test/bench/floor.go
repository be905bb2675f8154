package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/bareagent"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// floor does the least that any CNI on Open vSwitch must do: a veth pair into the pod with an address and a route, one OVSDB transaction and
// the wait for the port's number, one bundle. It starts no plugin, looks nothing up, checks and stores nothing, and uses open
// connections. The pod's end is configured while vswitchd works.
type floor struct {
	lanes chan *lane // idle ones
	next  atomic.Uint32

	mu   sync.Mutex
	made map[*sandbox]floorPod
}

// lane is what one pod at a time is set up with.
type lane struct {
	host netlinksafe.Handle
	db   *ovsdb
	of   *ofconn
}

// floorBridge is beside br0, where the agent suffers no foreign flow. A port costs vswitchd the same on either: it looks at all
// ports of all bridges.
const floorBridge = "floor"

type floorPod struct {
	veth   *netlink.Veth
	port   added
	cookie uint64
}

// newFloor returns a floor that sets up that many pods at a time, and what closes its connections.
func (b *B) newFloor(s *ovstest.Switch, parallel int) (f *floor, stop func()) {
	b.Helper()
	s.VSCtl(b, "--may-exist", "add-br", floorBridge, "--", "set", "bridge", floorBridge, "datapath_type=netdev", "fail-mode=secure")
	bridge := strings.TrimSpace(s.VSCtl(b, "get", "bridge", floorBridge, "_uuid"))
	f = &floor{lanes: make(chan *lane, parallel), made: map[*sandbox]floorPod{}}
	for range parallel {
		l := &lane{}
		b.must(s.NS.Do(func(ns.NetNS) (err error) {
			l.host, err = netlinksafe.NewHandle(unix.NETLINK_ROUTE)
			return err
		}))
		var err error
		l.db, err = dialOVSDB(filepath.Join(s.RunDir, "db.sock"), bridge)
		b.must(err)
		l.of, err = dialOpenFlow(filepath.Join(s.RunDir, floorBridge+".mgmt"))
		b.must(err)
		f.lanes <- l
	}
	return f, func() {
		for range parallel {
			l := <-f.lanes
			l.host.Close()
			l.db.conn.Close()
			l.of.conn.Close()
		}
	}
}

func (f *floor) add(_ context.Context, s *sandbox) (time.Duration, error) {
	l := <-f.lanes
	defer func() { f.lanes <- l }()
	n := f.next.Add(1)
	addr := netip.AddrFrom4([4]byte{10, 131, byte(n >> 8), byte(n)})
	var pod floorPod
	took, err := timed(func() (err error) {
		pod, err = l.add(pathOf(s.netns), fmt.Sprintf("floor%d", n), addr, uint64(n))
		return err
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made[s] = pod
	return took, err
}

func (l *lane) add(path, name string, addr netip.Addr, cookie uint64) (floorPod, error) {
	p := floorPod{cookie: cookie}
	pod, err := netns.GetFromPath(path)
	if err != nil {
		return p, err
	}
	defer pod.Close()
	mac := config.MAC(addr)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, bareagent.MTU
	p.veth = netlink.NewVeth(attrs)
	p.veth.PeerName, p.veth.PeerHardwareAddr, p.veth.PeerNamespace = "eth0", mac, netlink.NsFd(pod)
	if err := l.host.LinkAdd(p.veth); err != nil {
		return p, fmt.Errorf("make the veth pair: %w", err)
	}
	if err := l.host.LinkSetUp(p.veth); err != nil {
		return p, fmt.Errorf("set %s up: %w", name, err)
	}
	if p.port, err = l.db.addPort(name); err != nil {
		return p, fmt.Errorf("add the port: %w", err)
	}
	if err := configure(pod, addr); err != nil {
		return p, fmt.Errorf("configure the pod: %w", err)
	}
	number, err := l.db.ofport(p.port)
	if err != nil {
		return p, fmt.Errorf("wait for the port's number: %w", err)
	}
	mods, err := podFlows(number, mac, addr, cookie)
	if err != nil {
		return p, err
	}
	return p, l.of.apply(mods)
}

// configure sets the pod's end up.
func configure(pod netns.NsHandle, addr netip.Addr) error {
	h, err := netlinksafe.NewHandleAt(pod, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName("eth0")
	if err != nil {
		return err
	}
	address := net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(16, addr.BitLen())}
	if err := h.AddrAdd(link, &netlink.Addr{IPNet: &address}); err != nil {
		return err
	}
	if err := h.LinkSetUp(link); err != nil {
		return err
	}
	return h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Scope: netlink.SCOPE_LINK})
}

// podFlows are the flows that ours gives a pod, without its limit of ARP requests.
func podFlows(ofport int, mac net.HardwareAddr, addr netip.Addr, cookie uint64) ([]*openflow.FlowMod, error) {
	state := podNetwork().Pod(pipeline.Pod{OFPort: ofport, MAC: mac, Addrs: []netip.Addr{addr}})
	mods, err := flowMods(unmetered(state.Flows))
	for _, m := range mods {
		m.Cookie = cookie
	}
	return mods, err
}

func (f *floor) del(_ context.Context, s *sandbox) (time.Duration, error) {
	l := <-f.lanes
	defer func() { f.lanes <- l }()
	f.mu.Lock()
	pod := f.made[s]
	delete(f.made, s)
	f.mu.Unlock()
	return timed(func() error {
		const exactly = ^uint64(0)
		if err := l.of.apply([]*openflow.FlowMod{{Command: openflow.FlowDelete, Table: openflow.AllTables, Cookie: pod.cookie, CookieMask: exactly}}); err != nil {
			return err
		}
		if err := l.db.deletePort(pod.port); err != nil {
			return err
		}
		return l.host.LinkDel(pod.veth)
	})
}
